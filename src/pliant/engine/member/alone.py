"""Alone: the membership of a script without an agent, one member in one generation.

Owns going on from the newest checkpoint that can be used.  Must not know groups or agents.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch

from pliant.core.durability import nothing_to_do
from pliant.core.errors import ConfigError, PermanentError
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Member
from pliant.core.values import (
    NO_CHECKPOINT,
    NO_LINEAGE,
    CheckpointInfo,
    Generation,
    Lineage,
    Order,
    ReplicaId,
    Seat,
)
from pliant.engine.comm.group import Group
from pliant.engine.evaluation import EvaluationTeam, SingleMemberTeam
from pliant.engine.member.formed import Formed, Shape, form
from pliant.engine.member.membership_port import (
    KEPT_LOOK_S,
    KEPT_S,
    NOT_KEPT,
    Condition,
    Ending,
    StepDecision,
    TrainingCallbacks,
    VoteRequests,
)
from pliant.engine.state.durable import CheckpointDamaged

ALONE = ReplicaId("alone")

PASSED = (
    "this run is at step {}, past this call of steps(): until it is there nobody leads, and "
    "session.save leaves as it is what was written then"
)


class Alone:
    """The membership of a script without an agent: one member, one generation."""

    def __init__(
        self,
        shape: Shape,
        callbacks: TrainingCallbacks,
        *,
        found: Sequence[CheckpointInfo] = (),
        noted: Callable[[str], None] = lambda text: None,
    ) -> None:
        order = Order(generation=Generation(1), members=(Seat(replica=ALONE, endpoint=""),))
        self.member = Member(replica=ALONE, has_state=True, current=order.generation)
        self._formed = form(order, Group.alone(order.generation), shape, replica=ALONE)
        self._callbacks = callbacks
        self._found = list(found)
        self._newest = max((one.lineage for one in found), default=NO_LINEAGE)
        self._noted = noted
        self._restored: int | None = None
        self._ending = Ending.NONE
        self.leads = True
        self.place = (0, 1)
        self.asked_after = -1

    def arrive(self, total: int = 0) -> bool:
        """Be a member; first go on from the newest checkpoint, in the call that it was taken in.

        Raises:
            ConfigError: there are checkpoints, and none can be used.
        """
        del total
        damaged = ""
        while self._found:
            newest = self._found[0]
            if newest.calls > self.member.calls:
                if self.leads:
                    self._noted(PASSED.format(newest.committed))
                self.leads = False  # the weights here are not those that were there then
                self.member = protocol.call_finished(self.member)
                return False
            self.leads = True
            if newest.calls == self.member.calls and not (damaged := self._restore(newest)):
                return True
            self._found.pop(0)
        if damaged:
            raise ConfigError(
                f"no checkpoint of this run can be used; the last one tried: {damaged}; look with "
                "`pliant checkpoint verify`, or remove them all to start from step 0"
            )
        return True

    def _restore(self, found: CheckpointInfo) -> str:
        """Go on from a checkpoint; return what is wrong with it, if it cannot be used."""
        try:
            if found.name != NO_CHECKPOINT:
                self._callbacks.restore(found.name, found.committed)
                self._restored = found.committed
        except CheckpointDamaged as error:
            self._noted(f"checkpoint {found.name} is skipped: {error}")
            return f"{found.name}: {error}"
        self._found = []
        lineage = Lineage(self._newest + 1)  # never that of one that was skipped
        self.member = protocol.restored(self.member, found.committed, lineage)
        return ""

    def formed(self) -> Formed:
        """Return the one generation."""
        return self._formed

    def reduce(self) -> list[torch.Tensor]:
        """Return the sums of the only member."""
        return self._formed.reduction.finish()

    def decide(self, step: int, condition: Condition, requests: VoteRequests) -> StepDecision:
        """Commit: the only member has voted."""
        self.member = protocol.voted(self.member, step)
        self.member = protocol.committed(self.member, self.member.current)
        if requests.stop:
            self._ending = Ending.SCRIPT
        return StepDecision(generation=self.member.current, is_leader=True, is_saved=requests.save)

    def recover(self, reason: str) -> None:
        """Never called: there is no group to break."""
        raise AssertionError(reason)

    def settle(self, *, is_over: bool, is_last: bool = False) -> Ending:
        """Return whether the script asked to stop; at the end of a call, count it."""
        del is_last
        if is_over:
            self.member = protocol.call_finished(self.member)
        return self._ending

    def team(self, generation: Generation) -> EvaluationTeam:
        """Return the team of one."""
        return SingleMemberTeam()

    def tell_busy(self, max_s: float) -> None:
        """Nobody supervises."""

    def told(self, call: str, flag: bool) -> bool:
        """Return what the only worker says."""
        del call
        return flag

    def await_kept(self) -> None:
        """Wait for what is being written."""
        look, deadline_s = threading.Event(), time.monotonic() + KEPT_S
        while not self._callbacks.is_kept():
            if time.monotonic() > deadline_s:
                self._noted(NOT_KEPT)
                return
            look.wait(KEPT_LOOK_S)

    def finish(self, *, has_left_loop: bool) -> None:
        """Nobody needs this replica, once its state is kept.

        Raises:
            PermanentError: it could not be kept.
        """
        self.await_kept()
        if why := self._callbacks.unsaved() or NOT_KEPT * (not self._callbacks.is_kept()):
            raise PermanentError(f"step {self.member.committed} is not in a checkpoint: {why}")
        if self._restored == self.member.committed and not has_left_loop:
            self._noted(nothing_to_do(self.member.committed))
