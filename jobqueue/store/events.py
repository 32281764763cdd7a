"""What a worker adds to a job's events, for its operators."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg import AsyncConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One remark on a job."""

    job: int
    kind: str
    note: str


NOTE = """
INSERT INTO jobqueue_jobevent (job, kind, actor, note)
SELECT t.job, t.kind, %(actor)s, t.note
FROM json_to_recordset(%(input)s::json) AS t(job bigint, kind text, note text)
"""


async def note(connection: AsyncConnection[Any], notes: Sequence[Note], actor: str) -> None:
    """Add these remarks."""
    rows = json.dumps([asdict(note) for note in notes])
    await connection.execute(NOTE, {"input": rows, "actor": actor})
