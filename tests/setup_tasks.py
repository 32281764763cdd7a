"""The TASKS setting, with other queues."""

OPEN: list[str] = []


def tasks(queues: list[str]) -> dict[str, dict[str, object]]:
    return {"default": {"BACKEND": "jobqueue.backend.JobQueueBackend", "QUEUES": queues}}
