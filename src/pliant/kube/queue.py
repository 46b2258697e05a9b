"""Which jobs to look at, and when: each once, however much was heard of it.

Owns the order and the pauses.  A key that is being worked on is not handed out a second time; what
is heard of it meanwhile has it looked at again afterwards.  Knows nothing of what is done with it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from pliant.kube.reflector import BackOff
from pliant.machine.event_loop import within

FIRST_RETRY_S = 0.05
MOST_RETRY_S = 30.0

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys and the moments at which each is due; of one event loop."""

    def __init__(
        self, rng: random.Random, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._rng = rng
        self._now_s = monotonic
        self._due: dict[K, float] = {}
        self._busy: set[K] = set()
        self._failures: dict[K, BackOff] = {}
        self._news = asyncio.Event()
        self.added = 0

    def __len__(self) -> int:
        """How many are due and wait for somebody to work on them."""
        now_s = self._now_s()
        return sum(at_s <= now_s for at_s in self._due.values())

    def add(self, key: K, after_s: float = 0.0) -> None:
        """Have a key looked at, at the latest after so many seconds."""
        at_s = self._now_s() + after_s
        if at_s < self._due.get(key, float("inf")):
            self._due[key] = at_s
            self.added += 1
            self._news.set()

    async def next_key(self) -> K:
        """Return the key that is due first, once one is; say ``done`` afterwards."""
        while True:
            self._news.clear()
            free = [(at_s, key) for key, at_s in self._due.items() if key not in self._busy]
            at_s, key = min(free, key=lambda one: one[0], default=(float("inf"), None))
            wait_s = at_s - self._now_s()
            if key is not None and wait_s <= 0:
                del self._due[key]
                self._busy.add(key)
                return key
            await within(self._news.wait(), min(wait_s, 3600.0))

    def done(self, key: K) -> None:
        """Say that nobody works on a key any more."""
        self._busy.discard(key)
        self._news.set()

    def failed(self, key: K, *, at_least_s: float = 0.0) -> float:
        """Have a key looked at again, later with each failure in a row; return in how long."""
        pause = self._failures.get(key)
        if pause is None:
            pause = self._failures[key] = BackOff(FIRST_RETRY_S, MOST_RETRY_S, self._rng)
        after_s = max(at_least_s, pause.next_s())
        self.add(key, after_s)
        return after_s

    def succeeded(self, key: K) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def forget(self, key: K) -> None:
        """Forget a key that there is no more."""
        self._due.pop(key, None)
        self._failures.pop(key, None)
