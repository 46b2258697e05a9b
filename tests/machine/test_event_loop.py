"""A process that serves heeds the signals that it was left to heed."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from pliant.machine import event_loop
from pliant.machine.event_loop import aside, aside_first, collect_when_calm, on_signals, pause_s


@pytest.fixture
def under_nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def heard(*numbers: int) -> list[int]:
    """Return which of these signals were heeded by who asked for all of them."""
    said: list[int] = []

    async def serve() -> None:
        with on_signals({number: partial(said.append, number) for number in numbers}):
            for number in numbers:
                os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)

    asyncio.run(serve())
    return said


def test_a_terminal_that_is_closed_is_heard() -> None:
    assert heard(signal.SIGHUP) == [signal.SIGHUP]


@pytest.mark.usefixtures("under_nohup")
def test_under_nohup_a_terminal_that_is_closed_is_not_heard() -> None:
    assert heard(signal.SIGHUP, signal.SIGUSR1) == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_what_is_called_aside_answers_or_raises_and_holds_up_no_end() -> None:
    never = threading.Event()

    async def call() -> None:
        assert await aside(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await aside(divmod, 7, 0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await aside(never.wait)

    asyncio.run(call())
    never.set()


def test_what_is_called_first_keeps_others_waiting_for_so_long_at_most() -> None:
    never = threading.Event()
    others: list[str] = []

    async def call() -> None:
        asyncio.get_running_loop().call_soon(others.append, "ran")
        assert await aside_first(5.0, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await aside_first(5.0, divmod, 7, 0)
        assert others == []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await aside_first(0.001, never.wait)
        assert others == ["ran"]

    asyncio.run(call())
    never.set()


DEADLINE_S = 50.0
"""Longest scene: a loaded machine takes seconds to look through what other tests have left."""


class Ring:
    """Garbage that only a look through all objects finds."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_found_while_it_is_calm_and_later_nothing_is_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "LOOK_S", 0.001)
    calm = False

    async def scene() -> None:
        nonlocal calm
        ring = Ring()
        gone = weakref.ref(ring)
        del ring
        collecting = asyncio.create_task(collect_when_calm(lambda: calm))
        await asyncio.sleep(0.02)
        assert gc.get_freeze_count() == 0

        calm = True
        while gc.get_freeze_count() == 0:
            await asyncio.sleep(0.001)

        assert gone() is None
        collecting.cancel()
        with suppress(asyncio.CancelledError):
            await collecting
        assert gc.get_freeze_count() == 0

    asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))


def test_what_is_new_is_left_alone_once_a_look_at_it_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_loop, "LOOK_S", 0.001)
    monkeypatch.setattr(event_loop, "LONG_S", 0.0)

    async def scene() -> None:
        collecting = asyncio.create_task(collect_when_calm(lambda: True))
        while (first := gc.get_freeze_count()) == 0:
            await asyncio.sleep(0.001)
        new = [[number] for number in range(10_000)]
        gc.collect()  # as the interpreter does by itself

        while gc.get_freeze_count() < first + len(new):
            await asyncio.sleep(0.001)

        collecting.cancel()
        with suppress(asyncio.CancelledError):
            await collecting
        assert gc.get_freeze_count() == 0
        assert not any("_long_looks" in repr(one) for one in gc.callbacks)

    asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))


def test_what_is_left_alone_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have become event_loop, which nobody finds meanwhile."""
    monkeypatch.setattr(event_loop, "LOOK_S", 0.001)
    monkeypatch.setattr(event_loop, "LONG_S", 0.0)
    monkeypatch.setattr(event_loop, "PAUSE_S", 1000.0)
    monkeypatch.setattr(event_loop, "MOST_TIMES", 1.1)

    async def scene() -> None:
        collecting = asyncio.create_task(collect_when_calm(lambda: True))
        while (first := gc.get_freeze_count()) == 0:
            await asyncio.sleep(0.001)
        ring = Ring()
        gone = weakref.ref(ring)
        gc.collect()
        while gc.get_freeze_count() == first:  # the ring is left alone
            await asyncio.sleep(0.001)
        del ring
        new = [[number] for number in range(first // 5)]
        gc.collect()

        while gone() is not None:
            await asyncio.sleep(0.001)

        assert len(new) == first // 5
        collecting.cancel()
        with suppress(asyncio.CancelledError):
            await collecting

    asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))


def test_of_all_time_less_than_a_ten_thousandth_is_spent_looking() -> None:
    assert pause_s(0.001) == 30.0
    assert pause_s(0.1) == 1000.0
