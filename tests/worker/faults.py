"""What the tests of the worker's services put in the place of what surrounds them."""

import asyncio

from jobqueue.worker.inflight import Held


class Handlers:
    """In the executor's place: notes what is started and what is given back; runs nothing."""

    class receivers:
        is_behind = False

    def __init__(self, registry, finisher=None):
        self.registry, self.finisher = registry, finisher
        self.started: list[Held] = []
        self.returned: list[Held] = []

    def start(self, held):
        self.started.append(held)

    def give_back(self, held):
        from jobqueue.worker.outcomes import classify

        self.returned.append(held)
        self.registry.end(held)
        if self.finisher is not None:
            self.finisher.put(held, classify.unstarted(held.claim))


class Told:
    """In the place of the reports."""

    def __init__(self):
        self.written_, self.refused_, self.given_up_, self.unwritable_ = [], [], [], []

    def written(self, held, ending, state):
        self.written_.append((held.claim.id, ending.outcome, state))

    def refused(self, held, ending, stands):
        self.refused_.append((held.claim.id, ending.outcome, stands))

    def given_up(self, claim):
        self.given_up_.append(claim.id)

    def unwritable(self, claim, error):
        self.unwritable_.append(claim.id)


async def end(task):
    task.cancel()
    await asyncio.wait({task})
    return None if task.cancelled() else task.exception()
