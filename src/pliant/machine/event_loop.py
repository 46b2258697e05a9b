"""What every process that serves does with its event loop: wait for so long, call what may never
return, and heed signals.

Owns nothing.  Knows nothing of what is waited for.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

WARNING_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""What Slurm sends where it is asked to warn (``--signal=USR1@60``), however long before."""

END_SIGNALS = (signal.SIGTERM, signal.SIGHUP, *WARNING_SIGNALS)
"""What asks a whole job to end: of a batch system, a service manager, a closed terminal."""


async def within(awaited: Awaitable[T], limit_s: float) -> T | None:
    """Wait for something for so long at most; return None if it has not come."""
    try:
        async with asyncio.timeout(limit_s):
            return await awaited
    except TimeoutError:
        return None


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait until they have ended, however they do."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(*events: asyncio.Event, limit_s: float | None = None) -> bool:
    """Wait until one of these is set, for so long at most; whether one is.

    Whoever waits goes on in the same turn of the event loop.
    """
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    return bool(done)


async def aside(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call on a thread of its own; one whose storage never answers does not hold up the end."""
    return await asyncio.wrap_future(begin_aside(lambda: call(*args, **kwargs)))


async def aside_first(hold_s: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call on a thread of its own, and let nothing else run meanwhile, for ``hold_s`` at most.

    For what everything waits for.  A busy loop gives Python's lock away only every 5 ms, and the
    thread asks for it anew after each look at the storage; and what is awaited goes on only after
    all that was read meanwhile.
    """
    outcome = begin_aside(lambda: call(*args, **kwargs))
    if futures.wait([outcome], hold_s).done:
        return outcome.result()
    return await asyncio.wrap_future(outcome)


def begin_aside(call: Callable[[], T]) -> futures.Future[T]:
    """Begin a call on a thread of its own, which nobody can take back, and no exit waits for."""
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
