"""NOTIFY as this worker hears it, and who reacts to what."""
