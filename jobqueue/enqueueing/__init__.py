"""From a call to a row: what is checked, stored and notified when a job is enqueued."""
