"""N worker processes: started, restarted when they fail, stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL
from collections import deque
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from jobqueue import conf, logs
from jobqueue.clock import loop_time
from jobqueue.conf import Settings
from jobqueue.logs import get_logger
from jobqueue.store.connection_parameters import ConnectionParameters
from jobqueue.store.connections import ExponentialBackoff, Session
from jobqueue.worker.process.child_watch import Child, ChildWatch
from jobqueue.worker.process.signals import HANDLED, LATER, STOPS
from jobqueue.worker.process.supervisor_link import (
    CHILD,
    PIPE,
    RECYCLED,
    RECYCLED_DIED,
    RUNTIME,
    SUPERVISOR,
    WORKER,
)

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 30.0
BURST, BURST_SECONDS = 10, 60.0
RECYCLE_PAUSE_SECONDS = 0.1
KILL_MARGIN_SECONDS = 3.0  # after the children's own deadline
LOG_SECONDS = 2.0  # for the last events, if the project's log handlers are slow
WORST_FIRST = (1, 2, 5, 6, 3, 4, 0)
DIED, OUT_OF_TIME = 3, 4
REPLACED = (RECYCLED, RECYCLED_DIED)
OWN_CODES = (0, 1, 2, 3, 4, 5, 6)  # with which a worker ends by itself
log = get_logger()


def run(
    command: Sequence[str],
    processes: int,
    settings: Settings,
    *,
    restart: bool,
    max_runtime: float | None,
) -> int:
    """Run this command line as `processes` workers until a stop; return the worst exit code.

    The command is that of one worker, which learns from its environment that it has a supervisor
    (see `jobqueue.worker.process.supervisor_link`). Without `restart`, as in drain mode, only a
    child that asks for it is replaced. After `max_runtime` seconds none is.
    """
    supervisor = Supervisor(command, processes, settings, restart=restart, max_runtime=max_runtime)
    with logs.delivering(lambda: LOG_SECONDS):
        return asyncio.run(supervisor.run())


def worst(codes: Sequence[int]) -> int:
    """Return the worst exit code, worst first: 1, 5, 6, 3, 4, 0. A child killed by a signal counts
    as 1; one that exited to be replaced just before the stop, as 0."""
    replaced = {RECYCLED: 0, RECYCLED_DIED: DIED}
    known = [replaced.get(code, code if code in WORST_FIRST else 1) for code in codes]
    return min(known, key=WORST_FIRST.index, default=0)


class Supervisor:
    """Starts, watches and stops the children. They share its output."""

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        settings: Settings,
        *,
        restart: bool,
        max_runtime: float | None,
    ) -> None:
        self.id = str(uuid4())
        self.command, self.processes, self.settings = list(command), processes, settings
        self.restart, self.max_runtime = restart, max_runtime
        self.begun_at = 0.0
        self.died = False  # in drain mode: a job died in a child that was replaced
        self.log = log.bind(supervisor=self.id)
        self.children: dict[int, Child] = {}
        self.stopping = asyncio.Event()
        self._session = Session(ConnectionParameters(conf.connection_parameters), "supervisor")
        self.watch = ChildWatch(
            settings,
            self._session,
            self.log,
            children=self.children.values,
            is_stopping=self.stopping.is_set,
        )
        self._starting = asyncio.Lock()
        self._pipe = (-1, -1)

    async def run(self) -> int:
        """Return the worst exit code once no child is left."""
        self._pipe = os.pipe()  # its writing end closes when this process ends, however it ends
        loop = asyncio.get_running_loop()
        for number in HANDLED:
            loop.add_signal_handler(number, self.forward, number)
        self.log.info("supervisor_started", processes=self.processes, pid=os.getpid())
        self.begun_at = loop_time()
        watcher = asyncio.create_task(self.watch.run())
        killer = asyncio.create_task(self._kill_late())
        try:
            slots = [self._slot(number) for number in range(1, self.processes + 1)]
            codes = await asyncio.gather(*slots)
        finally:
            killer.cancel()
            watcher.cancel()
            await asyncio.wait({killer, watcher})
            await self.watch.certify(last=True)
            await self._session.close()
            for descriptor in self._pipe:
                os.close(descriptor)
        code = worst([*codes, DIED] if self.died else codes)
        self.log.info("supervisor_stopped", code=code, codes=codes)
        return code

    def forward(self, number: int) -> None:
        """Pass a signal on; after TERM or INT no child is started any more."""
        if number in STOPS:
            self.stopping.set()
        self.log.info("signal_forwarded", signal=signal.Signals(number).name)
        for child in list(self.children.values()):
            child.send(number)

    # One slot: one child after the other.

    async def _slot(self, number: int) -> int:
        """Keep one child running; return the last one's exit code."""
        backoff = ExponentialBackoff(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)
        exits: deque[float] = deque()
        while True:
            started = loop_time()
            code = await self._one_child(number)
            if self.stopping.is_set() or self._is_done(code):
                return code
            if code in REPLACED:
                self.died = self.died or code == RECYCLED_DIED
                await self._pause(RECYCLE_PAUSE_SECONDS)
            else:
                if loop_time() - started > BURST_SECONDS:
                    backoff.reset()
                exits.append(loop_time())
                while exits[0] < loop_time() - BURST_SECONDS:
                    exits.popleft()
                if len(exits) > BURST:
                    self.log.critical("child_given_up", child=number, exits=len(exits), code=code)
                    return code or 1
                await self._pause(backoff.next_delay())
            if self.stopping.is_set():
                return code
            if self._runtime_left() == 0:
                return OUT_OF_TIME if code in (0, *REPLACED) else code

    def _is_done(self, code: int) -> bool:
        """Whether a child that left with this code has done all that there was for it to do."""
        if self.max_runtime is not None and code == OUT_OF_TIME:
            return True
        return not self.restart and code in OWN_CODES  # not one that a job has killed

    def _runtime_left(self) -> float | None:
        if self.max_runtime is None:
            return None
        return max(self.begun_at + self.max_runtime - loop_time(), 0.0)

    async def _one_child(self, number: int) -> int:
        try:
            child = await self._spawn(number)
        except OSError as error:
            self.log.error("child_not_started", child=number, error=repr(error))  # noqa: TRY400
            return 1
        self.children[number] = child
        if self.stopping.is_set():  # the stop came while it was being started
            child.send(signal.SIGTERM)
        self.log.info("child_started", child=number, pid=child.pid)
        code = await child.process.wait()
        del self.children[number]
        self.watch.reaped(child)
        self.log.info("child_exited", child=number, pid=child.pid, code=code)
        if self.stopping.is_set() and code in {-number for number in STOPS}:
            return 0  # it had not yet installed its signal handlers, and so held no job
        return int(code)

    async def _spawn(self, number: int) -> Child:
        reading, worker = self._pipe[0], uuid4()
        environment = {SUPERVISOR: self.id, CHILD: str(number), PIPE: str(reading)}
        environment[WORKER] = str(worker)
        if (left := self._runtime_left()) is not None:
            environment[RUNTIME] = str(left)
        async with self._starting:
            # The child inherits the mask: HUP and USR2 must not end it before it listens to them.
            signal.pthread_sigmask(signal.SIG_BLOCK, LATER)
            try:
                process = await asyncio.create_subprocess_exec(
                    *self.command,
                    env={**os.environ, **environment},
                    stdin=DEVNULL,
                    pass_fds=(reading,),
                    # A terminal's Ctrl+C reaches the group: here, and each child once.
                    process_group=0,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, LATER)
        return Child(worker, process)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    async def _kill_late(self) -> None:
        """Kill the children still running after their own deadline."""
        await self.stopping.wait()
        await asyncio.sleep(self.settings.exit_seconds + KILL_MARGIN_SECONDS)
        for number, child in list(self.children.items()):
            self.log.error("child_killed", child=number, pid=child.pid)
            child.send(signal.SIGKILL)


def command_line() -> list[str]:
    """Return this process's command line, for a child to run."""
    from django.utils.autoreload import get_child_arguments

    arguments: Any = get_child_arguments()
    return list(arguments)
