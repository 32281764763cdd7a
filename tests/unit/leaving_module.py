"""Leaves at its import."""

import sys

sys.exit(3)
