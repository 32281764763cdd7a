"""What this code understands of a job's row, and which rows it therefore leaves alone.

A feature that older code would break raises `UNDERSTANDS` and writes that number into the `needs`
of its jobs. Raising it also makes new indexes (the conditions below stand in them); the former ones
stay for one release, for the workers that are still running.
"""

UNDERSTANDS = 0

OURS = f"needs <= {UNDERSTANDS}"
NEWER = f"needs > {UNDERSTANDS}"

# The two halves of what is READY: whatever stands in the second delays no claim of the first.
CLAIMABLE = f"state = 'READY' AND NOT suspect AND {OURS}"
READY_APART = f"state = 'READY' AND (suspect OR {NEWER})"
SUSPECT = f"state = 'READY' AND suspect AND {OURS}"

# The same of what is SCHEDULED: time alone brings back the first, never the second.
TIMED = f"state = 'SCHEDULED' AND parked_at IS NULL AND {OURS}"
PARKED = f"state = 'SCHEDULED' AND parked_at IS NOT NULL AND {OURS}"
SCHEDULED_APART = f"state = 'SCHEDULED' AND (parked_at IS NOT NULL OR {NEWER})"
