"""All objects are looked through while it is calm, and what is new of them otherwise."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from pliant.machine import garbage
from pliant.machine.garbage import collect_when_calm, pause_s

DEADLINE_S = 50.0
"""Longest scene: a loaded machine takes seconds to look through what other tests have left."""


class Ring:
    """Garbage that only a look through all objects finds."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_found_while_it_is_calm_and_later_nothing_is_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "LOOK_S", 0.001)
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
    monkeypatch.setattr(garbage, "LOOK_S", 0.001)
    monkeypatch.setattr(garbage, "LONG_S", 0.0)

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
    """It may have become garbage, which nobody finds meanwhile."""
    monkeypatch.setattr(garbage, "LOOK_S", 0.001)
    monkeypatch.setattr(garbage, "LONG_S", 0.0)
    monkeypatch.setattr(garbage, "PAUSE_S", 1000.0)
    monkeypatch.setattr(garbage, "MOST_TIMES", 1.1)

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
