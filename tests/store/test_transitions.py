"""Each verb of the store, tried on a row in each state: it goes a way of the table, or nowhere."""

from uuid import uuid4

import pytest

from jobqueue.states import FINAL, TRANSITIONS, Outcome, State, Verb
from jobqueue.store import claims, heartbeat, parked, promotion, reclaims, sweeps
from jobqueue.store import finish as store_finish
from tests.rows import add_job, add_running, ago, job_row

WORKER = uuid4()
LONG = 10_000_000.0


async def make(connection, state, *, parked=False):
    """A row whom everything but its state invites to change: due, expired, lapsed, old."""
    if state == State.RUNNING:
        return await add_running(connection, worker=WORKER)
    columns = {"state": str(state), "run_at": ago(60), "parked_at": ago(LONG) if parked else None}
    if state in FINAL:
        columns["finished_at"] = ago(LONG)
    return await add_job(connection, **columns), uuid4()


async def promote(connection, job, token):
    await promotion.promote(connection, 10)


async def promote_parked(connection, job, token):
    await parked.promote(connection, [("default", "shop.receipt")], 10)


async def claim(connection, job, token):
    await claims.claim(connection, "default", WORKER, [uuid4()], 30)


async def renew(connection, job, token):
    held = [heartbeat.HeldLease(job, token)]
    await heartbeat.beat(
        connection, WORKER, held, lease=30, leader_lease=15, phase="RUNNING", wake=""
    )


def finishing(outcome, **values):
    async def finish(connection, job, token):
        ending = store_finish.Ending(id=job, token=token, outcome=outcome, **values)
        await store_finish.finish(connection, WORKER, [ending])

    return finish


async def reclaim(connection, job, token):
    await reclaims.reclaim(connection, [reclaims.Verdict(job, token, 0.0)], "leader")


async def expire(connection, job, token):
    await connection.execute("UPDATE jobqueue_job SET expires_at = now() - interval '1 s'")
    await sweeps.expire(connection, [job], LONG, "leader")


async def expire_parked(connection, job, token):
    await sweeps.expire(connection, [job], 60, "leader")


async def prune(connection, job, token):
    for state in FINAL:
        await sweeps.prune(connection, [job], state, 60)


VERBS = {
    "promote": (Verb.PROMOTE, promote),
    "promote a parked one": (Verb.PROMOTE, promote_parked),
    "claim": (Verb.CLAIM, claim),
    "renew": (Verb.RENEW, renew),
    "succeed": (Verb.FINISH, finishing(Outcome.SUCCEEDED, result="1")),
    "fail": (Verb.FINISH, finishing(Outcome.FAILED)),
    "fail for ever": (Verb.FINISH, finishing(Outcome.FAILED, final=True, reason="permanent error")),
    "time out": (Verb.FINISH, finishing(Outcome.TIMED_OUT, delay=5.0)),
    "snooze": (Verb.FINISH, finishing(Outcome.SNOOZED, delay=5.0)),
    "unwind by a cancel": (Verb.FINISH, finishing(Outcome.CANCELLED)),
    "interrupt": (Verb.RELEASE, finishing(Outcome.INTERRUPTED)),
    "interrupt with a hold": (Verb.RELEASE, finishing(Outcome.INTERRUPTED, hold=2.0)),
    "return": (Verb.RELEASE, finishing(None)),
    "park": (Verb.RELEASE, finishing(None, reason="unknown task")),
    "reclaim": (Verb.RECLAIM, reclaim),
    "expire": (Verb.EXPIRE, expire),
    "expire a parked one": (Verb.EXPIRE, expire_parked),
    "prune": (Verb.PRUNE, prune),
}


async def state_after(connection, job):
    cursor = await connection.execute("SELECT state FROM jobqueue_job WHERE id = %s", [job])
    row = await cursor.fetchone()
    return None if row is None else State(row[0])


@pytest.mark.spec("S2", "S92")
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("name", VERBS)
async def test_each_verb_goes_a_way_of_the_table_or_changes_no_row(connection, name, state):
    verb, act = VERBS[name]
    job, token = await make(connection, state, parked=name.endswith("a parked one"))
    before = await job_row(connection, job)
    await act(connection, job, token)
    allowed = {target for source, target in TRANSITIONS[verb] if source == state}
    after = await state_after(connection, job)
    if allowed and not (name.endswith("a parked one") and state != State.SCHEDULED):
        assert after in allowed
        return
    now = await job_row(connection, job)
    if name == "expire":  # the test itself wrote that column
        now["expires_at"] = before["expires_at"]
    assert now == before


FENCED = {Verb.RENEW, Verb.FINISH, Verb.RELEASE, Verb.RECLAIM}


@pytest.mark.spec("S2", "S67", "S92", "S201")
@pytest.mark.parametrize("name", [name for name, (verb, _) in VERBS.items() if verb in FENCED])
async def test_the_token_of_another_claim_changes_no_row(connection, name):
    job, _ = await add_running(connection, worker=WORKER)
    before = await job_row(connection, job)
    await VERBS[name][1](connection, job, uuid4())
    assert await job_row(connection, job) == before


def test_every_verb_of_the_store_is_tried_here():
    elsewhere = {Verb.ENQUEUE, Verb.CANCEL, Verb.RETRY, Verb.RUN_NOW}  # the web side's
    assert {verb for verb, _ in VERBS.values()} == set(Verb) - elsewhere - {Verb.ADMIT}
