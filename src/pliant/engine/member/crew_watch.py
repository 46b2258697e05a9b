"""Crew watch: where the main threads of all workers of a replica are, on its worker 0.

Owns asking the followers, and which answers are of now.  Must not know who asks, nor what is told
of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pliant.core.membership.failure import worker_activity
from pliant.core.membership.failure.worker_activity import Whereabouts
from pliant.core.values import NO_GENERATION, Generation
from pliant.engine.member.inner_messages import WhereAreYou, WorkerIsAt
from pliant.engine.member.main_thread import MainThreadWatch


class CrewWatch:
    """See the module's text; a lock is its owner's affair."""

    def __init__(self, places: Sequence[int]) -> None:
        """``places``: of the followers."""
        self.own = MainThreadWatch()
        self._places = places
        self._asked: dict[int, int] = {}
        self._said: dict[int, WorkerIsAt] = {}

    def ask(self, place: int) -> WhereAreYou | None:
        """Return the next question for a follower; None while it owes an answer.

        They would pile up before one that keeps the interpreter lock.
        """
        asked, said = self._asked.get(place, 0), self._said.get(place)
        if asked != (0 if said is None else said.number):
            return None
        self._asked[place] = asked + 1
        return WhereAreYou(number=asked + 1)

    def hear(self, answer: WorkerIsAt) -> None:
        """Take note of an answer."""
        self._said[answer.place] = answer

    def conclude(self, waiting: Generation, current: Generation) -> tuple[Generation, int | None]:
        """Return in which generation the replica waits for others, and which worker holds it up.

        ``waiting``: in which the main thread of worker 0 does; ``current``: in which it is.
        """
        own = Whereabouts.MEMBERS if waiting else self.own.locate()
        workers = [own, *map(self._whereabouts, self._places)]
        there = (waiting or current) if worker_activity.waits(workers) else NO_GENERATION
        return there, worker_activity.blocking_worker(workers)

    def _whereabouts(self, place: int) -> Whereabouts:
        said = self._said.get(place)
        if said is None or said.number != self._asked.get(place):  # it may be elsewhere by now
            return Whereabouts.ENGINE
        return said.where
