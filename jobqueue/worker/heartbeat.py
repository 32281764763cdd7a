"""The beat: renews every lease, hears of cancels and losses; and the trust that each lease has."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import structlog

from jobqueue.conf import Settings
from jobqueue.store import beats, workers
from jobqueue.store.connections import Session
from jobqueue.store.workers import Identity
from jobqueue.worker.executor import Executor
from jobqueue.worker.held import Held, Registry, Stop
from jobqueue.worker.kernel import Neighbours
from jobqueue.worker.leader import Leader
from jobqueue.worker.listener import Listener
from jobqueue.worker.weather import Patience

log = structlog.get_logger("jobqueue")


class Heartbeat:
    """One statement a beat, within one budget; a failed beat is repeated after a quarter."""

    def __init__(
        self,
        session: Session,
        identity: Identity,
        settings: Settings,
        registry: Registry,
        executor: Executor,
        patience: Patience,
        *,
        listener: Listener | None,
        leader: Leader | None,
        phase: Callable[[], str],
        on_beat: Callable[[], None],
        leave: Callable[[str], None],
    ) -> None:
        self.session, self.identity, self.settings = session, identity, settings
        self.registry, self.executor, self.patience = registry, executor, patience
        self.listener, self.leader = listener, leader
        self.phase, self.on_beat, self.leave = phase, on_beat, leave
        self.neighbours = Neighbours(session, identity.id, settings)
        self.paused: tuple[str, ...] = ()
        self.good_at = time.monotonic()
        self._hint = asyncio.Event()

    def now(self) -> None:
        """Beat at once: somebody has asked for a cancel."""
        self._hint.set()

    async def run(self) -> None:
        """The service; goes on through the whole shutdown, until it is cancelled."""
        every = self.settings.heartbeat_seconds
        while True:
            start = asyncio.get_running_loop().time()
            self._hint.clear()
            try:
                await self.beat()
            except Exception as error:
                self.patience.failed(error)
                wait = every / 4
            else:
                self.patience.succeeded()
                wait = start + every - asyncio.get_running_loop().time()
            self.on_beat()  # also after a failed one: it is the loop that shows itself alive
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(wait, 0)):
                    await self._hint.wait()

    async def beat(self) -> None:
        """One beat, the whole of it within the budget."""
        loop = asyncio.get_running_loop()
        told, sent = self.registry.renewable(), loop.time()
        answer = await self.session.call(
            beats.beat,
            self.settings.beat_budget_seconds,
            self.identity.id,
            [beats.Held(held.claim.id, held.token, self._not_ending(held, sent)) for held in told],
            lease=self.settings.lease_seconds,
            phase=self.phase(),
            wake=self.listener.state if self.listener else "polling: NOTIFY is off",
            silence=self.neighbours.silence_seconds,
            channel=self.listener.channel if self.listener else "",
            proof=self.listener.next_proof() if self.listener else "",
        )
        self.good_at = time.monotonic()
        self._apply(told, answer, sent)
        if answer.died_at is not None:
            self.leave("somebody certified this process as dead")
        elif not answer.registered:
            budget = self.settings.beat_budget_seconds
            await self.session.call(workers.register, budget, self.identity)
        if answer.silent:
            await self.neighbours.look()

    def _not_ending(self, held: Held, now: float) -> float | None:
        waited = now - held.told_first_at
        patience = self.settings.cancel_seconds
        ignoring = held.told is not None and not held.ended and waited > patience
        return waited if ignoring else None

    def _apply(self, told: list[Held], answer: beats.Beat, sent: float) -> None:
        for held in told:
            if held.token in answer.renewed:
                held.trusted_from = sent
            elif held.token not in answer.busy and held.fate is None:
                self._lost(held)
        for token in answer.cancelled:
            held_one = self.registry.get(token)
            if held_one is not None:
                self.executor.stop(held_one, Stop.CANCEL)
        self.paused = answer.paused
        if self.leader is not None:
            self.leader.vacant() if answer.leader_vacant else self.leader.occupied()

    def _lost(self, held: Held) -> None:
        """No row bears the token any more. An outcome that is just being written looks the same,
        so only a handler that still runs is told."""
        if held.ended or held.recording is not None:
            return
        held.lost = True
        log.warning("lease_lost", job=held.claim.id, task=held.claim.task, wanted=None)
        self.executor.stop(held, Stop.LEASE)


class Trust:
    """Stops handlers while their leases still hold. Time alone decides, a timer per token."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        executor: Executor,
        leave_hard: Callable[[str], None],
    ) -> None:
        self.registry, self.executor, self.leave_hard = registry, executor, leave_hard
        # Counted from the sending of the last good claim or renewal.
        self.end_seconds = settings.lease_seconds - settings.lease_margin_seconds
        self.cancel_seconds = settings.cancel_seconds
        self.stop_seconds = self.end_seconds - settings.cancel_seconds

    async def run(self) -> None:
        """The service: sleeps until the next lease falls short."""
        while True:
            now = asyncio.get_running_loop().time()
            due = now + self.stop_seconds  # a claim of this moment falls due no earlier
            for held in self.registry:
                if held.ended:
                    continue
                end = held.trusted_from + self.end_seconds
                stop = held.trusted_from + self.stop_seconds
                if stop <= now:
                    self._give_up(held)
                    # After a freeze the end has passed already: the handler gets its time first.
                    end = max(end, held.told_at + self.cancel_seconds)
                if end <= now:
                    self.leave_hard(f"job {held.claim.id} outlives the trust in its lease")
                    return
                due = min(due, end if stop <= now else stop)
            await asyncio.sleep(max(due - now, 0.005))

    def _give_up(self, held: Held) -> None:
        if held.told is None:
            log.warning("lease_not_renewed", job=held.claim.id, task=held.claim.task)
            self.executor.stop(held, Stop.LEASE)
