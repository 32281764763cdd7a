"""What a handler raises to steer its job, and what the queue raises. A docstring is the message."""

from collections.abc import Callable


class JobQueueError(Exception):
    """The job queue refused this."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class ArgumentsError(JobQueueError, ValueError, TypeError):
    """The arguments cannot be stored as JSON."""


class EnqueueError(JobQueueError, ValueError):
    """The job cannot be enqueued with these options."""


class PermanentError(JobQueueError):
    """A retry cannot help: the job is dead at once."""


class RetryLater(JobQueueError):
    """A counted failure with a delay of its own, in seconds."""

    def __init__(self, seconds: float, message: str = "") -> None:
        self.seconds = check_delay("RetryLater", seconds)
        super().__init__(message or f"retry in {seconds} s")


class Snooze(JobQueueError):
    """Run again later, in seconds; nothing is counted."""

    def __init__(self, seconds: float, message: str = "") -> None:
        self.seconds = check_delay("Snooze", seconds)
        super().__init__(message or f"again in {seconds} s")


class JobCancelled(BaseException):
    """The job was cancelled by an operator.

    Not an Exception, so that a handler's `except Exception` does not stop the unwinding.
    """


class JobTimeout(BaseException):
    """The attempt ran longer than its timeout."""


class JobInterrupted(BaseException):
    """The worker is leaving, or has lost this job's lease: the attempt must unwind."""


class WorkerLost(JobQueueError):
    """The worker that held the job stopped renewing its lease."""


class JobExpired(JobQueueError):
    """The job was not started by the time it expires."""


class CommitLost(JobQueueError):
    """connection lost at COMMIT"""


class LeaseLost(JobQueueError):
    """The claim is no longer this worker's; nothing was written."""


def as_handled[T](error: BaseException, call: Callable[[], T]) -> T:
    """Call it as from an `except` block: Django logs a failed task with `sys.exc_info()`. The error
    keeps the stack that it has."""
    stack = error.__traceback__
    try:
        raise error
    except BaseException as raised:
        raised.__traceback__ = stack
        return call()


def check_delay(name: str, seconds: float) -> float:
    """Return the delay in seconds. Raises TypeError or ValueError with what to write instead."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name}: seconds must be a number, not {type(seconds).__name__}.")
    if not 0 <= seconds <= MAX_DELAY_SECONDS:
        raise ValueError(
            f"{name}: seconds must be between 0 and {MAX_DELAY_SECONDS} (ten years), not {seconds}."
        )
    return float(seconds)


MAX_DELAY_SECONDS = 10 * 366 * 86400
