"""What every process that serves does with its event loop: wait for so long, call what may never
return, and heed signals.

Owns nothing.  Knows nothing of what is waited for.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def within(awaited: Awaitable[T], limit_s: float) -> T | None:
    """Wait for something for so long at most; return None if it has not come."""
    try:
        async with asyncio.timeout(limit_s):
            return await awaited
    except TimeoutError:
        return None


async def aside(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call on a thread of its own; one whose storage never answers does not hold up the end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(lambda: None if done.done() else settle())

    def work() -> None:
        try:
            result = call(*args, **kwargs)
        except BaseException as error:  # a thread boundary: whoever waits gets it
            failure = error
            tell(lambda: done.set_exception(failure))
        else:
            tell(lambda: done.set_result(result))

    threading.Thread(target=work, name="aside", daemon=True).start()
    return await done


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
