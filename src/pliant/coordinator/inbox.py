"""What agents, people and time tell the core of a job, in the order in which it came.

Owns the queue, and that everybody who waits for an answer gets one, if only that there is none.
Knows nothing of what is said.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pliant.core.events import Event
from pliant.core.job.state import Ready
from pliant.machine.event_loop import within

MOST_AT_ONCE = 256
"""Events that are taken together, if so many are there."""

LOOKS = 3
"""Turns of the event loop until what had come before the first of them is read and queued."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """An event and, if someone waits for it, where the core's answer goes."""

    event: Event
    future: asyncio.Future[Ready | None] | None = None

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for the answer."""
        return self.future is not None

    def answer(self, ready: Ready | None) -> None:
        """Tell who asked; the first answer counts, and None says that there is none."""
        if self.future is not None and not self.future.done():
            self.future.set_result(ready)


class Inbox:
    """The one queue of a job."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Incoming] = asyncio.Queue()
        self._later: deque[Incoming] = deque()
        self._is_closed = False

    def put(self, event: Event) -> None:
        """Queue an event."""
        self._queue.put_nowait(Incoming(event))

    async def ask(self, event: Event) -> Ready | None:
        """Queue an event and return what the core says to it; None if it says nothing any more."""
        if self._is_closed:
            return None
        asked = Incoming(event, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(asked)
        return await asked.future if asked.future is not None else None

    async def take_events(self, limit_s: float) -> Sequence[Incoming]:
        """Wait for an event, for so long at most, and return all that are there by then."""
        first = self._later.popleft() if self._later else await within(self._queue.get(), limit_s)
        return [] if first is None else [first, *self.taken(MOST_AT_ONCE - 1)]

    def taken(self, most: int = MOST_AT_ONCE) -> list[Incoming]:
        """Return what is there, of much so many."""
        found = [self._later.popleft() for _ in range(min(most, len(self._later)))]
        number = min(most - len(found), self._queue.qsize())
        return found + [self._queue.get_nowait() for _ in range(number)]

    def put_back(self, taken: Iterable[Incoming]) -> None:
        """Have these taken again, before all that is there."""
        self._later.extendleft(reversed(list(taken)))

    async def has_more(self) -> bool:
        """Look at what every connection has, and say whether there is an event."""
        for _ in range(LOOKS):
            if self._later or not self._queue.empty():
                return True
            await asyncio.sleep(0)
        return not self._queue.empty()

    def close(self) -> None:
        """Answer nothing to whoever still waits, or asks later."""
        self._is_closed = True
        while left := self.taken():
            for one in left:
                one.answer(None)
