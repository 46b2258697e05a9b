"""Which heartbeats of workers go up to the coordinator: of a thousand not all, but all news.

Owns that a heartbeat which says nothing new is left out until the coordinator needs one again; what
it says then is newer.  Must not know how a heartbeat travels.
"""

from __future__ import annotations

from pliant.core.events import Progressed
from pliant.core.heartbeats import HEARTBEAT_S
from pliant.core.values import ReplicaId

ALIVE_S = 1.0
"""Between two signs of life of an agent, in seconds."""

LIST_EVERY = 5
"""Signs of life between two lists of all that runs here."""


class Thinning:
    """Of the replicas of one node."""

    def __init__(self) -> None:
        self._last: dict[ReplicaId, tuple[float, Progressed]] = {}

    def is_needed(self, beat: Progressed, now_s: float, every_s: float) -> bool:
        """Whether this goes up, where the coordinator needs one every so many seconds.

        Worked out by moments half a heartbeat apart: they come now a little early, now late.
        """
        last_s, last = self._last.get(beat.replica, (float("-inf"), None))
        is_due = now_s - last_s >= every_s - HEARTBEAT_S / 2
        if not is_due and last is not None and _news(last) == _news(beat):
            return False
        self._last[beat.replica] = now_s, beat
        return True

    def forget(self, replica: ReplicaId) -> None:
        """Forget one that is gone."""
        self._last.pop(replica, None)


def _news(beat: Progressed) -> tuple[object, ...]:
    """Return what cannot wait; how far it is, for whom it waits and how slow it is can."""
    return beat.generation, beat.calls, beat.is_spoken_for, beat.held_up_by
