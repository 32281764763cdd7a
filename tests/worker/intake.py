"""A claimer as a service, behind a proxy, with a finisher that writes; handlers are not run."""

import asyncio
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest_asyncio

from jobqueue.conf import Settings
from jobqueue.states import Outcome
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import Session
from jobqueue.store.finish import Ending
from jobqueue.worker.claiming.claimer import Claimer
from jobqueue.worker.inflight import Fate, InFlightJobs
from jobqueue.worker.outages import ErrorPolicy, OutageLog
from jobqueue.worker.outcomes.completer import Completer
from tests.processes.proxy import Proxy
from tests.rows import one
from tests.worker.faults import Handlers, RecordedEvents, end

CALM = Settings(poll_seconds=600.0, concurrency=3)


@pytest_asyncio.fixture
async def proxy(parameters):
    async with Proxy(parameters["host"], int(parameters.get("port") or 5432)) as proxy:
        yield proxy


class Intake:
    """A claimer as a service, with a finisher that writes what is handed back."""

    def __init__(self, parameters, proxy, settings, queues, max_attempts):
        host, port = proxy.address
        far = {**parameters, "host": host, "port": port}
        self.registry = InFlightJobs(settings.concurrency)
        self.outage_log, self.recorded, self.spent = OutageLog(), RecordedEvents(), []
        self.completer = Completer(
            Session(ConnectionParameters.fixed(far), "finish"),
            uuid4(),
            self.registry,
            self.recorded,
            ErrorPolicy("finish", self.outage_log),
            trust_seconds=30.0,
            on_ready=lambda queue: None,
            on_soon=lambda seconds: self.claimer.promote_in(seconds),
        )
        self.handlers = Handlers(self.registry, self.completer)
        self.sessions = (
            Session(ConnectionParameters.fixed(far), "claim"),
            Session(ConnectionParameters.fixed(far), "claim 2"),
        )
        self.claimer = Claimer(
            self.sessions,
            uuid4(),
            dict.fromkeys(queues, 1),
            settings,
            self.registry,
            self.handlers,
            (
                ErrorPolicy("claim", self.outage_log),
                ErrorPolicy("claim 2", self.outage_log, helper=True),
            ),
            max_attempts=max_attempts,
            is_notified=lambda: True,
            notify_ready=lambda queue: None,
            is_overdue=lambda: True,
            on_spent=lambda: self.spent.append(len(self.registry)),
        )
        self.tasks = []

    def run(self):
        self.tasks = [
            asyncio.ensure_future(self.claimer.run()),
            asyncio.ensure_future(self.completer.run()),
        ]

    def started(self):
        return [inflight.claim.id for inflight in self.handlers.started]

    def put(self, inflight, outcome=Outcome.SUCCEEDED, **fields):
        """This handler has ended, and its outcome waits to be written."""
        self.registry.end(inflight)
        ending = Ending(id=inflight.claim.id, token=inflight.token, outcome=outcome, **fields)
        self.completer.put(inflight, ending)

    def end_all(self):
        for inflight in self.registry:
            self.registry.end(inflight)
            self.registry.record_fate(inflight, Fate.COMPLETED)


@pytest_asyncio.fixture
async def make(parameters, proxy):
    made = []

    def make(settings=CALM, queues=("default", "mail"), max_attempts=None):
        made.append(Intake(parameters, proxy, settings, queues, max_attempts))
        return made[-1]

    yield make
    for intake in made:
        for task in intake.tasks:
            await end(task)
        for session in (*intake.sessions, intake.completer.session):
            await session.close()


@asynccontextmanager
async def overcommitment(connection, slots):
    """The database itself notes every statement behind which more rows run than there are slots;
    yields a call that returns how many at most, or None."""
    await connection.execute("CREATE TABLE overcommitted (running int)")
    await connection.execute(f"""
        CREATE FUNCTION note_overcommitment() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO overcommitted SELECT count(*) FROM jobqueue_job WHERE state = 'RUNNING'
                HAVING count(*) > {slots};
            RETURN NULL;
        END $$
    """)
    await connection.execute(
        "CREATE TRIGGER note_overcommitment AFTER UPDATE ON jobqueue_job "
        "FOR EACH STATEMENT EXECUTE FUNCTION note_overcommitment()"
    )
    yield lambda: one(connection, "SELECT max(running) FROM overcommitted")
    await connection.execute("DROP FUNCTION note_overcommitment CASCADE")
    await connection.execute("DROP TABLE overcommitted")
