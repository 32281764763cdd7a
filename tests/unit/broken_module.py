"""Fails at its import."""

raise RuntimeError("no")
