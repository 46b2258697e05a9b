"""Undertaker: destroys groups in the background, one after another.

Owns the last part of a group's life, when nobody looks at it any more: destroying one takes
about 10 ms once its sockets are cut, and its whole time-out where they are not.  Must not know
why a group ended.

A group that ended well waits for a grace period first, because a slower member may still read
what this one has sent.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from heapq import heappop, heappush
from typing import Protocol

GRACE_S = 2.0
"""How long a retired group keeps its connections; longer than a member is behind another."""


class Remains(Protocol):
    """What is left of a group."""

    def destroy(self) -> None:
        """Free threads, sockets and memory; may block."""
        ...


class Undertaker:
    """One background thread and the groups that wait for it."""

    def __init__(self) -> None:
        self._arrivals: queue.SimpleQueue[tuple[float, int, Remains]] = queue.SimpleQueue()
        self._serial = itertools.count()
        self._changed = threading.Condition()
        self._urgent = 0
        self._resting = 0
        self._thread: threading.Thread | None = None

    def bury(self, remains: Remains, *, grace_s: float = 0.0) -> None:
        """Destroy ``remains`` after ``grace_s`` in the background; returns at once."""
        with self._changed:
            if grace_s:
                self._resting += 1
            else:
                self._urgent += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="undertaker", daemon=True)
                self._thread.start()
        due_at = time.monotonic() + grace_s if grace_s else 0.0
        self._arrivals.put((due_at, next(self._serial), remains))

    @property
    def unburied(self) -> int:
        """Groups not destroyed yet, those in their grace period included."""
        with self._changed:
            return self._urgent + self._resting

    def wait_until_below(self, limit: int, *, deadline_s: float) -> bool:
        """Wait until fewer than ``limit`` abandoned groups are left; False after ``deadline_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._urgent < limit, deadline_s)

    def _work(self) -> None:
        waiting: list[tuple[float, int, Remains]] = []
        while True:
            wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            try:
                heappush(waiting, self._arrivals.get(timeout=wait_s))
            except queue.Empty:
                due_at, _, remains = heappop(waiting)
                remains.destroy()
                del remains
                self._done(urgent=due_at == 0.0)

    def _done(self, *, urgent: bool) -> None:
        with self._changed:
            if urgent:
                self._urgent -= 1
            else:
                self._resting -= 1
            self._changed.notify_all()


UNDERTAKER = Undertaker()
"""The one of this process.  A fork child must not use its parent's: groups start after the fork."""
