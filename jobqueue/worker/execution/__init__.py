"""One attempt: the handler is called, watched, stopped where needed, and its end is seen."""
