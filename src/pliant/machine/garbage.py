"""When a process that serves many looks through all its objects for garbage: while nothing waits.

Owns that all are looked through now and then, and else only those that were made since: with a
thousand connections a look takes a tenth of a second, in which nobody is answered.  The interpreter
looks through those that are new by itself; once that takes long, those are left alone, too, up to a
bound: what becomes garbage while it is left alone stays until all are looked through.  Must not
know what the objects are, nor when it is calm.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAUSE_S = 30.0
"""Between two looks, in seconds, or longer."""

LOOKS_APART = 10_000
"""Looks that there would be time for between two: what waits for one by chance is less than one in
ten thousand."""

LOOK_S = 0.5
"""Between two looks whether it is calm, in seconds."""

MOST_TIMES = 2
"""Of the objects that a look through all has left: with more of them all are looked through again,
and those that grow for good are so once for each time that they double."""

LONG_S = 0.01
"""A look at what is new takes too long from here on, in seconds: once it is calm, that is left
alone, too."""


async def collect_when_calm(is_calm: Callable[[], bool]) -> None:
    """Look through all objects while it is calm, and leave them alone until the next time."""
    try:
        with _long_looks() as long_looks:
            while True:
                await _until(is_calm)
                gc.unfreeze()
                next_s = time.monotonic() + pause_s(_look_through(long_looks))
                most = MOST_TIMES * gc.get_freeze_count()
                while gc.get_freeze_count() <= most and await _until_either(long_looks, next_s):
                    await _until(is_calm)
                    _look_through(long_looks)
    finally:
        gc.unfreeze()


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(LOOK_S)


async def _until_either(long_looks: deque[float], next_s: float) -> bool:
    """Wait for a look that was long, or until then; return whether there was one."""
    await _until(lambda: bool(long_looks) or time.monotonic() >= next_s)
    return time.monotonic() < next_s


def _look_through(long_looks: deque[float]) -> float:
    """Look through what is not left alone, and leave that alone; return how long it took."""
    began_s = time.monotonic()
    gc.collect()
    gc.freeze()
    long_looks.clear()
    return time.monotonic() - began_s


@contextmanager
def _long_looks() -> Iterator[deque[float]]:
    """Note how long the last look took that was too long, in seconds."""
    found: deque[float] = deque(maxlen=1)
    began_s = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began_s
        if phase == "start":
            began_s = time.monotonic()
        elif (took_s := time.monotonic() - began_s) > LONG_S:
            found.append(took_s)

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


def pause_s(look_s: float) -> float:
    """Return how long nothing is looked through after a look that took so long."""
    return max(PAUSE_S, LOOKS_APART * look_s)
