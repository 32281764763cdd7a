"""What is said of written outcomes: a moment later, in one go, and nothing is lost on the way."""

import pytest

from jobqueue.worker.outcomes import completer
from tests.events import captured
from tests.worker import jobs
from tests.worker.running import Running
from tests.worker.test_completer import desk, empty, proxy

__all__ = ["desk", "proxy"]


class Mute:
    """A project's logging that fails."""

    def exception(self, *args, **facts):
        raise ZeroDivisionError


@pytest.mark.spec("S66", "S154")
@pytest.mark.parametrize("is_logging_broken", [False, True])
async def test_one_that_cannot_be_logged_silences_no_other(desk, monkeypatch, is_logging_broken):
    inflight = await desk.claim(5)
    written = desk.recorded.written

    def fails_once(own, ending, state):
        if own is inflight[1]:
            raise ZeroDivisionError
        written(own, ending, state)

    monkeypatch.setattr(desk.recorded, "written", fails_once)
    if is_logging_broken:
        monkeypatch.setattr(completer, "log", Mute())
    with captured() as logs:
        for own in inflight:
            desk.put(own)
        await empty(desk)
    assert await desk.states(*inflight) == ["SUCCEEDED"] * 5
    assert [job for job, *_ in desk.recorded.written_] == [
        own.claim.id for own in inflight if own is not inflight[1]
    ]
    assert not desk.task.done()
    assert not desk.outage_log._troubled
    failed = [log for log in logs if log["event"] == "outcome_log_failed"]
    assert [log["job"] for log in failed] == ([] if is_logging_broken else [inflight[1].claim.id])


@pytest.mark.spec("S145")
def test_the_last_ones_are_logged_before_the_worker_has_stopped(work, body, shared):
    running: Running = work()

    def ends_with_the_drain():
        shared.notes.append(1)
        shared.events["go"].wait(30)

    waiting = [jobs.call.enqueue(body(ends_with_the_drain)) for _ in range(4)]
    running.wait(lambda: len(shared.notes) == 4)
    with captured() as logs:
        running.on_loop(running.worker.shutdown.request, "signal")
        shared.events["go"].set()
        assert running.stop() == 0
    events = [log["event"] for log in logs]
    logged = {str(log["job"]) for log in logs if log["event"] == "job_succeeded"}
    assert logged == {job.id for job in waiting}
    assert events[-1] == "worker_stopped"
