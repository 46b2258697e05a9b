"""Main thread: where that of a worker is, as another thread of its process can see.

Owns telling waiting for others of the replica from computing, and from hanging in the script; and,
on worker 0, asking the followers where theirs are.  Must not know the protocol, nor what follows:
``core.membership.failure.worker_activity`` decides that.

    says so itself     it waits on the inner channel, or for members of its place
    innermost frame    of torch.distributed: a collective inside the replica
                       of the engine: its own work
                       of anything else: the script

Who waits computes nothing: only a thread that has stood still for a while is said to wait for its
replica, for the collectives of a long forward are short waits, one after the other.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from pliant.core.membership.failure import worker_activity
from pliant.core.membership.failure.worker_activity import Whereabouts
from pliant.core.values import NO_GENERATION, Generation
from pliant.engine.member.inner_channel import WhereAreYou, WorkerIsAt

STILL_S = 3.0
"""How long the thread must have computed nothing, in seconds."""

STILL = 0.02
"""Part of the time that one computes that only looks up now and then."""

_PASSED_THROUGH = (
    "/threading.py",
    "/torch/_compile.py",
    "/torch/_dynamo/eval_frame.py",
    "/torch/_ops.py",
    "/torch/utils/_contextlib.py",
)
"""Files of frames that say nothing of who called."""


class MainThreadWatch:
    """Of this process; ``waiting`` is the main thread's, ``locate`` one other thread's."""

    def __init__(self) -> None:
        self._thread_id = threading.main_thread().ident or 0
        self._clock = time.pthread_getcpuclockid(self._thread_id)
        self._said: Whereabouts | None = None
        self._still_since = time.monotonic(), time.clock_gettime(self._clock)

    @contextmanager
    def waiting(self, where: Whereabouts) -> Iterator[None]:
        """Be there, and wait; a builder's thread that waits says nothing of the main thread."""
        if threading.get_ident() != self._thread_id:
            yield
            return
        before, self._said = self._said, where
        try:
            yield
        finally:
            self._said = before

    def locate(self) -> Whereabouts:
        """Return where the main thread is."""
        where = self._said or _place_of(sys._current_frames().get(self._thread_id))  # noqa: SLF001
        since_s, used_s = self._still_since
        now_s, now_used_s = time.monotonic(), time.clock_gettime(self._clock)
        if now_used_s - used_s > STILL * (1.0 + now_s - since_s):
            self._still_since = since_s, _ = now_s, now_used_s
        is_still = now_s - since_s >= STILL_S
        return where if where is not Whereabouts.REPLICA or is_still else Whereabouts.ENGINE


def _place_of(frame: FrameType | None) -> Whereabouts:
    while frame is not None and frame.f_code.co_filename.endswith(_PASSED_THROUGH):
        frame = frame.f_back
    if frame is None:
        return Whereabouts.ENGINE
    file = frame.f_code.co_filename
    if "/torch/distributed/" in file:
        return Whereabouts.REPLICA
    return Whereabouts.ENGINE if "/pliant/engine/" in file else Whereabouts.SCRIPT


class ReplicaThreads:
    """Those of all workers of a replica, on its worker 0; a lock is its owner's affair."""

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
