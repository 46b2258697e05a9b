"""What will happen when, in simulated time: a queue that gives the same order every time.

Owns the order: by moment, then by who came first.  Knows nothing of what happens.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

Timer = list[Any]
"""``[at_s, number, call]``; the call is None once it is over or called off."""


class EventQueue:
    """Calls at moments of simulated seconds."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._number = 0

    def at(self, at_s: float, call: Callable[[], None]) -> Timer:
        """Let something happen at a moment; the timer can be called off."""
        self._number += 1
        timer: Timer = [at_s, self._number, call]
        heapq.heappush(self._heap, timer)
        return timer

    @property
    def next_s(self) -> float:
        """When the next call is due; inf: never."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def pop(self) -> Callable[[], None]:
        """Return the next call; there must be one."""
        timer = heapq.heappop(self._heap)
        call: Callable[[], None] = timer[2]
        timer[2] = None
        return call


def call_off(timer: Timer | None) -> None:
    """Let something not happen; None, or what has happened already, changes nothing."""
    if timer is not None:
        timer[2] = None
