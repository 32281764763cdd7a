"""From a call to a row: how a job is checked, stored and announced when it is enqueued."""
