"""Training: the course of a step, from its first slot to its commit.

Owns the order of things: slots, reduce, vote, commit, update; and what a fault at any of these
places leads to.  Must not know how gradients are added, how members agree, or what an optimizer
does: each is a collaborator.

    next_step --> next_batch --slot--> user --> next_batch ... --last--> reduce -> decide -> commit
                      ^                                                    |         |
                      +---- recover: the step is done again <-- GroupBroken+---------+
                                     or was committed from the own result

Work of the engine happens only here, on the main thread, while the script is inside a call.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from pliant.core.errors import EXIT_OK, UsageError
from pliant.core.step.times import MemberTimes
from pliant.core.values import Generation
from pliant.engine import probe, randomness
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.data.ledger import Ledger
from pliant.engine.data.loading import Schedule
from pliant.engine.data.slots import Attempt, Extras, Slots, logged_means
from pliant.engine.evaluation import EvaluationTeam
from pliant.engine.guard.base import Guards
from pliant.engine.guard.comparison import StateComparison, compare_whole
from pliant.engine.guard.differences import Differences
from pliant.engine.guard.files import Inputs
from pliant.engine.member.formed import Shape, nodes
from pliant.engine.member.membership_port import (
    Condition,
    Ending,
    StepDecision,
    VoteRequests,
    WorkerMembership,
)
from pliant.engine.recording import Recorder
from pliant.engine.state.saving import Saver
from pliant.engine.state.training_state import State
from pliant.engine.state.transfer import TensorSpec
from pliant.engine.step_log import StepLogs
from pliant.engine.step_reports import StepReports
from pliant.engine.update import Gradient, Update
from pliant.engine.worker.reporter import Reporter


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A complete reduced result: what a vote stands for."""

    step: int
    gradient: Gradient
    logged: Mapping[str, tuple[float, float]]
    """By ``step.log``: mean and weight of each name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A committed step, for its tail."""

    loss: float
    logged: Mapping[str, tuple[float, float]]
    decision: StepDecision


