"""Checkpoint channels: whom a writer of checkpoints asks and tells, alone and in a job.

Owns the sides of ``state.durable.CheckpointChannel``.  Must not know what a checkpoint is made
of.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from pliant.core.durability import LEAVE_S
from pliant.core.events import PublishAsked, Saved
from pliant.core.values import Lineage
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
from pliant.engine.worker.reporter import Reporter
from pliant.wire.messages import IntervalChosen, Resumed, SaveFailed

ASK_S = 2.0
"""Between two times of asking: the coordinator may have been replaced meanwhile, in seconds."""


class LocalCheckpointChannel:
    """Of a script that runs alone: nobody else decides."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    is_register_gone = False

    def may_publish(self, name: str, *, committed: int, lineage: Lineage) -> bool:
        """Say yes: whoever holds the place of the checkpoints is the run."""
        return True

    def saved(
        self,
        name: str,
        *,
        committed: int,
        lineage: Lineage,
        calls: int,
        seconds: float,
        place: str,
        digest: str,
    ) -> None:
        """Say nothing: the file is there to be seen."""

    def failed(self, reason: str, *, committed: int, retry_s: float | None) -> None:
        """Write one line."""
        again = "" if not retry_s else f"; trying again in {retry_s:g} s"
        self._reporter.noted(f"no checkpoint after step {committed}: {reason}{again}")

    def resumed(self, sentence: str) -> None:
        """Write one line."""
        self._reporter.noted(f"the run {sentence}")

    def explained(self, reason: str) -> None:
        """Write one line."""
        self._reporter.noted(reason)

    def noted(self, text: str, *, lasting: bool = False) -> None:
        """Write one line."""
        self._reporter.noted(text, lasting=lasting)


class FollowerCheckpointChannel(LocalCheckpointChannel):
    """Of a worker that another speaks for: it tells what kept its own share from being written."""

    def resumed(self, sentence: str) -> None:
        """Say nothing: worker 0 does."""


class CoordinatorCheckpointChannel:
    """Of a worker: asks the coordinator, which alone knows whether this history still counts."""

    def __init__(self, runtime: ProtocolRuntime, reporter: Reporter) -> None:
        self._runtime = runtime
        self._replica = runtime.member.replica
        self._reporter = reporter

    @property
    def is_register_gone(self) -> bool:
        """Whether the coordinator has said so with its leave."""
        return self._runtime.is_register_gone

    def may_publish(self, name: str, *, committed: int, lineage: Lineage) -> bool:
        """Ask until there is an answer; False if there is none, or this replica is dismissed."""
        question = PublishAsked(
            replica=self._replica, lineage=lineage, committed=committed, checkpoint=name
        )
        deadline_s = time.monotonic() + LEAVE_S
        while time.monotonic() < deadline_s:
            self._runtime.tell(question)
            if self._runtime.await_leave(name, ASK_S):
                return True
        return False

    def saved(
        self,
        name: str,
        *,
        committed: int,
        lineage: Lineage,
        calls: int,
        seconds: float,
        place: str,
        digest: str,
    ) -> None:
        """Tell the coordinator."""
        self._runtime.tell(
            Saved(
                replica=self._replica,
                lineage=lineage,
                committed=committed,
                checkpoint=name,
                calls=calls,
                seconds=seconds,
                place=place,
                digest=digest,
            )
        )

    def failed(self, reason: str, *, committed: int, retry_s: float | None) -> None:
        """Tell people, and that the job is to end if ``retry_s`` is None."""
        self._runtime.tell(
            SaveFailed(replica=self._replica, committed=committed, reason=reason, retry_s=retry_s)
        )

    def resumed(self, sentence: str) -> None:
        """Tell people."""
        self._runtime.tell(Resumed(replica=self._replica, sentence=sentence))

    def explained(self, reason: str) -> None:
        """Tell people."""
        self._runtime.tell(IntervalChosen(replica=self._replica, reason=reason))

    def noted(self, text: str, *, lasting: bool = False) -> None:
        """Pass on one sentence."""
        self._reporter.noted(text, lasting=lasting)


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
