"""What the tests of the worker's services put in the place of what surrounds them."""

import asyncio

from jobqueue.worker.inflight import InFlight
from jobqueue.worker.threads.handler_thread import HandlerThreads


class Handlers:
    """In the executor's place: notes what is started and what is given back; runs nothing."""

    class task_signals:
        class threads:
            is_behind = False

    def __init__(self, registry, completer=None):
        self.registry, self.completer = registry, completer
        self.handler_threads = HandlerThreads()
        self.started: list[InFlight] = []
        self.returned: list[InFlight] = []
        self.returned_at_once: list[bool] = []  # what the claimer asks for; here all are

    def start(self, inflight):
        self.started.append(inflight)

    def give_back(self, inflight, *, at_once):
        from jobqueue.worker.outcomes import classify

        self.returned.append(inflight)
        self.returned_at_once.append(at_once)
        self.registry.end(inflight)
        if self.completer is not None:
            self.completer.put(inflight, classify.unstarted(inflight.claim, at_once=True))


class RecordedEvents:
    """In the place of the reports."""

    def __init__(self):
        self.written_, self.refused_, self.given_up_, self.unwritable_ = [], [], [], []

    def written(self, inflight, ending, state):
        self.written_.append((inflight.claim.id, ending.outcome, state))

    def refused(self, inflight, ending, stands):
        self.refused_.append((inflight.claim.id, ending.outcome, stands))

    def given_up(self, claim):
        self.given_up_.append(claim.id)

    def unwritable(self, claim, error):
        self.unwritable_.append(claim.id)


async def end(task):
    task.cancel()
    await asyncio.wait({task})
    return None if task.cancelled() else task.exception()
