"""What every process that serves does with its event loop: wait for so long, call what may never
return, and heed signals.

Owns nothing.  Knows nothing of what is waited for.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager, suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

END_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What asks a whole job to end: of a batch system, a service manager, a closed terminal.  Slurm
sends SIGUSR1 or SIGUSR2 where it is asked to warn (``--signal=USR1@60``)."""


async def within(awaited: Awaitable[T], limit_s: float) -> T | None:
    """Wait for something for so long at most; return None if it has not come."""
    try:
        async with asyncio.timeout(limit_s):
            return await awaited
    except TimeoutError:
        return None


async def aside(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call on a thread of its own; one whose storage never answers does not hold up the end."""
    return await _awaited(_begun(lambda: call(*args, **kwargs)))


async def aside_first(hold_s: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call on a thread of its own, and let nothing else run meanwhile, for ``hold_s`` at most.

    For what everything waits for.  A busy loop gives Python's lock away only every 5 ms, and the
    thread asks for it anew after each look at the storage; and what is awaited goes on only after
    all that was read meanwhile.
    """
    outcome = _begun(lambda: call(*args, **kwargs))
    if futures.wait([outcome], hold_s).done:
        return outcome.result()
    return await _awaited(outcome)


def _begun(call: Callable[[], T]) -> futures.Future[T]:
    """Begin a call on a thread of its own, which nobody can take back."""
    outcome: futures.Future[T] = futures.Future()
    outcome.set_running_or_notify_cancel()

    def work() -> None:
        try:
            result = call()
        except BaseException as error:  # a thread boundary: whoever waits gets it
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=work, name="aside", daemon=True).start()
    return outcome


async def _awaited(outcome: futures.Future[T]) -> T:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(_outcome: futures.Future[T]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(lambda: None if done.done() else done.set_result(None))

    outcome.add_done_callback(tell)
    await done
    return outcome.result()


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
