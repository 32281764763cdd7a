"""Random faults for workers and their database, one after the other and on top of each other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

import psycopg

from tests.children import ROOT
from tests.processes.weather import NAME, ROLE, Site, Worker

WORKERS = 3
KINDS = ("plain", "coroutine", "atomic", "idle")
PURPOSES = ("claim", "finish", "listen", "beat", "leader", "maintenance")


class Soup:
    """Keeps WORKERS workers running, as a platform does, while faults strike them."""

    def __init__(self, site: Site, seed: str) -> None:
        self.site, self.random = site, random.Random(seed)
        self.struck: Counter[str] = Counter()
        self.frozen: set[Worker] = set()
        self.operators: list[subprocess.Popen[str]] = []
        self.faults: list[Callable[[], Awaitable[None]]] = [
            self.kill,
            self.freeze,
            self.stop,
            self.cut,
            self.half_close,
            self.swallow,
            self.swallow_answers,
            self.slow_down,
            self.refuse,
            self.terminate,
            self.limit_statements,
            self.operate,
        ]

    async def cook(self, seconds: float) -> None:
        """Strike for so long; afterwards everything is healed and all workers run."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        load = asyncio.ensure_future(self.site.feed(seconds, KINDS))
        running: set[asyncio.Task[None]] = set()
        while loop.time() < end:
            fault = self.random.choice(self.faults)
            self.struck[fault.__name__] += 1
            running.add(asyncio.ensure_future(self._strike(fault)))
            await asyncio.wait(running, timeout=self.random.uniform(0.3, 2.0))
            await self.keep_running()
        await asyncio.gather(load, *running)
        for operator in self.operators:
            _, said = await asyncio.to_thread(operator.communicate, timeout=60)
            assert operator.returncode == 0, said
        await self.keep_running()

    async def keep_running(self) -> None:
        """Start another worker for each that has ended."""
        missing = WORKERS - sum(worker.lives for worker in self.site.workers)
        for _ in range(missing):
            await self.site.start("--concurrency", self.random.choice(["5", "40"]))

    async def _strike(self, fault: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(psycopg.OperationalError):
            await fault()

    def _one(self) -> Worker:
        return self.random.choice([worker for worker in self.site.workers if worker.lives])

    # Processes.

    async def kill(self) -> None:
        worker = self._one()
        worker.process.kill()
        await asyncio.to_thread(worker.process.wait)

    async def stop(self) -> None:
        worker = self._one()
        if worker not in self.frozen:
            worker.process.terminate()
            await asyncio.to_thread(worker.process.wait, 40)

    async def freeze(self) -> None:
        """For less than a lease, or for more."""
        worker = self._one()
        if worker in self.frozen:
            return
        self.frozen.add(worker)
        worker.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.random.choice([0.5, 3, 9]))
        worker.process.send_signal(signal.SIGCONT)
        self.frozen.discard(worker)

    # The network.

    async def cut(self) -> None:
        self._one().proxy.cut()

    async def half_close(self) -> None:
        self._one().proxy.half_close()

    async def swallow(self) -> None:
        await self._for_a_while("swallow", value=True)

    async def swallow_answers(self) -> None:
        await self._for_a_while("swallow_answers", value=True)

    async def slow_down(self) -> None:
        await self._for_a_while("delay", value=(0.05, 0.4))

    async def refuse(self) -> None:
        await self._for_a_while("refuse", value=True)

    async def _for_a_while(self, fault: str, *, value: object) -> None:
        proxy = self._one().proxy
        setattr(proxy, fault, value)
        await asyncio.sleep(self.random.uniform(0.3, 4))
        proxy.heal()
        proxy.cut()  # what was swallowed is lost for good

    # The server, and people.

    async def terminate(self) -> None:
        purpose = self.random.choice(PURPOSES)
        await asyncio.to_thread(self.site.sky.end_sessions, f"jobqueue {purpose}%")

    async def limit_statements(self) -> None:
        await self.site.sky.ask(f"ALTER ROLE {ROLE} SET statement_timeout = '50ms'")
        await asyncio.to_thread(self.site.sky.end_sessions)
        await asyncio.sleep(self.random.uniform(0.5, 2))
        await self.site.sky.ask(f"ALTER ROLE {ROLE} RESET statement_timeout")
        await asyncio.to_thread(self.site.sky.end_sessions)

    async def operate(self) -> None:
        """Four operators who enqueue, cancel and retry."""
        self.operators.append(await asyncio.to_thread(self._operators))

    def _operators(self) -> subprocess.Popen[str]:
        address = self.site.sky.server.url.replace("/postgres?", f"/{NAME}?")
        return subprocess.Popen(
            [sys.executable, "-m", "tests.processes.run_operator", "160"],
            cwd=ROOT,
            env={
                **os.environ,
                "DATABASE_URL": address,
                "DJANGO_SETTINGS_MODULE": "tests.processes.settings",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
