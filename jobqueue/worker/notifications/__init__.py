"""Receiving NOTIFY, and who reacts to what."""
