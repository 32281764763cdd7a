"""Renews leases in time, and stops handlers while their leases still hold."""
