"""Keeping: how a replica does its part of a checkpoint while it trains with others.

Owns the waits: for what is being written, for as long as its members may be broken up by a death,
and at the end.  Must not know what a checkpoint is, nor how a replica enters a generation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.member.followers import Followers
from pliant.engine.member.formed import Formed
from pliant.engine.member.membership_port import (
    KEPT_LOOK_S,
    KEPT_S,
    NOT_KEPT,
    TrainingCallbacks,
)
from pliant.engine.member.runtime import ProtocolRuntime
from pliant.wire.messages import SaveFailed

BUSY_S = 60.0
"""For how long a replica that waits for its last checkpoint asks to be waited for, each time."""


class Keeping:
    """See the module's text; one per process."""

    def __init__(
        self,
        runtime: ProtocolRuntime,
        callbacks: TrainingCallbacks,
        followers: Followers,
        current: Callable[[], Formed],
        recover: Callable[[str], None],
    ) -> None:
        """``current``: the generation it is in, or GroupBroken; ``recover``: enter the next."""
        self._runtime = runtime
        self._callbacks = callbacks
        self._followers = followers
        self._current = current
        self._recover = recover

    def await_kept(self) -> None:
        """Wait until this replica has done its part of what is being kept."""
        told_s, deadline_s = -math.inf, time.monotonic() + KEPT_S
        others_have = self._followers.ask_kept(self._runtime.member.current)
        while not (self._callbacks.is_kept() and others_have()):
            if time.monotonic() > deadline_s:
                replica, committed = self._runtime.member.replica, self._runtime.member.committed
                self._runtime.tell(
                    SaveFailed(replica=replica, committed=committed, reason=NOT_KEPT, retry_s=0.0)
                )
                break
            if time.monotonic() - told_s > BUSY_S / 3:
                told_s = time.monotonic()
                self._runtime.tell_busy(BUSY_S)
            if not self._runtime.released:
                self._current()
            self._runtime.await_news(KEPT_LOOK_S)
        if told_s > 0:
            self._runtime.tell_busy(0.0)

    def keep_to_the_end(self, *, is_new: bool = False) -> None:
        """Do this replica's part of the last checkpoint; of a new one once somebody has died."""
        while True:
            try:
                self.await_kept()
                if is_new:
                    is_new = False
                    self.keep()
                    continue
            except GroupBroken as broken:
                if self._runtime.released:  # nobody is left to do it with
                    return
                self._recover(broken.reason)
                is_new = True
            else:
                return

    def keep(self) -> None:
        """Keep the state of this boundary, on all workers of this replica."""
        group = self._current().group
        place = group.rank, group.size
        self._followers.keep(place, self._runtime.member)
        self._callbacks.keep(place, is_needed=True)
