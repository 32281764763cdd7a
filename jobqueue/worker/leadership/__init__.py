"""One worker leads: it is elected, does the housekeeping, and fires schedules."""
