"""Leases are renewed in time, and handlers are stopped while theirs still hold."""
