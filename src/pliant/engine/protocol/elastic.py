"""ElasticMembership: the membership of a worker that an agent started.

Owns the main thread's way from one generation to the next (DESIGN 5.2, 5.3, 5.5): meet the other
members, agree on the state, commit or redo, hand the state over, go on.  What is decided is in
``core.membership.member`` and ``core.membership.resolve``; what happens on other threads is in
``runtime``.  Must not know what is trained: it calls back (``TrainingCallbacks``).

    arrive --Spare--> wait --Switch--> enter --> steps: decide, settle --boundary--> enter ...
                        |                           |
                        +--FallThrough              +--GroupBroken--> recover: Reform --> enter
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from pliant.core.errors import ConfigError, NoStateError, UsageError
from pliant.core.events import Busy, ExitKind, Finished, Refused, Spare, Switched, Unrestorable
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Header, Resolution, resolve
from pliant.core.values import (
    NO_CHECKPOINT,
    NO_GENERATION,
    Found,
    Generation,
    Order,
    ReplicaId,
    Restore,
)
from pliant.engine import probe
from pliant.engine.evaluation import EvaluationTeam
from pliant.engine.groups.ending import GroupBroken
from pliant.engine.groups.group import Group
from pliant.engine.identity import describe_layout
from pliant.engine.protocol.alone import (
    KEPT_LOOK_S,
    KEPT_S,
    Condition,
    Formed,
    Shape,
    StepDecision,
    TrainingCallbacks,
    VoteRequests,
    form,
    window_size_for,
)
from pliant.engine.protocol.checkpoint_channel import CoordinatorCheckpointChannel
from pliant.engine.protocol.runtime import LOOK_S, ProtocolRuntime
from pliant.engine.state.durable import CheckpointChannel, CheckpointDamaged
from pliant.engine.state.tagged_codec import CodecError
from pliant.engine.state.transfer import Stamp, TransferRefused, receive_state, send_state
from pliant.engine.worker.bootstrap import WorkerContext
from pliant.engine.worker.reporter import Reporter
from pliant.wire.messages import Noted

LEFT_EARLY_S = 30.0
"""How long one replica that left the loop with ``break`` waits for the others to do the same."""

RESTORE_S = 3600.0
"""For how long a replica that reads a checkpoint asks to be waited for, in seconds."""

BUSY_S = 60.0
"""For how long a replica that waits for its last checkpoint asks to be waited for, each time."""

EXCHANGE_LOOK_S = 0.005
"""Between two looks for what others give in a tail."""

_HEADER_INTS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """What the members of a new generation learned of each other."""

    resolution: Resolution
    is_stopped: bool
    """A survivor knows that all have agreed to stop after the last committed step."""

    loops_differ: bool
    """Some survivors left the loop early and others did not."""

    apart: int
    """If somebody is to receive state and not all are in the same ``steps()`` call: how many calls
    the one ahead has finished, else 0."""


class ElasticMembership:
    """See the module's text; one per process."""

    def __init__(
        self,
        context: WorkerContext,
        shape: Shape,
        callbacks: TrainingCallbacks,
        identity: tuple[tuple[str, str], ...],
    ) -> None:
        self.found: Sequence[Found] = ()
        """Checkpoints that this replica could go on from."""
        self.is_durable = False
        """Whether the script keeps checkpoints."""
        self._context = context
        self._shape = shape
        self._callbacks = callbacks
        self._identity = identity
        self._runtime = ProtocolRuntime(
            context, shape.layout, lambda order: window_size_for(order, shape, context.replica)
        )
        self._formed: Formed | None = None
        self._crossing: Order | None = None
        self._handover: Callable[[], None] | None = None
        self._owes_tail = False
        self._asked_stop = False
        self._is_stopped = False
        self._has_left_loop = False

    @property
    def member(self) -> Member:
        """The protocol's state, as of now."""
        return self._runtime.member

    def channel(self, reporter: Reporter) -> CheckpointChannel:
        """Return what a writer of checkpoints asks and tells."""
        return CoordinatorCheckpointChannel(self._runtime, reporter)

    @property
    def leads(self) -> bool:
        """Whether it is the first member of the generation it is in that is still there."""
        if self._formed is None:
            return False
        present = self._runtime.released or self._formed.order.replicas
        return self.member.replica == next(
            (name for name in self._formed.order.replicas if name in present), None
        )

    # --- membership.Membership --------------------------------------------------------

    def arrive(self) -> bool:
        """Be a member that holds state; False if the job has finished this ``steps()`` call.

        A new replica says Spare here and waits, for as long as the coordinator has no use for it.
        """
        self._runtime.check_leaving()
        while not self.member.has_state:
            self._runtime.tell(self._spare())
            order = self._runtime.await_order()
            if order is None:
                self._runtime.finish_call()
                return False
            try:
                self._enter(order)
            except GroupBroken as broken:
                self._runtime.hear_broken(order.generation, broken.reason)
                if self.member.has_state:
                    self.recover(broken.reason)
        return True

    def formed(self) -> Formed:
        """Return the generation to compute in; a hold ends first."""
        while True:
            self._runtime.check_leaving()
            formed = self._current()
            if not formed.order.hold:
                return formed
            self._hold(formed)

    def reduce(self) -> list[torch.Tensor]:
        """Wait for the sums of all members."""
        formed = self.formed()
        with self._runtime.waits(formed.order.generation):
            return formed.reduction.finish()

    @property
    def place(self) -> tuple[int, int]:
        """Rank of this replica in the generation it is in, and the number of its members."""
        group = self._current().group
        return group.rank, group.size

    def decide(self, step: int, condition: Condition, wishes: VoteRequests) -> StepDecision:
        """Vote, exchange metadata, commit."""
        formed = self._current()
        generation = formed.order.generation
        with self._runtime.changed:
            self._runtime.check_sealed(generation)
            self._runtime.member = protocol.voted(self.member, step)
            numbers = self._metadata(condition, wishes)
            self._asked_stop = bool(numbers[1])
        probe.at("vote", step)
        with self._runtime.waits(generation):
            rows = formed.group.all_gather(numbers).tolist()
        _check_alike(rows, step, condition)
        with self._runtime.changed:
            self._runtime.check_sealed(generation)
            self._runtime.member = protocol.committed(self.member, generation)
            self._learn(rows)
        # Who crosses now is not the one to share with: the next boundary will do.
        is_saved = any(row[4] for row in rows) and self._crossing is None
        return StepDecision(
            generation=generation, is_leader=formed.group.rank == 0, is_saved=is_saved
        )

    def recover(self, reason: str) -> None:
        """Wait for the Reform that follows a fault, and enter it; until one succeeds."""
        formed = self._formed
        if formed is not None:
            self._runtime.hear_broken(formed.order.generation, reason)
        while True:
            order = self._runtime.await_reform()
            if order is None:
                return
            probe.at("reform", self.member.committed)
            self._callbacks.lose()
            try:
                self._enter(order)
            except GroupBroken as broken:
                self._runtime.hear_broken(order.generation, broken.reason)
            else:
                return

    def settle(self, *, is_over: bool) -> bool:
        """Between steps: hand over state, serve a Reform, cross a boundary."""
        self._owes_tail = False
        if is_over:
            self._runtime.finish_call()
            return self._is_stopped
        while True:
            self._runtime.check_leaving()
            try:
                self._current()
                self._hand_over()
                if self._is_stopped:
                    return True
                if self._crossing is not None:
                    self._cross(self._crossing)
                self.formed()
            except GroupBroken as broken:
                self.recover(broken.reason)
            else:
                return False

    def finish(self, *, has_left_loop: bool) -> None:
        """Say Finished and stay until Release: others may need this replica's state."""
        self._runtime.check_leaving()
        if not self.member.has_state and not self.member.calls:
            raise UsageError(
                "the session ended before its first step; train inside it with "
                "`for step in session.steps(total):`"
            )
        self._has_left_loop = has_left_loop
        self._keep_to_the_end()
        self._runtime.tell(Finished(replica=self.member.replica, committed=self.member.committed))
        self._runtime.is_finishing = True
        while not self._runtime.await_release(LEFT_EARLY_S if has_left_loop else None):
            self.recover("this replica left the loop over steps early")
            self._keep_to_the_end(is_new=True)
        self._keep_to_the_end()
        self._context.ending = ExitKind.FINISHED

    def team(self, generation: Generation) -> EvaluationTeam:
        """Return those who run the tail of a step that was committed in ``generation``."""
        return _Team(self, generation)

    def place_in(self, generation: Generation) -> tuple[int, int]:
        """Return this replica's rank and their number; (0, 1) where that generation is over.

        Who commits late enters another generation before its tail, in which others may be ahead.
        """
        formed = self._formed
        if formed is None or formed.order.generation != generation:
            return 0, 1
        return formed.group.rank, formed.group.size

    def exchange(self, generation: Generation, name: str, payload: bytes) -> list[bytes] | None:
        """Return what each member gives in this tail; None if the generation is over."""
        formed = self._formed
        if formed is None or formed.order.generation != generation:
            return None

        def look() -> None:
            with self._runtime.changed:
                self._runtime.check(generation)
                self._runtime.changed.wait(EXCHANGE_LOOK_S)

        step = self.member.committed
        try:
            with self._runtime.waits(generation):
                return formed.group.exchange(name, payload, step=step, look=look)
        except GroupBroken as broken:
            self._recover_in_tail(broken.reason)
            return None

    def attend(self) -> None:
        """Serve a Reform that came in a long tail, so that nobody waits for its end."""
        try:
            self._current()
        except GroupBroken as broken:
            self._recover_in_tail(broken.reason)

    def tell_busy(self, max_s: float) -> None:
        """Pass on that no step will end for a while."""
        self._runtime.tell(Busy(replica=self.member.replica, max_s=max_s))

    def await_kept(self) -> None:
        """Wait until this replica has done its part of what is being kept."""
        told_s, deadline_s = -math.inf, time.monotonic() + KEPT_S
        while not self._callbacks.is_kept():
            if time.monotonic() > deadline_s:
                text = f"the last checkpoint was not written within {KEPT_S:g} s"
                self._runtime.note(Noted(replica=self.member.replica, text=text))
                break
            if time.monotonic() - told_s > BUSY_S / 3:
                told_s = time.monotonic()
                self.tell_busy(BUSY_S)
            if not self._runtime.released:
                self._current()
            with self._runtime.changed:
                self._runtime.changed.wait(KEPT_LOOK_S)
        if told_s > 0:
            self.tell_busy(0.0)

    def _keep_to_the_end(self, *, is_new: bool = False) -> None:
        """Do this replica's part of the last checkpoint; of a new one, if somebody dies meanwhile.

        ``is_new``: somebody did already.
        """
        while True:
            try:
                self.await_kept()
                if is_new:
                    is_new = False
                    self._callbacks.keep(is_needed=True)
                    continue
            except GroupBroken as broken:
                if self._runtime.released:  # nobody is left to do it with
                    return
                self.recover(broken.reason)
                is_new = True
            else:
                return

    def _recover_in_tail(self, reason: str) -> None:
        self._owes_tail = True
        self.recover(reason)

    # --- entering a generation ----------------------------------------------------------

    def _enter(self, order: Order) -> None:
        """Meet the members of ``order``, agree on the state, hand it over, be in.

        Raises:
            GroupBroken: somebody failed, or a newer Reform has come.
        """
        group = self._runtime.group(order)
        meeting = self._meet(order, group)
        self._is_stopped = self._is_stopped or meeting.is_stopped
        if meeting.loops_differ:
            raise UsageError(
                "one replica left the loop over session.steps() early and another did not; call "
                "step.stop(), which all replicas obey after the same step"
            )
        self._act_on(order, group, meeting)
        self._runtime.enter(order)
        previous = None if self._formed is None else self._formed.reduction
        self._formed = form(
            order, group, self._shape, replica=self.member.replica, previous=previous
        )
        self._crossing = None
        self._runtime.tell(
            Switched(
                replica=self.member.replica,
                generation=order.generation,
                step=self.member.committed,
            )
        )

    def _meet(self, order: Order, group: Group) -> _Meeting:
        """Exchange headers and take this member's part of the resolution."""
        header = protocol.header(self.member)
        flags = [int(self._is_stopped), int(self._has_left_loop), int(self._asked_stop)]
        row = torch.tensor([*header.to_ints(), *flags], dtype=torch.int64)
        with self._runtime.waits(order.generation):
            rows = group.all_gather(row).tolist()
        headers = [Header.from_ints(row[:_HEADER_INTS]) for row in rows]
        origin = None if order.origin is None else order.replicas.index(order.origin)
        try:
            resolution = resolve(headers, origin, order.restore)
        except NoStateError as error:
            raise GroupBroken(order.generation, str(error)) from error
        with self._runtime.changed:
            self._runtime.check_sealed(order.generation)
            self._runtime.member = protocol.resolved(self.member, resolution, group.rank)
        survivors = [rows[rank] for rank in resolution.survivors]
        settled = [rows[r] for r in resolution.survivors if r not in resolution.commits]
        # Where all commit late nobody has seen what the metadata of their votes asked for.
        asked = not settled and any(row[_HEADER_INTS + 2] for row in survivors)
        calls = {headers[rank].calls for rank in (*resolution.survivors, *resolution.joiners)}
        return _Meeting(
            resolution=resolution,
            is_stopped=asked or any(row[_HEADER_INTS] for row in survivors),
            loops_differ=len({row[_HEADER_INTS + 1] for row in settled}) > 1,
            apart=max(calls) if resolution.joiners and len(calls) > 1 else 0,
        )

    def _restore(self, order: Order, resolution: Resolution, restore: Restore) -> None:
        """Take the state of a checkpoint, for all members.

        Raises:
            GroupBroken: it cannot be used; the coordinator was told.
        """
        probe.at("restore", restore.committed)
        self.tell_busy(RESTORE_S)
        try:
            if restore.checkpoint != NO_CHECKPOINT:
                self._callbacks.restore(restore.checkpoint, restore.committed)
        except CheckpointDamaged as error:
            self._runtime.tell(
                Unrestorable(
                    replica=self.member.replica,
                    generation=order.generation,
                    checkpoint=restore.checkpoint,
                    reason=str(error),
                )
            )
            raise GroupBroken(order.generation, f"{restore.checkpoint}: {error}") from error
        finally:
            self.tell_busy(0.0)
        with self._runtime.changed:
            self._runtime.check_sealed(order.generation)
            self._runtime.member = protocol.received(self.member, resolution)

    def _act_on(self, order: Order, group: Group, meeting: _Meeting) -> None:
        """Commit or redo, then give or take state."""
        rank, resolution = group.rank, meeting.resolution
        if rank in resolution.commits:
            self._owes_tail = True
            self._callbacks.commit_voted(self._late_decision(order, resolution))
        elif self.member.reform is not None:
            self._callbacks.give_up_attempt(buffers_may_be_written=True)
        self._handover = None
        if resolution.restore is not None and rank in resolution.survivors:
            self._restore(order, resolution, resolution.restore)
        if not resolution.joiners:
            return
        if meeting.apart:
            self._keep_apart(order, resolution, meeting.apart)
        stamp = Stamp(
            generation=order.generation, step=resolution.committed, lineage=resolution.lineage
        )
        if rank in resolution.joiners:
            self._receive(order, group, resolution, stamp)
            return

        def hand_over() -> None:
            self._send(order, group, resolution, stamp)

        if self._owes_tail:
            self._handover = hand_over  # its tail comes first: extra_state moves there
        else:
            hand_over()

    def _send(self, order: Order, group: Group, resolution: Resolution, stamp: Stamp) -> None:
        probe.at("transfer", resolution.committed)
        try:
            send_state(
                group,
                stamp=stamp,
                survivors=resolution.survivors,
                joiners=resolution.joiners,
                value=self._callbacks.state_to_send(),
            )
        except CodecError as error:  # the script put something into its state since it began
            for rank in resolution.joiners:
                self._refuse(order, order.replicas[rank], f"the state cannot be sent: {error}")
            raise GroupBroken(order.generation, str(error)) from error

    def _receive(self, order: Order, group: Group, resolution: Resolution, stamp: Stamp) -> None:
        probe.at("transfer", resolution.committed)
        try:
            state = receive_state(
                group,
                stamp=stamp,
                survivors=resolution.survivors,
                joiners=resolution.joiners,
                allocate=self._callbacks.allocate,
            )
            self._callbacks.take_state(state)
        except (TransferRefused, ConfigError) as error:
            self._refuse(order, self.member.replica, str(error))
            raise GroupBroken(order.generation, str(error)) from error
        with self._runtime.changed:
            self._runtime.check_sealed(order.generation)
            self._runtime.member = protocol.received(self.member, resolution)

    def _keep_apart(self, order: Order, resolution: Resolution, calls: int) -> NoReturn:
        """Give no state: a joiner would run code between two calls of ``steps()`` on top of it.

        It was in the members' call when the Switch was sent; some have come to the next one since.

        Raises:
            GroupBroken: always; the members go on without the joiners, which come again.
        """
        reason = "the members are not in the same call of steps() as the joiner"
        for rank in resolution.joiners:
            self._refuse(order, order.replicas[rank], reason, calls=calls)
        raise GroupBroken(order.generation, reason)

    def _refuse(self, order: Order, joiner: ReplicaId, reason: str, *, calls: int = 0) -> None:
        self._runtime.tell(
            Refused(
                replica=joiner,
                generation=order.generation,
                reason=reason,
                joiner=True,
                calls=calls,
            )
        )

    def _late_decision(self, order: Order, resolution: Resolution) -> StepDecision:
        """Say under what a step is recorded that is committed after its generation broke."""
        survivors = [order.replicas[rank] for rank in resolution.survivors]
        commits = [order.replicas[rank] for rank in resolution.commits]
        voters = () if self._formed is None else self._formed.order.replicas
        # Whoever led the vote leads its tail.  If it is gone, one that has the tail still to run.
        heirs = survivors if voters[:1] and voters[0] in survivors else commits
        leader = next((replica for replica in voters if replica in heirs), None)
        return StepDecision(generation=resolution.made_by, is_leader=leader == self.member.replica)

    def _hand_over(self) -> None:
        """Send the state that had to wait for this replica's tail."""
        handover, self._handover = self._handover, None
        if handover is not None:
            handover()

    def _cross(self, order: Order) -> None:
        """Enter the generation that all members named, or leave if it goes on without this one."""
        probe.at("boundary", self.member.committed)
        self._crossing = None
        old = self._current().group
        if self.member.replica not in order.replicas:
            self._runtime.leave()
        self._enter(order)
        old.retire()

    def _busy_while_saving(self) -> None:
        """Ask to be waited for: what the members of a hold have may be the last of it."""
        if not self._callbacks.is_kept():
            self.tell_busy(3 * LOOK_S)

    def _hold(self, formed: Formed) -> None:
        """Wait below the minimum for a Switch, then agree on the boundary by a null round."""
        generation = formed.order.generation
        self.await_kept()
        self._callbacks.keep(is_needed=True)  # these may be the last that have it
        self._runtime.await_ready(generation, self._busy_while_saving)
        with self._runtime.changed:
            numbers = self._metadata(None, VoteRequests(stop=False, save=False))
        rows = formed.group.all_gather(numbers).tolist()
        with self._runtime.changed:
            self._runtime.check(generation)
            self._learn(rows)
        if self._crossing is not None:
            self._cross(self._crossing)

    # --- helpers ----------------------------------------------------------------------------

    def _current(self) -> Formed:
        """Return the generation this replica is in.

        Raises:
            GroupBroken: it has failed or is sealed.
        """
        formed = self._formed
        if formed is None:
            raise GroupBroken(NO_GENERATION, "no generation was entered")
        self._runtime.check(formed.order.generation)
        return formed

    def _metadata(self, condition: Condition | None, wishes: VoteRequests) -> torch.Tensor:
        """Return what this replica says beside its vote; the lock is held."""
        member = self.member
        stop = int(wishes.stop or member.stopping)
        alike = (0, 0) if condition is None else (condition.settings, condition.weights)
        numbers = [protocol.ready_number(member), stop, *alike, int(wishes.save)]
        return torch.tensor(numbers, dtype=torch.int64)

    def _learn(self, rows: Sequence[Sequence[int]]) -> None:
        """Take what the members said beside their votes; the lock is held."""
        member = self.member
        self._is_stopped = self._is_stopped or any(row[1] for row in rows)
        number = protocol.boundary(member, [Generation(row[0]) for row in rows])
        self._crossing = member.ordered if number else None

    def _spare(self) -> Spare:
        return Spare(
            replica=self.member.replica,
            calls=self.member.calls,
            num_slots=self._shape.num_slots,
            layout=describe_layout(self._shape.layout),
            endpoint=self._runtime.endpoint,
            identity=self._identity,
            is_durable=self.is_durable,
            checkpoints=tuple(self.found),
        )


def _check_alike(rows: Sequence[Sequence[int]], step: int, condition: Condition) -> None:
    """Refuse to commit what would differ from a run of one replica.

    Raises:
        UsageError: the members' weights or hyper-parameters are not the same.
    """
    for place, what in ((2, "the optimizers' settings"), (3, f"the weights in {condition.names}")):
        if len({row[place] for row in rows}) > 1:
            raise UsageError(
                f"at step {step} {what} differ between replicas: the script changed them on some "
                "replicas only; do it on every replica alike, not where session.leader is true"
            )


class _Team:
    """The members of one generation in the tail of a step that they committed together."""

    def __init__(self, membership: ElasticMembership, generation: Generation) -> None:
        self._membership = membership
        self._generation = generation

    @property
    def place(self) -> tuple[int, int]:
        """This replica's rank and how many they are."""
        return self._membership.place_in(self._generation)

    def attend(self) -> None:
        """Serve what the coordinator wants meanwhile."""
        self._membership.attend()

    def exchange(self, name: str, payload: bytes) -> list[bytes] | None:
        """Return what each of them gives under ``name``; None if they are no longer together."""
        return self._membership.exchange(self._generation, name, payload)
