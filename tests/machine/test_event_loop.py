"""A process that serves heeds the signals that it was left to heed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from pliant.machine.event_loop import aside, aside_first, on_signals


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
