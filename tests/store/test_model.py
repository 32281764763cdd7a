"""The store's verbs, in any order, against a model of the transition table."""

import asyncio
import os
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import hypothesis.strategies as st
import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from hypothesis.stateful import run_state_machine_as_test as run
from psycopg.rows import dict_row

from jobqueue import conf
from jobqueue.operations import sql
from jobqueue.states import FINAL, TRANSITIONS, WAITING, Outcome, State, Verb
from jobqueue.store import claims, heartbeat, promotion, reclaims, sweeps
from jobqueue.store import finish as store_finish
from jobqueue.store.finish import Ending
from tests.rows import add_job, ago, ahead

WORKERS = [uuid4() for _ in range(3)]
MAX_ATTEMPTS = 3
STEPS = 50
OUTCOMES = [outcome for outcome in Outcome if outcome is not Outcome.LOST]
RARELY = st.sampled_from([False, False, False, True])
FAILURES = (Outcome.FAILED, Outcome.TIMED_OUT)


@dataclass
class Expected:
    """What the table of transitions says of one job."""

    state: State
    token: UUID | None = None
    attempts: int = 0
    failures: int = 0
    cancelled: bool = False
    lapsed: bool = False
    expired: bool = False
    held: bool = False
    history: dict[UUID, str] = field(default_factory=dict)


