"""One worker process: claim, run, finish, and leave well."""