@dataclass(kw_only=True, eq=False)
class Training:
    """Ties the collaborators of a session together; see the module's text."""

    shape: Shape
    schedule: Schedule
    guards: Guards
    differences: Differences
    slots: Slots
    update: Update
    state: State
    comparison: StateComparison
    ledger: Ledger
    reporter: Reporter
    saver: Saver
    logs: StepLogs
    recorder: Recorder | None
    on_nonfinite: str
    verify_every: int
    """Steps between two looks at the whole state of all replicas; 0: never."""

    def __post_init__(self) -> None:
        self._membership: WorkerMembership | None = None
        self._attempted: int | None = None
        self._result: Result | None = None
        self._has_left_loop = False
        self._reports = StepReports(
            reporter=self.reporter,
            schedule=self.schedule,
            slots=self.slots,
            update=self.update,
            on_nonfinite=self.on_nonfinite,
        )
        self.done: Done | None = None
        """The step whose tail is running."""
        self.inputs: Inputs | None = None
        """What this replica was made from, where somebody compares it."""
        self.wants_stop = False
        """Stop after the step whose metadata this replica sends next."""
        self._behind_us = 0, 0
        """How long the last vote took, and what came behind it up to the commit."""
        self._asked = -1, -1
        """After how many steps the script asked last for the leader, in a tail and elsewhere."""
        self.is_stopped = False
        """The job ends before this script is done."""

    def team_of_tail(self, generation: Generation) -> EvaluationTeam:
        """Return those who run the tail of a step, to evaluate: pipelines rehearse again after it.

        Tensors of other shapes may go from stage to stage meanwhile.
        """
        self.slots.has_rehearsed = False
        return self.membership.team(generation)

    @property
    def membership(self) -> WorkerMembership:
        """Who trains together with this replica."""
        if self._membership is None:
            raise UsageError("the session is used outside of its `with` block")
        return self._membership

    @property
    def leads(self) -> bool:
        """Whether this replica speaks for all."""
        return self.membership.leads if self.done is None else self.done.decision.is_leader

    @property
    def is_alone_in_tail(self) -> bool:
        """Whether a tail is running that this replica leads, and in which the script has asked."""
        return self.done is not None and self.leads and self._asked[0] == self.committed

    def ask_leader(self) -> bool:
        """Return it to the script, and take note of where that was."""
        in_tail, behind = self._asked
        is_tail = self.done is not None
        if is_tail and self.leads and in_tail != self.committed:
            self.guards.on_lead(self.committed - 1)
        self._asked = (self.committed, behind) if is_tail else (in_tail, self.committed)
        return self.leads

    @property
    def is_leaving(self) -> bool:
        """Whether this replica leaves the job, or the job ends before the script is done."""
        membership = self._membership
        return self.is_stopped or (membership is not None and membership.member.leaving)

    @property
    def committed(self) -> int:
        """Number of committed steps."""
        return self.membership.member.committed

    def join(self, membership: WorkerMembership) -> None:
        """Train together with these from now on."""
        self._membership = membership
        self._reports.begin()

    def arrive(self, total: int) -> bool:
        """Begin a call of ``steps()``; False if the job has finished it."""
        self.comparison.total = total
        if self.membership.arrive(total):
            return True
        # The code behind it draws what it drew where this call was trained: see next_step.
        randomness.seed_place("head", self.schedule.seed, total)
        return False

    def next_step(self, total: int) -> int | None:
        """End the tail and return the next step to compute; None if the call is over.

        Raises:
            SystemExit: this replica leaves, or the job was stopped before the call is over: what
                stands behind the loop is for a run that is done.
        """
        self.check_stopped()
        self.guards.on_boundary()
        self.land_logs()
        if self.is_alone_in_tail:
            self.guards.on_lead(None)
        done, self.done = self.done, None
        self.state.check_parameters()
        self.update.check_schedulers()
        self.update.forget_gradients()
        self.comparison.pass_boundary(self.committed)
        if done is not None:
            self._compare_whole(done, total)
        if self.recorder is not None:
            is_last = self._has_left_loop or self.committed >= total
            self.recorder.pass_boundary(self.membership, has_run=done is not None, is_last=is_last)
        ending = Ending.SCRIPT
        if not self._has_left_loop:
            is_last = self.committed >= total
            ending = self.membership.settle(is_over=False, is_last=is_last)
        if ending or self.committed >= total:
            self._end_call()
            self.is_stopped = ending is Ending.OUTSIDE and self.committed < total
            self.check_stopped()
            index = None
        else:
            index = self.committed
            current = self.membership.member.current  # else those who agreed are not together
            if done is not None and done.decision.is_saved and done.decision.generation == current:
                with suppress(GroupBroken):  # whoever is left keeps another boundary
                    self.keep(self.membership.place, is_needed=False)
        # Also for the code between two calls: who joined at the end of a call has run no tail.
        randomness.seed_place("head", self.schedule.seed, self.committed)
        self.guards.on_head(index)
        return index

    def check_stopped(self) -> None:
        """Let the script end once the job is stopped, as often as it asks for more."""
        if self.is_stopped:
            raise SystemExit(EXIT_OK)

    def leave_loop(self) -> None:
        """The script left the loop over steps with a ``break``: the job ends here."""
        if self.is_stopped:
            return
        self._has_left_loop = True
        self.land_logs()
        self._end_call()
        self.guards.on_head(None)

    def land_logs(self) -> None:
        """Have the leader append what was written to step logs since the last time."""
        done = self.done
        leads = self.membership.leads if done is None else done.decision.is_leader
        self.logs.land(self.membership.member.lineage, leads=leads)

    def next_batch(self, step: int) -> tuple[Any] | None:
        """Return the next micro-batch of ``step`` in a tuple; None once it is committed."""
        with self.guards.paused():
            batch = self._next_batch(step)
            if batch is not None and self.recorder is not None:
                self.recorder.enter(step, self.slots.open_slot, batch[0])
            return batch

    def backward(self, loss: torch.Tensor, weight: float | None) -> None:
        """Run the backward of the open micro-batch."""
        self.guards.on_loss(loss)
        self.slots.backward(loss, weight)
        if self.recorder is not None:
            self.recorder.computed(self.committed, self.slots.open_slot, loss)

    def feed(self, values: Mapping[str, float]) -> None:
        """Step the schedulers of these names."""
        with self.guards.paused():
            self.update.feed(values)
        self.comparison.feed(values)

    def _next_batch(self, step: int) -> tuple[Any] | None:
        while self.committed == step:
            try:
                if self._attempted != step:
                    self._begin(step)
                self.membership.formed()  # serves a Reform that came meanwhile
                self.guards.on_batch(step)
                batch = self.slots.next()
                if batch is not None:
                    self.guards.on_given(step)
                    return batch
                self._complete(step)
            except GroupBroken as broken:
                self.membership.recover(broken.reason)
        randomness.seed_place("tail", self.schedule.seed, step)
        probe.at("tail", step)
        return None

    def finish(self) -> None:
        """The script is done."""
        self.membership.finish(has_left_loop=self._has_left_loop)

    # --- what the members of a generation ask for (TrainingCallbacks) ----------------

    def commit_voted(self, decision: StepDecision) -> None:
        """Commit from the own reduced gradient; the protocol's value counts the step already."""
        result, self._result = self._result, None
        if result is None:
            raise RuntimeError("told to commit without a reduced result")
        probe.at("commit", result.step)
        gradient = result.gradient
        digest = gradient.digest
        is_skipped = bool(gradient.nonfinite) and self.on_nonfinite == "skip"
        self.update.apply(gradient, is_skipped=is_skipped, step=result.step)
        self.slots.commit(gradient.extras, is_skipped=is_skipped)
        self._attempted = None
        member = self.membership.member
        self.ledger.commit(
            lineage=member.lineage,
            step=result.step,
            generation=decision.generation,
            digest=digest,
            draws=self.schedule.draws_digest(result.step),
        )
        self.guards.on_commit(decision.is_leader)
        self.done = Done(loss=gradient.extras.loss, logged=result.logged, decision=decision)
        if self.recorder is not None:
            self.recorder.commit(result.step, digest)
        self._reports.tell(result.step, gradient, decision, member.replica, is_skipped=is_skipped)

    def give_up_attempt(self, *, buffers_may_be_written: bool) -> None:
        """Forget the unfinished attempt, if there is one."""
        self.slots.give_up()
        self._attempted = None
        self._result = None
        if buffers_may_be_written:
            self.slots.forget_buffers()

    def state_to_send(self) -> Any:
        """Return the state for joiners."""
        return self.state.capture_to_send()

    def dataset_attributes(self) -> bytes:
        """Return what joiners compare their dataset with."""
        return self.differences.pack_for_joiners()

    def compare_dataset(self, others: Sequence[bytes]) -> None:
        """Say in what the dataset here differs from those of the replicas that gave the state."""
        self.differences.compare(others)

    def allocate(self, document: Any, specs: Sequence[TensorSpec]) -> Sequence[torch.Tensor]:
        """Return where each tensor of a state is to be received."""
        return self.state.allocate(document, specs)

    def take_state(self, state: Any) -> None:
        """Take a received state."""
        self.state.apply(state)
        self.logs.begun_at = None
        self.comparison.receive()
        self.update.follow_schedulers()
        self._reports.begin()

    def restore(self, checkpoint: str, committed: int) -> None:
        """Take the state that a checkpoint holds."""
        dataset = self.saver.restore(checkpoint, committed)
        self.logs.begun_at = committed
        inputs = dataset.split(b"\n")[4:]  # old ones have none
        if self.inputs is not None and any(inputs):
            self.inputs.compare(inputs[0])
        self.differences.compare([dataset] if dataset else [], where="in the checkpoint")
        self.comparison.receive()
        self.update.follow_schedulers()
        self._reports.begin()

    def keep(self, place: tuple[int, int], *, is_needed: bool) -> None:
        """Hand over the share of the state at this boundary that a member at ``place`` has."""
        self.saver.save(self.membership.member, place, is_needed=is_needed)

    def asked_leader(self) -> tuple[bool, bool]:
        """Whether the script asks for the leader in the last tail, and behind it."""
        in_tail, behind = self._asked
        return in_tail == self.committed, behind == self.committed

    def is_kept(self) -> bool:
        """Whether this replica has done its part of all that was to be kept.

        Who leaves does not wait until older checkpoints are removed: the storage may be slow.
        """
        return self.saver.is_settled or (self.is_leaving and self.saver.may_be_left)

    def unsaved(self) -> str:
        """Why what was to be kept is not durable; empty if it is."""
        return self.saver.unsaved

    def lose(self) -> None:
        """A member of the generation is gone, or may be."""
        self.saver.lose()

    # --- helpers ------------------------------------------------------------------------

    def _begin(self, step: int) -> None:
        torch.clear_autocast_cache()  # the script may have changed weights that it had used before
        formed = self.membership.formed()
        self._reduction = formed.reduction
        self.slots.begin(
            Attempt(
                step=step,
                nodes=nodes(formed, self.shape),
                lineage=self.membership.member.lineage,
                generation=formed.order.generation,
                launch=formed.reduction.launch,
                tell=formed.reduction.tell,
                lent=formed.reduction.lent,
            )
        )
        self.comparison.begin(step)
        self.guards.on_step(step)
        self._attempted = step

    def _complete(self, step: int) -> None:
        """Reduce, decide and commit; or begin again what a replica found to be wrong."""
        launched_s = time.monotonic()
        *buckets, values = self.membership.reduce()
        reduced_s = time.monotonic()
        extras = Extras(values=values, num_parameters=len(self.shape.layout.parameters))
        probe.at("reduced", step)
        if extras.is_invalid:
            self.give_up_attempt(buffers_may_be_written=False)
            return
        self.comparison.look_again()
        logged, norms = logged_means(self._reduction.shared, self.shape.num_slots)
        self.update.agree_on_clip(norms, step)
        gradient = self.update.prepare(buckets, extras, step)
        if gradient.nonfinite and self.on_nonfinite == "stop":
            raise UsageError(
                f"{gradient.nonfinite} at step {step}{self.slots.nonfinite}; the run ends before "
                "that step, as on_nonfinite='stop' says"
            )
        if not gradient.nonfinite or self.on_nonfinite != "skip":
            self.slots.check(extras)
        self._result = Result(step=step, gradient=gradient, logged=logged)
        self.guards.on_computed()
        self.state.check_parameters()
        condition = Condition(
            digests=self.comparison.digests(),
            named=self.comparison.named,
            alike=self.comparison.alike,
            is_verified=bool(self.verify_every),
        )
        is_due = self.membership.leads and self.saver.is_due(
            self.membership.member, self.membership.asked_after
        )
        voted_s = time.monotonic()
        (vote_us, behind_us), self._behind_us = self._behind_us, (0, 0)
        times = MemberTimes(
            data_us=self.slots.data_us,
            compute_us=self.slots.compute_us + int(1e6 * (voted_s - reduced_s)) + behind_us,
            held_up_us=int(1e6 * (reduced_s - launched_s)) + vote_us,
        )
        requests = VoteRequests(
            stop=self.wants_stop, save=is_due, slot_us=self.slots.slot_us, times=times
        )
        decision = self.membership.decide(step, condition, requests)
        decided_s = time.monotonic()
        self.commit_voted(decision)
        behind_s = time.monotonic() - decided_s
        self._behind_us = int(1e6 * (decided_s - voted_s)), int(1e6 * behind_s)

    def _compare_whole(self, done: Done, total: int) -> None:
        """Compare the state that a checkpoint is made of, or a call of ``steps()`` ends with."""
        decision, committed = done.decision, self.committed
        team = self.membership.team(decision.generation)
        is_due = bool(self.verify_every) and committed % self.verify_every == 0
        is_needed = decision.is_saved or decision.is_stopped or committed >= total or is_due
        if not is_needed or team.place[1] == 1:
            return
        own, is_verified = self.membership.member.replica, bool(self.verify_every)
        wrong = compare_whole(self.comparison, team, own, committed, is_verified=is_verified)
        if wrong:
            self.membership.recover(wrong)

    def _end_call(self) -> None:
        """Keep what this call of ``steps()`` has come to, and count it."""
        while True:
            try:
                self.membership.await_kept()
                self.keep(self.membership.place, is_needed=True)
                break
            except GroupBroken as broken:
                self.membership.recover(broken.reason)
        self.membership.settle(is_over=True)
