"""A thread with Django connections of its own for each running handler."""