class Store(RuleBasedStateMachine):
    """Every rule does the same to the database and to the model; they may never differ."""

    jobs = Bundle("jobs")
    tokens = Bundle("tokens")  # also those that have long been concluded
    parameters: dict = {}

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.connection = self.do(
            psycopg.AsyncConnection.connect(autocommit=True, **self.parameters)
        )
        self.do(self.connection.execute("TRUNCATE jobqueue_job, jobqueue_attempt"))
        self.model: dict[int, Expected] = {}

    def do(self, call):
        return self.loop.run_until_complete(call)

    def teardown(self):
        self.do(self.connection.close())
        self.loop.close()

    def moved(self, verb, job, state):
        before = self.model[job].state
        assert (before, state) in TRANSITIONS[verb], (verb, before, state)
        self.model[job].state = state

    def left(self, job):
        """It has left RUNNING."""
        expected = self.model[job]
        expected.token, expected.lapsed = None, False

    @rule(target=jobs, scheduled=st.booleans())
    def enqueue(self, scheduled):
        return self.enqueued(scheduled)

    def enqueued(self, scheduled):
        state = State.SCHEDULED if scheduled else State.READY
        run_at = ahead(3600) if scheduled else ago(1)
        columns = {"state": str(state), "run_at": run_at, "max_attempts": MAX_ATTEMPTS}
        job = self.do(add_job(self.connection, **columns))
        assert (None, state) in TRANSITIONS[Verb.ENQUEUE]
        self.model[job] = Expected(state)
        return job

    @initialize(target=jobs)
    def begin(self):
        """Something in each waiting state, and some of it held."""
        made = [self.enqueued(scheduled=number % 4 == 0) for number in range(12)]
        for worker in WORKERS * 2:
            self.claimed(worker)
        return multiple(*made)

    @rule(target=tokens, worker=st.sampled_from(WORKERS))
    def claim(self, worker):
        return self.claimed(worker)

    def claimed(self, worker):
        token = uuid4()
        rows = self.do(claims.claim(self.connection, "default", worker, [token], 3600.0))
        ready = [
            job
            for job, expected in self.model.items()
            if expected.state is State.READY and not expected.expired
        ]
        assert len(rows) == bool(ready)
        for row in rows:
            assert row.id in ready
            assert row.token == token
            self.moved(Verb.CLAIM, row.id, State.RUNNING)
            self.model[row.id].token = token
        return token

    def aimed(self, token, stale):
        """The token of a claim that is held now, unless a stale one is wanted."""
        held = [expected.token for expected in self.model.values() if expected.token]
        return token if stale or not held else held[token.int % len(held)]

    def holder(self, token):
        """The job that has this token now."""
        return next((job for job, e in self.model.items() if e.token == token), None)

    def some_job(self, token):
        """The job to which a claim of this token belongs, or any."""
        for job, expected in self.model.items():
            if token == expected.token or token in expected.history:
                return job
        return next(iter(self.model), 0)

    @rule(token=tokens, stale=RARELY)
    def renew(self, token, stale):
        token = self.aimed(token, stale)
        job = self.some_job(token)
        given = [heartbeat.HeldLease(job, token)]
        beat = heartbeat.beat(
            self.connection, WORKERS[0], given, lease=3600.0, leader_lease=15.0, phase="", wake=""
        )
        answer = self.do(beat)
        held = self.holder(token)
        assert answer.renewed == ({token} if held else set())
        assert answer.cancelled == ({token} if held and self.model[held].cancelled else set())
        if held:
            self.moved(Verb.RENEW, held, State.RUNNING)
            self.model[held].lapsed = False

    @rule(
        token=tokens,
        stale=RARELY,
        outcome=st.sampled_from([*OUTCOMES, None]),
        final=st.booleans(),
        delay=st.sampled_from([0.0, 3600.0]),
        hold=st.sampled_from([None, 3600.0]),
    )
    def finish(self, token, stale, outcome, final, delay, hold):
        token = self.aimed(token, stale)
        final = final and outcome in FAILURES
        hold = hold if outcome is Outcome.INTERRUPTED else None
        delay = delay if outcome in (*FAILURES, Outcome.SNOOZED, None) else 0.0
        job = self.some_job(token)
        given = Ending(id=job, token=token, outcome=outcome, final=final, delay=delay, hold=hold)
        (answer,) = self.do(store_finish.finish(self.connection, WORKERS[0], [given]))
        held = self.holder(token)
        if held is None:
            assert answer.refused
            self.late(given)
            return
        expected = self.model[held]
        state = self.verdict(expected, outcome, final, delay, hold)
        verb = Verb.RELEASE if outcome is None else Verb.FINISH
        assert answer.state == state
        self.moved(verb, held, state)
        expected.attempts += outcome is not None
        expected.failures += outcome in FAILURES
        expected.held = hold is not None
        if outcome is not None:
            expected.history[token] = str(outcome)
        self.left(held)

    def verdict(self, expected, outcome, final, delay, hold):
        if outcome is Outcome.SUCCEEDED:
            return State.SUCCEEDED
        if outcome is Outcome.CANCELLED:
            return State.CANCELLED
        if outcome in FAILURES and (final or expected.failures + 1 >= MAX_ATTEMPTS):
            return State.DEAD
        if expected.cancelled:
            return State.CANCELLED
        if expected.expired and outcome in (*FAILURES, Outcome.SNOOZED):
            return State.DEAD
        return State.SCHEDULED if hold or delay else State.READY

    def late(self, given):
        """A refused write leaves its wish alongside LOST, and finds itself where it had landed."""
        history = self.do(store_finish.late(self.connection, [given]))
        stands = {t: o for e in self.model.values() for t, o in e.history.items()}
        assert {t: row.outcome for t, row in history.items()} == {
            t: o for t, o in stands.items() if t == given.token
        }

    @rule(token=tokens, stale=RARELY)
    def progress(self, token, stale):
        token = self.aimed(token, stale)
        reports = [(self.some_job(token), token, '{"done": 1}')]
        took = self.do(store_finish.progress(self.connection, reports))
        assert took == ({token} if self.holder(token) else set())

    @rule(job=jobs)
    def lapse(self, job):
        if self.model.get(job) and self.model[job].state is State.RUNNING:
            self.set(job, "lease_expires_at = now() - interval '1 s'")
            self.model[job].lapsed = True

    @rule(job=jobs)
    def expire_soon(self, job):
        if self.model.get(job) and self.model[job].state not in FINAL:
            self.set(job, "expires_at = now() - interval '1 s'")
            self.model[job].expired = True

    @rule(job=jobs)
    def fall_due(self, job):
        if self.model.get(job) and self.model[job].state is State.SCHEDULED:
            self.set(job, "run_at = now() - interval '1 s', hold_until = NULL")
            self.model[job].held = False

    def set(self, job, change):
        statement = f"UPDATE jobqueue_job SET {change} WHERE id = {job}"
        self.do(self.connection.execute(statement.encode()))

    @rule()
    def promote(self):
        self.do(promotion.promote(self.connection, 100))
        for job, row in self.rows().items():
            if self.model[job].state is State.SCHEDULED and row["state"] == "READY":
                self.moved(Verb.PROMOTE, job, State.READY)
        assert not [
            row for row in self.rows().values() if row["state"] == "SCHEDULED" and row["due"]
        ]

    @rule(delay=st.sampled_from([0.0, 3600.0]))
    def reclaim(self, delay):
        found = self.do(reclaims.lapsed(self.connection, 100))
        assert {row.id for row in found} == {j for j, e in self.model.items() if e.lapsed}
        verdicts = [reclaims.Verdict(row.id, row.token, delay) for row in found]
        if not verdicts:
            return
        self.do(reclaims.reclaim(self.connection, verdicts, "leader"))
        for row in found:
            expected = self.model[row.id]
            state = self.lost(expected, delay)
            self.moved(Verb.RECLAIM, row.id, state)
            expected.attempts += 1
            expected.failures += 1
            expected.history[row.token] = "LOST"
            self.left(row.id)

    def lost(self, expected, delay):
        if expected.cancelled:
            return State.CANCELLED
        if expected.failures + 1 >= MAX_ATTEMPTS or expected.expired:
            return State.DEAD
        return State.SCHEDULED if delay else State.READY

    @rule()
    def expire(self):
        ids = self.do(sweeps.expirable(self.connection, 100, 3600.0))
        due = {j for j, e in self.model.items() if e.expired and e.state in WAITING}
        assert set(ids) == due
        self.do(sweeps.expire(self.connection, ids, 3600.0, "leader"))
        for job in due:
            self.moved(Verb.EXPIRE, job, State.DEAD)
            self.model[job].held = False

    def operate(self, statement, verb, job):
        parameters = {"ids": [job], "by": "", "note": "", "kind": str(verb), "as_of": None}
        cursor = self.do(self.connection.execute(statement, parameters))
        return any(row[2] for row in self.do(cursor.fetchall()))

    @rule(job=jobs)
    def cancel(self, job):
        changed = self.operate(sql.CANCEL, Verb.CANCEL, job)
        expected = self.model.get(job)
        can = expected is not None and expected.state not in FINAL and not expected.cancelled
        assert changed == can
        if can:
            running = expected.state is State.RUNNING
            self.moved(Verb.CANCEL, job, State.RUNNING if running else State.CANCELLED)
            expected.cancelled = True

    @rule(job=jobs)
    def retry(self, job):
        changed = self.operate(sql.RETRY, Verb.RETRY, job)
        expected = self.model.get(job)
        can = expected and expected.state in (State.DEAD, State.CANCELLED) and not expected.held
        assert changed == bool(can)
        if can:
            self.moved(Verb.RETRY, job, State.READY)
            expected.failures, expected.cancelled, expected.expired = 0, False, False

    @rule(job=jobs)
    def run_now(self, job):
        changed = self.operate(sql.RUN_NOW, Verb.RUN_NOW, job)
        expected = self.model.get(job)
        can = expected and expected.state is State.SCHEDULED and not expected.held
        assert changed == bool(can)
        if can:
            self.moved(Verb.RUN_NOW, job, State.READY)

    @rule(state=st.sampled_from(sorted(FINAL)))
    def prune(self, state):
        ids = self.do(sweeps.prunable(self.connection, state, 0.0, 100))
        self.do(sweeps.prune(self.connection, ids, state, 0.0))
        for job in [job for job, expected in self.model.items() if expected.state == state]:
            assert (state, None) in TRANSITIONS[Verb.PRUNE]
            del self.model[job]

    def rows(self):
        cursor = self.connection.cursor(row_factory=dict_row)
        self.do(cursor.execute(ROWS))
        return {row["id"]: row for row in self.do(cursor.fetchall())}

    @invariant()
    def the_tables_are_as_the_model_says(self):
        rows = self.rows()
        assert rows.keys() == self.model.keys()
        for job, expected in self.model.items():
            row = rows[job]
            got = (State(row["state"]), row["lease_token"], row["attempts"], row["failures"])
            want = (expected.state, expected.token, expected.attempts, expected.failures)
            assert got == want, (job, expected)
            assert row["history"] == {str(t): o for t, o in expected.history.items()}


ROWS = """
SELECT *, run_at <= now() AND (hold_until IS NULL OR hold_until <= now()) AS due, COALESCE((
    SELECT json_object_agg(token, outcome) FROM jobqueue_attempt WHERE job_id = jobqueue_job.id
), '{}') AS history
FROM jobqueue_job
"""


@pytest.mark.spec("S1", "S2", "S92", "S109", "S114", "S115", "S126")
@pytest.mark.parametrize("examples", [30, pytest.param(400, marks=pytest.mark.long)])
@pytest.mark.timeout(3000)
def test_the_store_does_what_the_table_of_transitions_says(transactional_db, examples):
    Store.parameters = conf.connection_parameters()
    run(
        Store,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            derandomize="CI" in os.environ,
        ),
        _min_steps=STEPS,
    )
