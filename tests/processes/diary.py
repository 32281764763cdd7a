"""Who led when, and schedules that tick all the while."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tests.rows import Connection, insert
from tests.waiting import until

LED = "SELECT term, holder FROM jobqueue_leaderlease WHERE holder IS NOT NULL"
MOVE = """
UPDATE jobqueue_schedule SET next_run_at = clock_timestamp()
WHERE name = 'fast' AND next_run_at > clock_timestamp()
"""
FIRED = """
SELECT count(*) AS ticks, count(j.id) AS linked,
    (SELECT count(*) FROM jobqueue_job WHERE task = %(task)s AND queue = %(queue)s) AS jobs
FROM jobqueue_scheduletick t
JOIN jobqueue_schedule s ON s.id = t.schedule_id AND s.name = 'fast'
LEFT JOIN jobqueue_job j ON j.id = t.job
"""


@dataclass
class Diary:
    """Written through a connection of its own, until cancelled."""

    connection: Connection
    task: str
    terms: dict[int, str] = field(default_factory=dict)
    moved: int = 0

    async def begin(self, **columns: Any) -> None:
        """Make the fast schedule: its next tick comes whenever the diary says so."""
        given = {"name": "fast", "task": self.task, "cron": "0 0 1 1 *", **columns}
        await insert(self.connection, "jobqueue_schedule", "id", given)

    async def keep(self) -> None:
        """Note each term's holder, never two; move the next tick to now after each tick."""
        while True:
            async for term, holder in await self.connection.execute(LED):
                assert self.terms.setdefault(term, str(holder)) == str(holder)
            self.moved += (await self.connection.execute(MOVE)).rowcount
            await asyncio.sleep(0.05)

    async def every_tick_happened_once(self, connection: Connection) -> None:
        """Every tick that was asked for has made one job, none two."""

        async def all_fired() -> bool:
            cursor = await connection.execute(FIRED, {"task": self.task, "queue": "default"})
            row = await cursor.fetchone()
            assert row is not None
            ticks, linked, jobs = row
            assert ticks == linked == jobs <= self.moved
            return bool(ticks >= self.moved - 1)

        await until(all_fired, seconds=30)
