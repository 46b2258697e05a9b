"""What every process that serves does with its event loop: wait for so long, and heed signals.

Owns nothing.  Knows nothing of what is waited for.
"""

from __future__ import annotations

import asyncio
import signal
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
    """Call these when this process gets a signal meanwhile; not on a SIGHUP under nohup."""
    loop = asyncio.get_running_loop()
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heeded = [number for number in handlers if not (is_nohup and number == signal.SIGHUP)]
    for number in heeded:
        loop.add_signal_handler(number, handlers[number])
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
