"""Membership, as a session sees it: who trains now, and how a step becomes final.

Owns the seam between the session and the protocol, and the membership of a script that runs
alone.  Must not know tensors' meaning, optimizers or data: it calls back where those are needed
(``TrainingCallbacks``).  ``engine.protocol.elastic`` is the other implementation.

All protocol state is one ``core.membership.member.Member`` value; whoever holds it replaces it,
never changes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pliant.core.errors import ConfigError
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Member
from pliant.core.step import batching
from pliant.core.step.batching import Node
from pliant.core.values import NO_LINEAGE, Found, Generation, Lineage, Order, ReplicaId, Seat
from pliant.engine.evaluation import EvaluationTeam, SingleMemberTeam
from pliant.engine.groups.group import Group
from pliant.engine.reduce import shared_memory
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.exchange import Reduction
from pliant.engine.reduce.plan import ReductionPlan
from pliant.engine.reduce.windows import WindowSize
from pliant.engine.state.durable import CheckpointDamaged
from pliant.engine.state.training_state import Specified

ALONE = ReplicaId("alone")

KEPT_LOOK_S = 0.02
"""Between two looks whether the state is kept, in seconds."""

KEPT_S = 3600.0
"""Longest wait for what is being written: one operation of a storage may never return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a session is the same in all its generations."""

    num_slots: int
    layout: Layout
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """A generation that this replica is in."""

    order: Order
    group: Group
    reduction: Reduction
    owned: range
    """Its slots of every step."""

    @property
    def num_replicas(self) -> int:
        """Number of members."""
        return self.group.size


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecision:
    """What the members agreed on with one step's metadata, beside its commit."""

    generation: Generation
    """Under which the step is recorded."""

    is_leader: bool
    """Whether this replica is the one that speaks for all in the tail."""

    is_saved: bool = False
    """The state after this step's tail is to be kept: each member hands over its share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequests:
    """What a replica wants from all, said with its vote."""

    stop: bool
    """End after this step."""

    save: bool
    """Keep the state after this step's tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What all members must have alike before a step is committed, as digests of 63 bits."""

    settings: int
    weights: int
    names: str
    """Of the weights."""


class TrainingCallbacks(Protocol):
    """What a membership asks of the session when the members of a generation meet."""

    def commit_voted(self, decision: StepDecision) -> None:
        """Commit the step that was voted for from this replica's own reduced gradient."""

    def give_up_attempt(self, *, buffers_may_be_written: bool) -> None:
        """Forget an unfinished attempt at a step; parameters and buffers are as at its start."""

    def state_to_send(self) -> Any:
        """Return the state for joiners."""

    def allocate(self, document: Any, specs: Sequence[Specified]) -> Sequence[torch.Tensor]:
        """Return where each tensor of a state is to be received."""

    def take_state(self, state: Any) -> None:
        """Take a received state."""

    def restore(self, checkpoint: str, committed: int) -> None:
        """Take the state that a checkpoint holds.

        Raises:
            CheckpointDamaged: it cannot be used.
        """

    def keep(self, *, is_needed: bool) -> None:
        """Keep the state of this boundary, with all members of the generation."""

    def is_kept(self) -> bool:
        """Whether this replica has done its part of all that was to be kept."""

    def lose(self) -> None:
        """A member of the generation is gone, or may be."""


class WorkerMembership(Protocol):
    """Who trains together with this replica now."""

    @property
    def member(self) -> Member:
        """The protocol's state."""

    @property
    def leads(self) -> bool:
        """Whether this replica is the first member of its generation."""

    def arrive(self) -> bool:
        """Be a member that holds state, or learn that this ``steps()`` call is over: False."""

    def formed(self) -> Formed:
        """Return the generation to compute in; serves what is pending first.

        Raises:
            GroupBroken: this generation is over; call ``recover``.
        """

    def reduce(self) -> list[torch.Tensor]:
        """Wait for the step's reduced buckets, all launched before.

        Raises:
            GroupBroken: call ``recover``.
        """

    @property
    def place(self) -> tuple[int, int]:
        """Rank of this replica in the generation it is in, and the number of its members."""

    def decide(self, step: int, condition: Condition, wishes: VoteRequests) -> StepDecision:
        """Vote for ``step``, whose reduced result is complete, and wait until it is committed.

        Raises:
            GroupBroken: it is not known whether the others committed it; call ``recover``.
        """

    def recover(self, reason: str) -> None:
        """Enter the generation that follows a broken one; commits what was voted if told so."""

    def settle(self, *, is_over: bool) -> bool:
        """Between steps: hand over state, cross a boundary, serve a Reform.

        ``is_over``: this replica will compute no step of this ``steps()`` call any more.  Return
        whether the job has agreed to stop here.  Raises SystemExit on a replica that leaves.
        """

    def team(self, generation: Generation) -> EvaluationTeam:
        """Return those who run the tail of a step that was committed in ``generation``."""

    def await_kept(self) -> None:
        """Wait until this replica has done its part of what is being kept, or for ``KEPT_S``.

        Raises:
            GroupBroken: somebody died meanwhile; call ``recover``.
        """

    def finish(self, *, has_left_loop: bool) -> None:
        """The script is done: wait until nobody needs this replica.

        ``has_left_loop``: with a ``break``, before the job was over.
        """


