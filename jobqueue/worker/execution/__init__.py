"""One attempt: call the handler, watch it, stop it if needed, and conclude it."""
