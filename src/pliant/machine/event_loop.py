"""What every process that serves does with its event loop: wait for so long, and heed signals.

Owns nothing.  Knows nothing of what is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


async def within(awaited: Awaitable[T], limit_s: float) -> T | None:
    """Wait for something for so long at most; return None if it has not come."""
    try:
        async with asyncio.timeout(limit_s):
            return await awaited
    except TimeoutError:
        return None


@contextmanager
def on_signals(handlers: Mapping[int, Callable[[], object]]) -> Iterator[None]:
    """Call these when this process gets a signal meanwhile."""
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
