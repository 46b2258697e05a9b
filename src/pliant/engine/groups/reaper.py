"""Group reaper: destroys groups in the background, one after another.

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

from pliant.engine.groups.gloo import GlooBackend

_AGAIN_S = 0.1
"""When to look again at a group whose communication thread still runs."""

GRACE_S = 2.0
"""How long a retired group keeps its connections; longer than a member is behind another."""

_DESTROY_S = 0.2
"""Destroying a group takes 10 ms, or as long as an operation that gloo has lost may take."""


class EndedGroup:
    """A group without its owner, for the reaper."""

    def __init__(
        self, backend: GlooBackend, thread: threading.Thread | None, quiesced: threading.Event
    ) -> None:
        self._backend = backend
        self._thread = thread
        self._quiesced = quiesced
        self._destroyer: threading.Thread | None = None

    def destroy(self) -> bool:
        """Free threads, sockets and memory; may block.  False: not possible yet, try again."""
        if self._thread is not None:
            self._thread.join(0.1)
            if self._thread.is_alive():  # in the middle of an addition, or of a caller's code
                return False
        if self._destroyer is None:
            self._destroyer = threading.Thread(
                target=self._backend.destroy, name="destroy", daemon=True
            )
            self._destroyer.start()
        self._destroyer.join(_DESTROY_S)
        if self._destroyer.is_alive() and not self._backend.is_silent():
            return False
        self._quiesced.set()
        return True


_Task = tuple[float, int, bool, EndedGroup]
"""When (monotonic seconds), serial number, whether it was abandoned, what."""


class GroupReaper:
    """One background thread and the groups that wait for it."""

    def __init__(self) -> None:
        self._arrivals: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._serial = itertools.count()
        self._changed = threading.Condition()
        self._abandoned = 0
        self._pending = 0
        self._thread: threading.Thread | None = None

    def destroy_later(self, ended: EndedGroup, *, grace_s: float | None = None) -> None:
        """Destroy ``ended`` in the background, at once if it was abandoned: without a grace."""
        is_abandoned = grace_s is None
        with self._changed:
            self._pending += 1
            self._abandoned += is_abandoned
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="reaper", daemon=True)
                self._thread.start()
        due_at = time.monotonic() + (grace_s or 0.0)
        self._arrivals.put((due_at, next(self._serial), is_abandoned, ended))

    @property
    def pending(self) -> int:
        """Groups not destroyed yet, those in their grace period included."""
        return self._pending

    def wait_until_below(self, limit: int, *, deadline_s: float) -> bool:
        """Wait until fewer than ``limit`` abandoned groups are left; False after ``deadline_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._abandoned < limit, deadline_s)

    def _work(self) -> None:
        waiting: list[_Task] = []
        while True:
            wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            try:
                heappush(waiting, self._arrivals.get(timeout=wait_s))
            except queue.Empty:
                self._attend(waiting)

    def _attend(self, waiting: list[_Task]) -> None:
        """Destroy what is due first."""
        _, serial, is_abandoned, ended = heappop(waiting)
        if not ended.destroy():
            heappush(waiting, (time.monotonic() + _AGAIN_S, serial, is_abandoned, ended))
            return
        del ended
        with self._changed:
            self._pending -= 1
            self._abandoned -= is_abandoned
            self._changed.notify_all()


REAPER = GroupReaper()
"""The one of this process.  A fork child must not use its parent's: groups start after the fork."""
