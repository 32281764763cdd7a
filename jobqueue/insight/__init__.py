"""Read-only answers about the queue: figures, diagnoses, and values covered for display."""
