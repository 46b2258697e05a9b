"""Comm: what a job sees of its group, on the communication thread.

Owns waiting for operations of the backend: until they complete, the group ends, a member is gone or
the deadline has passed.  Must not know jobs, tickets, or who ends a group.
"""

from __future__ import annotations

import queue
import time
from typing import Any, cast

import torch

from pliant.engine.groups.ending import GroupBroken, GroupEnd
from pliant.engine.groups.gloo import GlooBackend, failures

_LOOK_S = 0.2
"""How often a collective that takes long looks whether a member's connection has ended."""

_LAST_WORDS_S = 0.4
"""How long gloo has to read what a member sent before its connection ended."""


class Comm:
    """What a job sees of the group; used on the communication thread only."""

    def __init__(
        self,
        end: GroupEnd,
        backend: GlooBackend | None,
        *,
        rank: int,
        size: int,
        collective_s: float,
    ) -> None:
        self._end = end
        self._backend = backend
        self.rank = rank
        """replica_rank of this member."""
        self.size = size
        """Number of members."""
        self._collective_s = collective_s
        self._bell: queue.SimpleQueue[torch.futures.Future[Any] | None] = queue.SimpleQueue()

    @property
    def backend(self) -> GlooBackend:
        """The device's operations; only where ``size`` > 1.

        Raises:
            GroupBroken: the group has ended.
        """
        self.check()
        return cast("GlooBackend", self._backend)

    def check(self) -> None:
        """Raise GroupBroken if the group has ended; long jobs call it now and then."""
        if self._end.ended:
            raise self._end.error()

    def run(self, *works: Any) -> None:
        """Wait until all of these collectives have completed.

        Raises:
            OperationFailed: one failed; breaks the group.
            GroupBroken: the group was abandoned, or ``collective_s`` passed.
        """
        for work in works:
            # Not work.wait(): an abandoned group could not wake it before gloo's own time-out.
            work.get_future().add_done_callback(self._bell.put)
        deadline_at = time.monotonic() + self._collective_s
        for _ in works:
            future = self._listen(deadline_at)
            self.check()
            if future is not None:
                with failures():
                    future.value()

    def block(self, work: Any) -> None:
        """Wait for a point-to-point operation; a cut of the connections ends it.

        Raises:
            OperationFailed: it failed; breaks the group.
        """
        self.backend.wait(work)
        self.check()

    def all_gather(self, row: torch.Tensor) -> torch.Tensor:
        """Return every member's row; see ``Group.all_gather``."""
        size, length = self.size, row.numel()
        if size == 1:
            return row.clone().view(1, length)
        # Not gloo's all-gather: it passes the rows along a ring, W - 1 delays instead of one.
        source = row.repeat(size)
        rows = torch.empty_like(source)
        splits = [length] * size
        self.run(self.backend.all_to_all(rows, source, splits, splits))
        return rows.view(size, length)

    def meet(self) -> None:
        """Return when all members have come to this call; the smallest collective there is.

        What a member wrote before it, the others see after it.
        """
        here = torch.zeros(self.size, dtype=torch.uint8)
        ones = [1] * self.size
        self.run(self.backend.all_to_all(torch.empty_like(here), here, ones, ones))

    def wake(self) -> None:
        """Ring the bell, from any thread: the group has ended."""
        self._bell.put(None)

    def close(self) -> None:
        """Let go of the backend, so that it can be destroyed."""
        self._backend = None

    def _listen(self, deadline_at: float) -> torch.futures.Future[Any] | None:
        """Wait for the bell; look now and then whether it can still ring.

        Gloo fails what waits for a peer whose connection ends, but not a send that it took up in
        that very moment: that one would wait for the deadline.
        """
        lost_at: float | None = None
        while (now := time.monotonic()) < deadline_at:
            try:
                return self._bell.get(timeout=min(_LOOK_S, deadline_at - now))
            except queue.Empty:
                if self._backend is None or not self._backend.has_lost_a_peer():
                    continue
            lost_at = now if lost_at is None else lost_at
            if now - lost_at >= _LAST_WORDS_S:
                raise self.broken("the connection of a member is closed")
        raise self.broken(f"no answer within {self._collective_s:g} s")

    def broken(self, reason: str) -> GroupBroken:
        """Return the error to raise: the reason of the group's end, else this one."""
        return GroupBroken(self._end.generation, self._end.reason or reason)
