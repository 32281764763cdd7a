"""One worker leads: it is elected, does the maintenance, and fires schedules."""
