import asyncio
from uuid import uuid4

import pytest

from jobqueue.store import heartbeat, leadership
from tests.rows import add_worker, ago, ahead, insert, one

LAPSE = "UPDATE jobqueue_leaderlease SET expires_at = clock_timestamp() - interval '1 ms'"
HOLDER = "SELECT holder FROM jobqueue_leaderlease WHERE name = 'maintenance'"
EXPIRES = "SELECT expires_at FROM jobqueue_leaderlease WHERE name = 'maintenance'"


@pytest.mark.spec("S166", "S167")
async def test_the_first_worker_is_elected_where_no_row_exists(connection):
    assert await leadership.elect(connection, uuid4(), 15) == 1


@pytest.mark.spec("S167")
async def test_a_valid_term_is_not_taken_and_its_row_not_changed(connection):
    first = await add_worker(connection)
    await leadership.elect(connection, first, 15)
    before = await one(connection, EXPIRES)
    assert await leadership.elect(connection, uuid4(), 15) is None
    assert await one(connection, HOLDER) == first
    assert await one(connection, EXPIRES) == before


@pytest.mark.spec("S167", "S169")
async def test_a_lapsed_term_is_taken_under_the_next_number(connection):
    await leadership.elect(connection, uuid4(), 15)
    await connection.execute(LAPSE)
    assert await leadership.elect(connection, uuid4(), 15) == 2


@pytest.mark.spec("S167")
async def test_of_many_concurrent_takers_one_wins(connect):
    connections = [await connect() for _ in range(8)]
    workers = [await add_worker(connection) for connection in connections]
    for term in (1, 2, 3):
        answers = await asyncio.gather(
            *(
                leadership.elect(connection, worker, 15)
                for connection, worker in zip(connections, workers, strict=True)
            )
        )
        assert [answer for answer in answers if answer is not None] == [term]
        await connections[0].execute(LAPSE)


@pytest.mark.spec("S168")
async def test_a_lapsed_term_is_not_renewed_even_if_nobody_took_it(connection):
    worker = uuid4()
    term = await leadership.elect(connection, worker, 15)
    assert await leadership.renew(connection, worker, term, 15)
    await connection.execute(LAPSE)
    assert not await leadership.renew(connection, worker, term, 15)


@pytest.mark.spec("S169")
async def test_renew_and_resign_match_holder_and_term(connection):
    worker = uuid4()
    old = await leadership.elect(connection, worker, 15)
    await connection.execute(LAPSE)
    new = await leadership.elect(connection, worker, 15)
    assert not await leadership.renew(connection, worker, old, 15)
    assert not await leadership.resign(connection, worker, old)
    assert not await leadership.resign(connection, uuid4(), new)
    assert await one(connection, HOLDER) == worker


@pytest.mark.spec("S169")
async def test_resigning_empties_the_row_and_keeps_the_term(connection):
    worker, successor = uuid4(), uuid4()
    term = await leadership.elect(connection, worker, 15)
    assert await leadership.resign(connection, worker, term)
    assert await one(connection, HOLDER) is None
    assert await leadership.elect(connection, successor, 15) == term + 1


async def test_a_win_whose_answer_was_lost_is_taken_again_under_a_new_term(connection):
    worker = uuid4()
    assert await leadership.elect(connection, worker, 15) == 1
    assert await leadership.elect(connection, worker, 15) == 2


@pytest.mark.spec("S166")
async def test_the_term_of_a_certified_dead_holder_is_free_at_once(connection):
    dead = await add_worker(connection)
    await leadership.elect(connection, dead, 15)
    assert await leadership.elect(connection, uuid4(), 15) is None
    await connection.execute("UPDATE jobqueue_worker SET died_at = clock_timestamp()")
    assert not await leadership.renew(connection, dead, 1, 15)
    assert await leadership.elect(connection, uuid4(), 15) == 2


LEASES = [
    # the holder's row, seconds to the lease's end; whether it is believed
    ({}, 14, True),
    ({}, 28, True),  # by other settings, while they are being deployed
    ({}, 86_400, False),  # the server's clock was set back
    ({"last_seen_at": ago(29)}, 14, True),
    ({"last_seen_at": ago(31)}, 14, False),
    ({"died_at": ago(1)}, 14, False),
    (None, 14, False),  # a backup was restored
]


@pytest.mark.spec("S166", "S167")
@pytest.mark.parametrize(("row", "ends", "believed"), LEASES)
async def test_a_lease_that_cannot_be_is_not_believed(connection, row, ends, believed):
    holder = uuid4() if row is None else await add_worker(connection, **row)
    me = await add_worker(connection)
    lease = {"name": "maintenance", "holder": holder, "term": 6, "acquired_at": ago(1)}
    await insert(connection, "jobqueue_leaderlease", "name", {**lease, "expires_at": ahead(ends)})
    beat = await heartbeat.beat(
        connection, me, [], lease=30, leader_lease=15, phase="RUNNING", wake=""
    )
    assert beat.leader_vacant is not believed
    assert await leadership.elect(connection, me, 15) == (None if believed else 7)


async def test_a_certified_dead_worker_is_never_elected(connection):
    dead = await add_worker(connection, died_at=ago(1))
    assert await leadership.elect(connection, dead, 15) is None
