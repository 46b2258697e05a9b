"""Follower membership: that of a worker which follows worker 0 of its replica.

Owns the worker's half of the lockstep: in each call it does what worker 0 says, until that says how
the call ends.  Decides nothing, and says nothing to the coordinator.

    inner channel's thread   BuildPlace, AbandonPlace at once; the rest waits for the main thread
    main thread              in a call: takes directives in order; else computes
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, assert_never

import torch

from pliant.core.errors import EXIT_OK, UsageError
from pliant.core.events import ExitKind
from pliant.core.membership.failure.worker_activity import Whereabouts
from pliant.core.membership.follower_answers import (
    Answer,
    Failed,
    Kept,
    Received,
    Reduced,
    StateNamed,
    Voted,
)
from pliant.core.membership.member import Member
from pliant.core.values import NO_GENERATION, Generation, Order
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.group import Group
from pliant.engine.evaluation import EvaluationTeam
from pliant.engine.member.follower_runtime import FollowerGroups, FollowerRuntime
from pliant.engine.member.followers import wait_to_be_ended
from pliant.engine.member.formed import Formed, Shape, form
from pliant.engine.member.inner_channel import (
    CALLS,
    AbandonPlace,
    BuildPlace,
    CallBroke,
    CallReturned,
    CommitVoted,
    Deed,
    EnterPlace,
    FinishKeeping,
    FollowerCame,
    GiveUpAttempt,
    HandOver,
    InnerConnection,
    InnerMessage,
    KeepPart,
    LeaveNow,
    LoseMember,
    MemberStanding,
    WhereAreYou,
    WorkerIsAt,
    connect_to_worker_0,
)
from pliant.engine.member.main_thread import MainThreadWatch
from pliant.engine.member.membership_port import (
    KEPT_LOOK_S,
    KEPT_S,
    Condition,
    Ending,
    StepDecision,
    TrainingCallbacks,
    VoteRequests,
)
from pliant.engine.member.rendezvous import Meeting
from pliant.engine.member.state_handover import StateHandover
from pliant.engine.worker.bootstrap import WorkerContext

_TAKES_NO_BREAK = frozenset({"recover", "arrive", "settle", "attend", "exchange", "save", "finish"})
"""Calls that do not end with GroupBroken: one that is told there is of the call before."""


class FollowerMembership:
    """See the module's text; one per process."""

    def __init__(
        self,
        context: WorkerContext,
        shape: Shape,
        callbacks: TrainingCallbacks,
        directory: Path,
        *,
        traits: tuple[tuple[str, str], ...],
        within_s: float,
    ) -> None:
        """``traits``: compared with worker 0's; ``within_s``: how long that may take to come."""
        self._context = context
        self._place = context.assignment.place
        self._shape = shape
        self._callbacks = callbacks
        self.member = Member(replica=context.replica)
        """As of worker 0, when it said something last."""
        self.leads = False
        self.asked_after = -1
        self._formed: Formed | None = None
        self._handover = StateHandover(
            FollowerRuntime(now=lambda: self.member, fail=self._fail, received=self._receive),
            callbacks,
        )
        self._directives: queue.SimpleQueue[Deed | CallReturned | CallBroke | None] = (
            queue.SimpleQueue()
        )
        self._watch = MainThreadWatch()
        self.lost = threading.Event()
        """Worker 0 has ended before its time: this process is about to be ended by its agent."""
        self._is_over = False
        self._groups = FollowerGroups(
            context, shape, say=self._say, committed=lambda: self.member.committed
        )
        self._connection = InnerConnection(
            connect_to_worker_0(directory, within_s), self._hear_worker_0, self._end
        )
        self._connection.start()
        endpoint = self._groups.endpoint
        self._say(FollowerCame(place=self._place, endpoint=endpoint, traits=traits))

    # --- WorkerMembership ---------------------------------------------------------------

    @property
    def place(self) -> tuple[int, int]:
        """Rank of this replica in the generation it is in, and the number of its members."""
        self._follow("place")
        return self._seat(self._current())

    @staticmethod
    def _seat(formed: Formed) -> tuple[int, int]:
        return formed.group.rank, formed.group.size

    def arrive(self, total: int = 0) -> bool:
        """Be a member that holds state; False if this ``steps()`` call is over."""
        self._check_leaving()
        return bool(self._follow("arrive").number)

    def formed(self) -> Formed:
        """Return the generation to compute the next pass in."""
        self._follow("formed")
        return self._current()

    def reduce(self) -> list[torch.Tensor]:
        """Wait for the sums of this place, then for those of the others."""
        formed = self._current()
        try:
            with self._watch.waiting(Whereabouts.MEMBERS):
                reduced = formed.reduction.finish()
        except GroupBroken as broken:
            self._fail(formed.order.generation, broken.reason)
            raise
        step = self.member.committed
        generation = formed.order.generation
        self._say(Reduced(place=self._place, generation=generation, step=step))
        self._follow("reduce")
        return reduced

    def decide(self, step: int, condition: Condition, requests: VoteRequests) -> StepDecision:
        """Wait until the step is committed."""
        self._say(
            Voted(
                place=self._place,
                generation=self._current().order.generation,
                step=step,
                stop=requests.stop,
                digests=condition.digests,
                alike=condition.alike(condition.digests),
            )
        )
        said = self._follow("decide")
        formed = self._current()
        if said.sizes != formed.sizes:
            self._form(formed.order, formed.group, said.sizes)
        return StepDecision(
            generation=Generation(said.number),
            is_leader=False,
            is_stopped=said.is_stopped,
            is_saved=said.is_saved,
        )

    def recover(self, reason: str) -> None:
        """Enter the generation that follows a broken one.

        Raises:
            UsageError: the fault is that the script's replicas differ.
        """
        self._handover.check()
        self._follow("recover")

    def settle(self, *, is_over: bool, is_last: bool = False) -> Ending:
        """Between steps: whatever worker 0 does there."""
        del is_last
        self._check_leaving()
        if not is_over:
            try:
                self._handover.complete()
            except GroupBroken as broken:
                self._fail(self._current().order.generation, broken.reason)
        return Ending(self._follow("settle").number)

    def team(self, generation: Generation) -> EvaluationTeam:
        """Return those who run the tail of a step together."""
        return _FollowerTeam(self, generation)

    def tell_busy(self, max_s: float) -> None:
        """Worker 0 tells."""

    def told(self, call: str, flag: bool) -> bool:
        """Return what worker 0 says."""
        return bool(self._follow(call).number)

    def await_kept(self) -> None:
        """Wait until every worker has done its part of what is being kept."""
        self._follow("await_kept")

    def finish(self, *, has_left_loop: bool) -> None:
        """The script is done: wait until nobody needs this replica."""
        del has_left_loop
        self._check_leaving()
        self._follow("finish")
        self._is_over = True
        self._context.end_as(ExitKind.FINISHED)

    def _current(self) -> Formed:
        if self._formed is None:
            raise GroupBroken(NO_GENERATION, "no generation was entered")
        return self._formed

    def _check_leaving(self) -> None:
        if self.member.leaving:
            self._leave()

    def _leave(self) -> NoReturn:
        self._is_over = True
        self._context.end_as(ExitKind.LEFT)
        raise SystemExit(EXIT_OK)

    # --- following ------------------------------------------------------------------------

    def _follow(self, call: str) -> CallReturned:
        """Do what worker 0 says, until it says how this call ends."""
        while True:
            with self._watch.waiting(Whereabouts.REPLICA):
                directive = self._directives.get()
            match directive:
                case None:
                    wait_to_be_ended("worker 0 of this replica has ended")
                case CallReturned() as returned:
                    self._stand(returned.standing)
                    if returned.call != call:
                        raise UsageError(
                            f"worker {self._place} of this replica is in {CALLS[call]}, and "
                            f"worker 0 in {CALLS[returned.call]}; the workers of a replica run "
                            "the same script in lockstep, so every one makes the same calls"
                        )
                    return returned
                case CallBroke(generation=generation, reason=reason):
                    if call not in _TAKES_NO_BREAK:
                        raise GroupBroken(generation, reason)
                case directive:
                    self._obey(directive)

    def _obey(self, directive: Deed) -> None:
        match directive:
            case LeaveNow():
                self.member = replace(self.member, leaving=True)
                self._leave()
            case LoseMember():
                self._callbacks.lose()
            case GiveUpAttempt():
                self._callbacks.give_up_attempt(buffers_may_be_written=True)
            case CommitVoted(generation=generation, standing=standing):
                self._stand(standing)
                self._callbacks.commit_voted(StepDecision(generation=generation, is_leader=False))
            case HandOver() as handed:
                self._hand_over(handed)
            case EnterPlace(order=order, standing=standing, sizes=sizes):
                self._enter(order, standing, sizes)
            case KeepPart(seat=seat, standing=standing):
                self._stand(standing)
                self._callbacks.keep(seat, is_needed=True)
            case FinishKeeping(generation=generation):
                self._finish_keeping()
                self._say(Kept(place=self._place, generation=generation))
            case other:
                assert_never(other)

    def _stand(self, standing: MemberStanding) -> None:
        self.member = Member(
            replica=self._context.replica,
            lineage=standing.lineage,
            committed=standing.committed,
            calls=standing.calls,
            made_by=standing.made_by,
            current=standing.current,
            has_state=standing.has_state,
            leaving=standing.leaving,
        )

    def _hand_over(self, handed: HandOver) -> None:
        """Do this place's part; worker 0 is told if it does not come about."""
        self._stand(handed.standing)
        order = handed.order
        meeting = Meeting(resolution=handed.resolution, ending=Ending.NONE, apart=0)
        try:
            group = self._groups.connected(order)
            self._handover.start(order, group, meeting, owes_tail=handed.owes_tail)
        except GroupBroken as broken:
            self._fail(order.generation, broken.reason)

    def _enter(self, order: Order, standing: MemberStanding, sizes: tuple[int, ...]) -> None:
        """Be in a generation; that its group was given up since shows at the first use of it."""
        self._stand(standing)
        previous = self._formed
        self._form(order, self._groups.enter(order), sizes)
        if previous is not None and previous.group.broken is None:
            previous.group.retire()

    def _finish_keeping(self) -> None:
        """Wait until this worker has done its part, or the generation is broken."""
        look, deadline_s = threading.Event(), time.monotonic() + KEPT_S
        formed = self._formed
        while not self._callbacks.is_kept() and time.monotonic() < deadline_s:
            if formed is not None and formed.group.broken is not None:
                return
            look.wait(KEPT_LOOK_S)

    def _form(self, order: Order, group: Group, sizes: tuple[int, ...]) -> None:
        previous = None if self._formed is None else self._formed.reduction
        replica = self._context.replica
        self._formed = form(
            order, group, self._shape, replica=replica, sizes=sizes, previous=previous
        )

    def _say(self, answer: Answer | FollowerCame | WorkerIsAt) -> None:
        self._connection.send(answer)

    def _receive(self, generation: Generation) -> None:
        self._say(Received(place=self._place, generation=generation))

    def _fail(self, generation: Generation, reason: str, **kind: bool) -> None:
        self._say(Failed(place=self._place, generation=generation, reason=reason, **kind))

    # --- the inner channel's thread -----------------------------------------------------

    def _hear_worker_0(self, message: InnerMessage) -> None:
        match message:
            case BuildPlace(order=order, secret=secret):
                self._groups.build(order, secret)
            case AbandonPlace(generation=generation):
                self._groups.abandon(generation)
            case WhereAreYou(number=number):
                self._say(WorkerIsAt(place=self._place, number=number, where=self._watch.locate()))
            case _:
                self._directives.put(message)  # type: ignore[arg-type]  # worker 0 says nothing else

    def _end(self) -> None:
        if not self._is_over:
            self.lost.set()
        self._directives.put(None)


class _FollowerTeam:
    """The team of a tail: worker 0 exchanges, and tells what came."""

    def __init__(self, membership: FollowerMembership, generation: Generation) -> None:
        self._membership = membership
        self._generation = generation

    @property
    def place(self) -> tuple[int, int]:
        formed = self._membership._formed  # noqa: SLF001  # one thing, in two classes
        if formed is None or formed.order.generation != self._generation:
            return 0, 1
        return self._membership._seat(formed)  # noqa: SLF001

    def attend(self) -> None:
        self._membership._follow("attend")  # noqa: SLF001

    def exchange(self, name: str, payload: bytes) -> list[bytes] | None:
        del name, payload  # worker 0's: all computed the same
        parts = self._membership._follow("exchange").parts  # noqa: SLF001
        return None if parts is None else [part.encode("latin-1") for part in parts]

    def gather_names(self, names: Mapping[str, str]) -> dict[str, str]:
        membership, found = self._membership, dict(names)
        place, generation = membership._place, membership.member.current  # noqa: SLF001
        membership._say(StateNamed(place=place, generation=generation, names=found))  # noqa: SLF001
        return found
