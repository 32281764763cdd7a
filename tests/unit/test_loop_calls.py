"""Threads hand their ends to the loop."""

import asyncio
import threading
from contextvars import ContextVar, copy_context

import pytest

from jobqueue.worker.execution.loop_calls import LoopCalls


async def test_calls_that_come_together_wake_the_loop_once(monkeypatch) -> None:
    loop, inbox, made, wakes = asyncio.get_running_loop(), LoopCalls(copy_context()), [], []
    wake = loop.call_soon_threadsafe
    monkeypatch.setattr(
        loop, "call_soon_threadsafe", lambda *args, **kwargs: wakes.append(1) or wake(*args)
    )
    for number in range(50):
        inbox.put(loop, lambda number=number: made.append(number))
    while len(made) < 50:
        await asyncio.sleep(0)
    assert made == list(range(50))
    assert len(wakes) == 1


async def test_none_is_left_behind_by_a_wake_that_is_just_over() -> None:
    loop, inbox, made, every = asyncio.get_running_loop(), LoopCalls(copy_context()), [], 2_000

    def hand_over() -> None:
        for _ in range(every):
            inbox.put(loop, lambda: made.append(1))

    threads = [threading.Thread(target=hand_over) for _ in range(4)]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(30):
        while len(made) < 4 * every:
            await asyncio.sleep(0)
    for thread in threads:
        thread.join()


async def test_one_call_that_raises_stops_no_other_and_each_has_a_context_of_its_own() -> None:
    loop, heard, seen = asyncio.get_running_loop(), [], []
    loop.set_exception_handler(lambda loop, facts: heard.append(facts["exception"]))
    name: ContextVar[str] = ContextVar("name", default="nobody's")
    inbox = LoopCalls(copy_context())

    def broken() -> None:
        name.set("the broken one's")
        raise ZeroDivisionError

    inbox.put(loop, broken)
    inbox.put(loop, lambda: seen.append(name.get()))
    while not seen:
        await asyncio.sleep(0)
    assert seen == ["nobody's"]
    assert [type(error) for error in heard] == [ZeroDivisionError]


async def test_a_wake_that_fails_keeps_nobody_else_from_waking(monkeypatch) -> None:
    loop, inbox, made = asyncio.get_running_loop(), LoopCalls(copy_context()), []

    def broken(*args, **kwargs):
        raise RecursionError

    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", broken)
        with pytest.raises(RecursionError):
            inbox.put(loop, lambda: made.append(1))
    inbox.put(loop, lambda: made.append(2))
    async with asyncio.timeout(30):
        while made != [1, 2]:
            await asyncio.sleep(0)


def test_a_closed_loop_is_refused() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError):
        LoopCalls(copy_context()).put(loop, print)
