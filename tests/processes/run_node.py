"""The part of a worker that leads, as a process: a row, a beat, a listener, and the leader.

Arguments: JSON of the connection, JSON of the settings.
"""

import asyncio
import json
import signal
import sys
from uuid import uuid4

import django

django.setup()

import psycopg  # noqa: E402

from jobqueue import conf  # noqa: E402
from jobqueue.store import heartbeat, workers  # noqa: E402
from jobqueue.store.connection_parameters import ConnectionParameters  # noqa: E402
from jobqueue.store.connections import Session  # noqa: E402
from jobqueue.store.error_classes import is_transient  # noqa: E402
from jobqueue.worker.leadership.election import Leader  # noqa: E402
from jobqueue.worker.outages import OutageLog  # noqa: E402
from jobqueue.worker.process import liveness  # noqa: E402
from jobqueue.worker.process.supervisor_link import parent  # noqa: E402

PARAMETERS = json.loads(sys.argv[1])
SETTINGS = conf.Settings(**json.loads(sys.argv[2]))


async def beat(session: Session, me, leader: Leader, detector: liveness.DeadWorkerDetector) -> None:
    while True:
        try:
            answer = await session.call(
                heartbeat.beat,
                SETTINGS.beat_budget_seconds,
                me,
                [],
                lease=SETTINGS.lease_seconds,
                leader_lease=SETTINGS.leader_lease_seconds,
                phase="RUNNING",
                wake="",
                silence=detector.silence_seconds,
            )
            if answer.leader_vacant:
                leader.on_vacant()
            else:
                leader.on_occupied()
            if answer.silent:
                await detector.detect()
        except Exception as error:
            if not is_transient(error):
                raise
        await asyncio.sleep(SETTINGS.heartbeat_seconds)


async def listen(leader: Leader) -> None:
    while True:
        try:
            connection = await psycopg.AsyncConnection.connect(autocommit=True, **PARAMETERS)
            await connection.execute("LISTEN jobqueue")
            async for note in connection.notifies():
                message = json.loads(note.payload)
                match message["kind"]:
                    case "leader":
                        leader.on_vacant()
                    case "died":
                        leader.reclaim_now()
                    case "scheduled":
                        leader.on_scheduled(message["at"])
        except psycopg.Error:
            await asyncio.sleep(0.2)


async def main() -> None:
    facts, above = liveness.identity(), parent()
    me = above.worker if above else uuid4()
    session = Session(ConnectionParameters.fixed(PARAMETERS), "heartbeat")
    identity = workers.Identity(
        id=me,
        name="node",
        hostname="",
        pid=facts.pid,
        pid_started=facts.pid_started,
        pid_namespace=facts.pid_namespace,
        time_namespace=facts.time_namespace,
        boot_id=facts.boot_id,
        supervisor=above.id if above else "",
        version="",
        queues=[],
        concurrency=0,
        may_lead=True,
    )
    await session.call(workers.register, 10, identity)
    leader = Leader(
        parameters=ConnectionParameters.fixed(PARAMETERS),
        worker=me,
        settings=SETTINGS,
        outage_log=OutageLog(),
        on_final=lambda ids: None,
    )
    # Schedules that a test moves, and leases that lapse, are seen soon.
    for name in ("find work", "schedules"):
        leader._maintenance.steps[name].interval = 0.3
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    detector = liveness.DeadWorkerDetector(session, me, SETTINGS)
    services = [
        asyncio.create_task(beat(session, me, leader, detector)),
        asyncio.create_task(listen(leader)),
        asyncio.create_task(leader.run()),
    ]
    print(me, flush=True)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([stopped, *services], return_when=asyncio.FIRST_COMPLETED)
    await leader.resign()
    await session.call(workers.report, 2, me, "STOPPED", {})


asyncio.run(main())
