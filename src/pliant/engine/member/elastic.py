"""Elastic: the membership of a worker that an agent started.

Owns the main thread's way from one step boundary to the next and into the next generation: vote and
commit, cross, recover, hold, finish.  What is decided is in ``core.membership``; what happens on
other threads in ``runtime``; how members agree on the state in ``rendezvous``, how they hand it
over in ``state_handover``, how it is kept in ``checkpoint_channel``.  Must not know what is
trained.

    arrive --Spare--> wait --Switch--> enter --> steps: decide, settle --boundary--> enter ...
                        |                           |
                        +--SkipCalls              +--GroupBroken--> recover: Reform --> enter
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pliant.core.errors import UsageError
from pliant.core.events import ExitKind, Spare, Switched
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.step.times import parts_us
from pliant.core.values import NO_GENERATION, TOTAL, CheckpointInfo, Generation, Order
from pliant.engine import probe
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.group import Group
from pliant.engine.evaluation import EvaluationTeam
from pliant.engine.guard import files
from pliant.engine.identity import describe_layout
from pliant.engine.member.checkpoint_channel import Keeping
from pliant.engine.member.followers import NO_FOLLOWERS, Followers
from pliant.engine.member.formed import Formed, Shape
from pliant.engine.member.membership_port import (
    Condition,
    Ending,
    StepDecision,
    TrainingCallbacks,
    VoteRequests,
)
from pliant.engine.member.rendezvous import LoopFlags, Meeting, StepMetadata, check_alike, meet
from pliant.engine.member.runtime import LOOK_S, ProtocolRuntime
from pliant.engine.member.slot_division import SlotDivision
from pliant.engine.member.state_handover import StateHandover
from pliant.engine.member.tail_team import TailTeam
from pliant.engine.worker.bootstrap import WorkerContext
from pliant.wire.messages import Noted

LEFT_EARLY_S = 30.0
"""How long one replica that left the loop with ``break`` waits for the others to do the same."""


class ElasticMembership:
    """See the module's text; one per process."""

    def __init__(
        self,
        context: WorkerContext,
        runtime: ProtocolRuntime,
        shape: Shape,
        callbacks: TrainingCallbacks,
        identity: tuple[tuple[str, str], ...],
        *,
        found: Sequence[CheckpointInfo],
        look: Callable[[], Sequence[CheckpointInfo]],
        is_durable: bool,
        followers: Followers = NO_FOLLOWERS,
    ) -> None:
        """``found``: checkpoints to go on from; ``look`` finds what there is by then;
        ``is_durable``: the script keeps some; ``followers``: the other workers of this replica.
        """
        self._found = tuple(found)
        self._look = look
        self._is_durable = is_durable
        self._context = context
        self._runtime = runtime
        self._shape = shape
        self._callbacks = callbacks
        self._identity = identity
        self._followers = followers
        self._handover = StateHandover(runtime, callbacks, followers)
        self._slots = SlotDivision(context.replica, shape, runtime.tell, runtime.say_slow)
        self._keeping = Keeping(runtime, callbacks, followers, self._current, self.recover)
        self._crossing: Order | None = None
        self._owes_tail = False
        self._asked = Ending.NONE
        self._ending = Ending.NONE
        self._has_left_loop = False
        self._led_tail = True
        """The tail of the last step, unless that is known to be done."""
        self._total = 0, 0
        """How many calls of ``steps()`` were finished before the last one, and how far it goes."""

    @property
    def member(self) -> Member:
        """The protocol's state, as of now."""
        return self._runtime.member

    @property
    def asked_after(self) -> int:
        """Number of committed steps after which someone wants a checkpoint; -1: nobody does."""
        return self._runtime.asked_after

    @property
    def leads(self) -> bool:
        """Whether it is the first of those released with it; before, of its generation."""
        if self._slots.formed is None:
            return False
        there = self._runtime.released or self._slots.formed.order.replicas
        return self.member.replica == there[0]

    # --- WorkerMembership -------------------------------------------------------------

    def arrive(self, total: int = 0) -> bool:
        """Be a member that holds state; False if the job has finished this ``steps()`` call.

        A new replica says Spare here and waits, for as long as the coordinator has no use for it.
        """
        self._runtime.check_leaving()
        self._total = self.member.calls, total
        self._runtime.arrive()
        while not self.member.has_state:
            self._runtime.tell(self._spare())
            order = self._runtime.await_order()
            if order is None and self._runtime.is_to_look():
                self._found = tuple(self._look())
                continue
            if order is None:
                self._runtime.finish_call()
                return False
            try:
                self._enter(order)
            except GroupBroken as broken:
                self._runtime.break_group(order.generation, broken.reason)
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

    def decide(self, step: int, condition: Condition, requests: VoteRequests) -> StepDecision:
        """Vote, exchange metadata, commit."""
        formed = self._current()
        generation = formed.order.generation
        own = StepMetadata.of(self._runtime.vote(generation, step), condition, requests)
        self._asked = Ending(own.stop)
        probe.at("vote", step)
        with self._runtime.waits(generation):
            said = own.exchange(formed.group)
            wrong = check_alike(
                [one.digests for one in said],
                formed.order.replicas,
                step,
                condition.named,
                lambda names: formed.group.share(f"differs/{step}", names),
                verified_for=self.member.replica if condition.is_verified else "",
            )
        if wrong:
            raise GroupBroken(generation, wrong)
        self._learn(self._runtime.commit(generation), said)
        if self._crossing is None:
            self._slots.hear_times([one.slot_us for one in said], step + 1)
        # Who crosses now is not the one to share with: the next boundary will do.
        is_saved = any(one.save for one in said) and self._crossing is None
        self._led_tail = formed.group.rank == 0
        return StepDecision(
            generation=generation,
            is_leader=self._led_tail,
            is_stopped=bool(self._ending),
            is_saved=is_saved,
            sizes=self._slots.sizes,
            parts_us=parts_us([one.times for one in said]),
        )

    def recover(self, reason: str) -> None:
        """Wait for the Reform that follows a fault, and enter it; until one succeeds.

        Raises:
            UsageError: the fault is that the script's replicas differ.
        """
        self._handover.check()
        if (formed := self._slots.formed) is not None:
            self._runtime.break_group(formed.order.generation, reason)
        while True:
            order = self._runtime.await_reform()
            if order is None:
                return
            probe.at("reform", self.member.committed)
            self._followers.lose()
            self._callbacks.lose()
            try:
                self._enter(order)
            except GroupBroken as broken:
                self._handover.check()
                self._runtime.break_group(order.generation, broken.reason)
            else:
                return

    def settle(self, *, is_over: bool, is_last: bool = False) -> Ending:
        """Between steps: hand over state, serve a Reform, cross a boundary."""
        self._owes_tail = False
        if is_over:
            self._runtime.finish_call()
            return self._ending
        while True:
            self._runtime.check_leaving()
            try:
                self._current()
                self._handover.complete()
                if self._ending:
                    return self._ending
                if self._crossing is not None:
                    self._cross(self._crossing)
                if not is_last:
                    self.formed()
            except GroupBroken as broken:
                self.recover(broken.reason)
            else:
                return Ending.NONE

    def finish(self, *, has_left_loop: bool) -> None:
        """Say Finished and stay until Release: others may need this replica's state."""
        self._runtime.check_leaving()
        if not self.member.has_state and not self.member.calls:
            raise UsageError(
                "the session ended before its first step; train inside it with "
                "`for step in session.steps(total):`"
            )
        self._has_left_loop = has_left_loop
        in_tail, behind = self._callbacks.asked_leader()
        lacks_tail, lacks_end = in_tail and not self._led_tail, behind and not self.leads
        self._keeping.keep_to_the_end()
        self._runtime.finish(
            has_left_loop=has_left_loop, lacks_tail=lacks_tail, lacks_end=lacks_end
        )
        while not self._runtime.await_release(LEFT_EARLY_S if has_left_loop else None):
            self.recover("this replica left the loop over steps early")
            self._keeping.keep_to_the_end(is_new=True)
        self._keeping.keep_to_the_end()
        self._context.end_as(ExitKind.FINISHED)

    def team(self, generation: Generation) -> EvaluationTeam:
        """Return those who run the tail of a step that was committed in ``generation``."""
        slots, recover = self._slots, self._recover_in_tail
        return TailTeam(self._runtime, generation, lambda: slots.formed, recover)

    def tell_busy(self, max_s: float) -> None:
        """Pass on that no step will end for a while."""
        self._runtime.tell_busy(max_s)

    def told(self, call: str, flag: bool) -> bool:
        """Return what the only worker says."""
        del call
        return flag

    def await_kept(self) -> None:
        """Wait until this replica has done its part of what is being kept."""
        self._keeping.await_kept()

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
        flags = LoopFlags(self._ending, self._has_left_loop, self._asked, self._total_here)
        meeting = meet(self._runtime, order, group, flags, self._slots.pace_us)
        self._ending = max(self._ending, meeting.ending)
        self._act_on(order, group, meeting)
        self._runtime.enter(order)
        me, step = self.member.replica, self.member.committed
        self._slots.enter(order, group, meeting.paces_us, step)
        self._followers.enter(order, self.member, self._slots.sizes)
        self._crossing = None
        num_bytes, took_s = self._handover.received
        self._runtime.tell(
            Switched(
                replica=me,
                generation=order.generation,
                step=step,
                received_bytes=num_bytes,
                received_s=took_s,
            )
        )

    def _act_on(self, order: Order, group: Group, meeting: Meeting) -> None:
        """Commit or redo, then give or take state."""
        rank, resolution = group.rank, meeting.resolution
        if rank in resolution.commits:
            self._owes_tail = True
            self._followers.commit(resolution.made_by, self.member)
            decision = self._late_decision(order, resolution)
            self._led_tail = decision.is_leader
            self._callbacks.commit_voted(decision)
        elif self.member.reform is not None:
            self._followers.give_up_attempt()
            self._callbacks.give_up_attempt(buffers_may_be_written=True)
        else:  # all have come to this boundary
            self._led_tail = True
        if rank == 0 and not resolution.commits:  # whoever commits late does that tail
            self._tell_unfinished_tail(order)
        if not meeting.apart:
            self._followers.hand_over(order, resolution, self.member, owes_tail=self._owes_tail)
        self._handover.start(order, group, meeting, owes_tail=self._owes_tail)

    def _tell_unfinished_tail(self, order: Order) -> None:
        """Name the tail in which a leader has died that is not in ``order`` any more."""
        record, formed = files.here(), self._slots.formed
        leader = formed.order.replicas[0] if record and formed else order.replicas[0]
        if not record or leader in order.replicas or self.member.reform is None:
            return  # at a planned change it has come to the boundary, behind its tail
        if step := record.unfinished_tail(leader):
            text = (
                f"{leader} was lost in the tail of step {step}, which it led: what the leader "
                "alone was to write there may be missing"
            )
            self._context.link.send(Noted(replica=order.replicas[0], text=text, lasting=True))
        record.tell_left_open()

    def _late_decision(self, order: Order, resolution: Resolution) -> StepDecision:
        """Say under what a step is recorded that is committed after its generation broke."""
        survivors = [order.replicas[rank] for rank in resolution.survivors]
        commits = [order.replicas[rank] for rank in resolution.commits]
        voters = () if self._slots.formed is None else self._slots.formed.order.replicas
        # Whoever led the vote leads its tail.  If it is gone, one that has the tail still to run.
        heirs = survivors if voters[:1] and voters[0] in survivors else commits
        leader = next((replica for replica in voters if replica in heirs), None)
        return StepDecision(generation=resolution.made_by, is_leader=leader == self.member.replica)

    def _cross(self, order: Order) -> None:
        """Enter the generation that all members named, or leave if it goes on without this one."""
        probe.at("boundary", self.member.committed)
        self._crossing = None
        old = self._current().group
        if self.member.replica not in order.replicas:
            self._runtime.leave()
        self._enter(order)
        old.retire()

    def _hold(self, formed: Formed) -> None:
        """Wait below the minimum for a Switch, then agree on the boundary by a null round."""
        generation = formed.order.generation
        self.await_kept()
        self._keeping.keep()  # these may be the last that have it

        def ask_to_be_waited_for() -> None:
            if not self._callbacks.is_kept():
                self._runtime.tell_busy(3 * LOOK_S)

        self._runtime.await_ready(generation, ask_to_be_waited_for)
        own = StepMetadata.of(self.member, None, VoteRequests(stop=False, save=False))
        said = own.exchange(formed.group)
        self._learn(self._runtime.check(generation), said)
        if self._crossing is not None:
            self._cross(self._crossing)

    # --- helpers ----------------------------------------------------------------------------

    def _current(self) -> Formed:
        """Return the generation this replica is in; GroupBroken if it has failed or is sealed."""
        formed = self._slots.formed
        if formed is None:
            raise GroupBroken(NO_GENERATION, "no generation was entered")
        self._runtime.check(formed.order.generation)
        return formed

    def _learn(self, member: Member, said: Sequence[StepMetadata]) -> None:
        """Take what the members said beside their votes; ``member`` is as it is since."""
        self._ending = max(self._ending, *(Ending(one.stop) for one in said))
        number = protocol.boundary(member, [Generation(one.ready) for one in said])
        self._crossing = member.ordered if number else None

    @property
    def _total_here(self) -> int:
        calls, total = self._total
        return total if calls == self.member.calls else 0

    def _spare(self) -> Spare:
        asked_by, looked = self._runtime.looked
        return Spare(
            replica=self.member.replica,
            calls=self.member.calls,
            num_slots=self._shape.num_slots,
            layout=describe_layout(self._shape.layout),
            endpoint=self._runtime.endpoint,
            identity=(*self._identity, (f"{TOTAL}{self._total[0]}", str(self._total[1]))),
            is_durable=self._is_durable,
            checkpoints=self._found,
            asked_by=asked_by,
            looked=looked,
        )