class Alone:
    """The membership of a script without an agent: one member, one generation."""

    def __init__(
        self,
        shape: Shape,
        callbacks: TrainingCallbacks,
        *,
        found: Sequence[Found] = (),
        noted: Callable[[str], None] = lambda text: None,
    ) -> None:
        order = Order(
            generation=Generation(1), members=(Seat(replica=ALONE, endpoint=""),), host=ALONE
        )
        self.member = Member(replica=ALONE, has_state=True, current=order.generation)
        self._formed = form(order, Group.alone(order.generation), shape, replica=ALONE)
        self._callbacks = callbacks
        self._found = list(found)
        self._newest = max((one.lineage for one in found), default=NO_LINEAGE)
        self._noted = noted
        self._is_stopping = False
        self.leads = True
        self.place = (0, 1)

    def arrive(self) -> bool:
        """Be a member; first go on from the newest checkpoint, in the call that it was taken in.

        Raises:
            ConfigError: there are checkpoints, and none can be used.
        """
        damaged = ""
        while self._found:
            newest = self._found[0]
            if newest.calls > self.member.calls:
                self.member = protocol.call_finished(self.member)
                return False
            if newest.calls == self.member.calls and not (damaged := self._restore(newest)):
                return True
            self._found.pop(0)
        if damaged:
            raise ConfigError(
                f"no checkpoint of this run can be used; the last one tried: {damaged}; look with "
                "`pliant checkpoint verify`, or remove them all to start from step 0"
            )
        return True

    def _restore(self, found: Found) -> str:
        """Go on from a checkpoint; return what is wrong with it, if it cannot be used."""
        try:
            self._callbacks.restore(found.name, found.committed)
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

    def decide(self, step: int, condition: Condition, wishes: VoteRequests) -> StepDecision:
        """Commit: the only member has voted."""
        del condition
        self.member = protocol.voted(self.member, step)
        self.member = protocol.committed(self.member, self.member.current)
        self._is_stopping = self._is_stopping or wishes.stop
        return StepDecision(generation=self.member.current, is_leader=True, is_saved=wishes.save)

    def recover(self, reason: str) -> None:
        """Never called: there is no group to break."""
        raise AssertionError(reason)

    def settle(self, *, is_over: bool) -> bool:
        """Return whether a stop was asked for; at the end of a call, count it."""
        if is_over:
            self.member = protocol.call_finished(self.member)
        return self._is_stopping

    def team(self, generation: Generation) -> EvaluationTeam:
        """Return the team of one."""
        del generation
        return SingleMemberTeam()

    def await_kept(self) -> None:
        """Wait for what is being written."""
        look, deadline_s = threading.Event(), time.monotonic() + KEPT_S
        while not self._callbacks.is_kept():
            if time.monotonic() > deadline_s:
                self._noted(f"the last checkpoint was not written within {KEPT_S:g} s")
                return
            look.wait(KEPT_LOOK_S)

    def finish(self, *, has_left_loop: bool) -> None:
        """Nobody needs this replica, once its state is kept."""
        del has_left_loop
        self.await_kept()


def form(
    order: Order,
    group: Group,
    shape: Shape,
    *,
    replica: ReplicaId,
    previous: Reduction | None = None,
) -> Formed:
    """Make what is needed to compute in a generation whose group is connected."""
    owners = batching.ownership(shape.num_slots, len(order.members))
    return Formed(
        order=order,
        group=group,
        reduction=Reduction(
            group,
            shape.layout,
            ReductionPlan.of(shape.num_slots, owners),
            exact=shape.is_exact,
            previous=previous,
        ),
        owned=owners[order.replicas.index(replica)],
    )


def window_size_for(order: Order, shape: Shape, replica: ReplicaId) -> WindowSize:
    """Return how much memory this replica needs where the others can read it."""
    plan = ReductionPlan.of(
        shape.num_slots, batching.ownership(shape.num_slots, len(order.members))
    )
    if not shape.is_exact:
        plan = plan.one_each()
    return shared_memory.window_size(shape.layout, plan, order.replicas.index(replica))


def nodes(formed: Formed, shape: Shape) -> tuple[Node, ...]:
    """Return the sums that this replica adds up by itself."""
    if shape.is_exact:
        return batching.subtrees(shape.num_slots, formed.owned)
    return (Node(formed.owned.start, formed.owned.stop, "root"),)
