"""One worker process: claim, run, finish, and exit cleanly."""
