"""Main thread: where that of a worker is, as another thread of its process can see.

Owns telling waiting for others of the replica from computing, and from hanging in the script.  Must
not know the protocol, nor what follows: ``core.membership.failure.worker_activity`` decides that.

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
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pliant.core.membership.failure.worker_activity import Whereabouts

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
