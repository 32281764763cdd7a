"""The worker's verbs: one function, one statement, right above it. Async, psycopg, no Django."""
