"""A process that serves heeds the signals that it was left to heed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from pliant.machine.event_loop import on_signals


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
