"""When a process that serves many looks through all its objects for garbage: while nothing waits.

Owns that all are looked through now and then, and else only those that were made since: with a
thousand connections a look takes a tenth of a second, in which nobody is answered.  Must not know
what the objects are, nor when it is calm.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

PAUSE_S = 30.0
"""Between two looks, in seconds: what waits for one by chance is less than one in a hundred."""

LOOK_S = 0.5
"""Between two looks whether it is calm, in seconds."""


async def collect_when_calm(is_calm: Callable[[], bool]) -> None:
    """Look through all objects while it is calm, and leave them alone until the next time."""
    try:
        while True:
            while not is_calm():
                await asyncio.sleep(LOOK_S)
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            await asyncio.sleep(PAUSE_S)
    finally:
        gc.unfreeze()
