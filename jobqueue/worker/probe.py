"""One worker's liveness, readiness and metrics over HTTP, for the platform that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.states import IdleReason, Phase
from jobqueue.worker.inflight import InFlightJobs
from jobqueue.worker.leadership.election import Leader
from jobqueue.worker.lease.heartbeat import Heartbeat
from jobqueue.worker.process.supervisor_link import SupervisorLink
from jobqueue.worker.shutdown import Shutdown
from jobqueue.worker.startup import CannotStartError

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 16
REQUEST_SECONDS = 2.0
FIRST_LINE_SECONDS = 1.0
LONGEST_LINE = 2048
PLAIN = "text/plain; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}
WORDS[503] = "Service Unavailable"
log = get_logger()

Answer = tuple[int, str, str]  # status, content type, body


class Probe:
    """Answers `/live`, `/ready` and `/metrics`. It reads the worker's memory and makes no query."""

    def __init__(
        self,
        settings: Settings,
        parent: SupervisorLink | None,
        *,
        shutdown: Shutdown,
        registry: InFlightJobs,
        heartbeat: Heartbeat,
        leader: Leader | None,
    ) -> None:
        self.settings, self.shutdown, self.registry = settings, shutdown, registry
        self.heartbeat, self.leader = heartbeat, leader
        self.host, self.port = address_of(settings.probe_address, parent)
        self._server: asyncio.Server | None = None
        # In order of arrival: whether the request's first line has arrived.
        self._open: dict[asyncio.Task[None], bool] = {}

    async def open(self) -> None:
        """Listen, if an address was given. Raises CannotStartError."""
        if self.port is None:
            return
        try:
            self._server = await asyncio.start_server(
                self._serve, self.host, self.port, limit=LONGEST_LINE
            )
        except (OSError, OverflowError) as error:
            raise CannotStartError(
                f"PROBE_ADDRESS: {self.host}:{self.port} cannot be listened on: {error}."
            ) from None
        name = self._server.sockets[0].getsockname()
        log.info("probe_listening", host=name[0], port=name[1])

    async def close(self) -> None:
        """Free the port, and end the requests being answered."""
        if self._server is not None:
            server, self._server = self._server, None
            server.close()
            for task in self._open:
                task.cancel()
            if self._open:
                await asyncio.wait(set(self._open), timeout=REQUEST_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._make_room()
        self._open[task] = False
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                async with asyncio.timeout(FIRST_LINE_SECONDS):
                    line = await reader.readline()
                self._open[task] = True
                writer.write(await self._respond(line, reader))
                await writer.drain()
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has gone, or never spoke HTTP
        finally:
            self._open.pop(task, None)
            with contextlib.suppress(OSError):
                writer.close()

    def _make_room(self) -> None:
        """Drop the oldest silent connection, or else the oldest one, so that connections held
        open by others cannot keep the platform's requests out."""
        if len(self._open) < MOST_CONNECTIONS:
            return
        silent = (task for task, has_spoken in self._open.items() if not has_spoken)
        dropped = next(silent, None) or next(iter(self._open))
        del self._open[dropped]
        dropped.cancel()

    async def _respond(self, line: bytes, reader: asyncio.StreamReader) -> bytes:
        words = line.decode("latin-1").split()
        while (await reader.readline()).strip():
            pass  # the headers are not used
        method, target = (words[0], words[1]) if len(words) == 3 else ("", "")
        status, kind, body = self.answer(method, target.partition("?")[0])
        data = body.encode()
        head = (
            f"HTTP/1.1 {status} {WORDS[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(data)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else data)

    def answer(self, method: str, path: str) -> Answer:
        """Return the answer to one request."""
        if not method:
            return 400, PLAIN, "not understood\n"
        if method not in ("GET", "HEAD"):
            return 405, PLAIN, "only GET and HEAD\n"
        match path:
            case "/live":
                return 200, PLAIN, "the event loop answers\n"
            case "/ready":
                why = self.unready()
                return (503, PLAIN, f"{why}\n") if why else (200, PLAIN, "ready\n")
            case "/metrics":
                return 200, PROMETHEUS, "".join(f"{line}\n" for line in self.figures())
        return 404, PLAIN, "try /live, /ready or /metrics\n"

    def unready(self) -> str:
        """Return why this worker claims no jobs; empty if it does."""
        phase, settings = self.shutdown.phase, self.settings
        if phase is Phase.STARTING:
            return "starting: the database has not answered yet"
        if phase is not Phase.RUNNING:
            # An error behind the colon may quote a row: it is in the log, not for everybody here.
            return f"stopping ({phase}): {self.shutdown.reason.partition(':')[0]}"
        age, stale = self._beat_age(), 2 * settings.heartbeat_seconds + settings.beat_budget_seconds
        if age > stale:
            return f"the last good heartbeat was {age:.1f} s ago"
        if self.heartbeat.idle:
            return f"claims nothing: {self.heartbeat.idle}"
        return ""

    def _beat_age(self) -> float:
        return time.monotonic() - self.heartbeat.good_at

    def figures(self) -> Iterable[str]:
        """Return the metrics in Prometheus's text format."""
        registry, leader = self.registry, self.leader
        yield "# TYPE jobqueue_worker_jobs_held gauge"
        yield f"jobqueue_worker_jobs_held {len(registry)}"
        yield "# TYPE jobqueue_worker_slots_free gauge"
        yield f"jobqueue_worker_slots_free {max(registry.free, 0)}"
        yield "# TYPE jobqueue_worker_jobs_claimed_total counter"
        yield f"jobqueue_worker_jobs_claimed_total {registry.claimed}"
        yield "# TYPE jobqueue_worker_jobs_total counter"
        for fate, number in registry.counts.items():
            yield f'jobqueue_worker_jobs_total{{fate="{fate}"}} {number}'
        yield "# TYPE jobqueue_worker_heartbeat_age_seconds gauge"
        yield f"jobqueue_worker_heartbeat_age_seconds {self._beat_age():.3f}"
        yield "# TYPE jobqueue_worker_leader gauge"
        yield f"jobqueue_worker_leader {int(leader is not None and leader.is_leading)}"
        yield "# TYPE jobqueue_worker_idle gauge"
        for reason in IdleReason:
            here = int(reason == self.heartbeat.idle)
            yield f'jobqueue_worker_idle{{reason="{reason}"}} {here}'
        yield "# TYPE jobqueue_worker_signals_dropped_total counter"
        yield f"jobqueue_worker_signals_dropped_total {self.heartbeat.signals_dropped()}"
        yield "# TYPE jobqueue_worker_phase gauge"
        for phase in Phase:
            here = int(phase is self.shutdown.phase)
            yield f'jobqueue_worker_phase{{phase="{phase}"}} {here}'


def address_of(address: str | None, parent: SupervisorLink | None) -> tuple[str, int | None]:
    """Return host and port; without an address the port is None. A supervisor's children take
    consecutive ports."""
    if address is None:
        return "", None
    host, _, port = address.rpartition(":")
    number = int(port)
    if number and parent is not None:
        number += parent.child - 1
    return host.strip("[]") or LOOPBACK, number
