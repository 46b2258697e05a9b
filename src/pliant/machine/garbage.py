"""When a process that serves many looks through all its objects for garbage: while nothing waits.

Owns that all are looked through now and then, and else only those that were made since: with a
thousand connections a look takes a tenth of a second, in which nobody is answered.  Must not know
what the objects are, nor when it is calm.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

PAUSE_S = 30.0
"""Between two looks, in seconds, or longer."""

LOOKS_APART = 1000
"""Looks that there would be time for between two: what waits for one by chance is less than one in
a thousand."""

LOOK_S = 0.5
"""Between two looks whether it is calm, in seconds."""


async def collect_when_calm(is_calm: Callable[[], bool]) -> None:
    """Look through all objects while it is calm, and leave them alone until the next time."""
    try:
        while True:
            while not is_calm():
                await asyncio.sleep(LOOK_S)
            began_s = time.thread_time()
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            await asyncio.sleep(pause_s(time.thread_time() - began_s))
    finally:
        gc.unfreeze()


def pause_s(look_s: float) -> float:
    """Return how long nothing is looked through after a look that took so long."""
    return max(PAUSE_S, LOOKS_APART * look_s)
