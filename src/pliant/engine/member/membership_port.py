"""Membership, as a session sees it: who trains now, and how a step becomes final.

Owns the port between the session and the protocol, in both directions.  Must not know tensors'
meaning, optimizers or data.  ``alone`` and ``elastic`` are the two sides that a session may get.

All protocol state is one ``core.membership.member.Member`` value; whoever holds it replaces it,
never changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import torch

from pliant.core.membership.member import Member
from pliant.core.step.balance import UNKNOWN_US
from pliant.core.step.times import UNKNOWN_TIMES, MemberTimes
from pliant.core.values import Generation
from pliant.engine.evaluation import EvaluationTeam
from pliant.engine.member.formed import Formed
from pliant.engine.state.transfer import TensorSpec

KEPT_LOOK_S = 0.02
"""Between two looks whether the state is kept, in seconds."""

KEPT_S = 3600.0
"""Longest wait for what is being written: one operation of a storage may never return."""

NOT_KEPT = f"the last checkpoint was not written within {KEPT_S:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecision:
    """What the members agreed on with one step's metadata, beside its commit."""

    generation: Generation
    """Under which the step is recorded."""

    is_leader: bool
    """Whether this replica is the one that speaks for all in the tail."""

    is_stopped: bool = False
    """All have agreed to stop after this step."""

    is_saved: bool = False
    """The state after this step's tail is to be kept: each member hands over its share."""

    sizes: tuple[int, ...] = ()
    """Slots of each replica from the next step on, in rank order."""

    parts_us: tuple[int, ...] = ()
    """What the step's time went to, as ``core.step.times`` has it; empty: not known."""


class Ending(IntEnum):
    """Whether the job ends after a step, and who wants that; the greatest that a member says."""

    NONE = 0
    OUTSIDE = 1
    """A person, a signal or the pool: the script is not done, and may go on another day."""
    SCRIPT = 2
    """``step.stop()``: what stands behind the loop runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequests:
    """What a replica says with its vote: mostly what it wants from all."""

    stop: bool
    """End after this step: the script says so."""

    save: bool
    """Keep the state after this step's tail."""

    slot_us: int = UNKNOWN_US
    """How long it took for what it computes at once."""

    times: MemberTimes = UNKNOWN_TIMES
    """What its time went to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What all members must have alike before a step is committed; see ``guard.comparison``."""

    digests: tuple[int, ...]
    """63 bits of each aspect; 0: this member does not know."""

    named: Callable[[int], Mapping[str, str]]
    """What one of the aspects consists of, for the sentence once it differs."""

    alike: Callable[[Sequence[int]], tuple[int, ...]]
    """Of the digests, those of what the workers of one replica must have alike."""

    is_verified: bool = False
    """Whose tensors differ from those of most others leaves; the script is not blamed."""


class TrainingCallbacks(Protocol):
    """What a membership asks of the session when the members of a generation meet."""

    def commit_voted(self, decision: StepDecision) -> None:
        """Commit the step that was voted for from this replica's own reduced gradient."""

    def give_up_attempt(self, *, buffers_may_be_written: bool) -> None:
        """Forget an unfinished attempt at a step; parameters and buffers are as at its start."""

    def state_to_send(self) -> Any:
        """Return the state for joiners."""

    def dataset_attributes(self) -> bytes:
        """Return what joiners compare their dataset with."""

    def compare_dataset(self, others: Sequence[bytes]) -> None:
        """Say in what the dataset here differs from those of the replicas that gave the state."""

    def allocate(self, document: Any, specs: Sequence[TensorSpec]) -> Sequence[torch.Tensor]:
        """Return where each tensor of a state is to be received."""

    def take_state(self, state: Any) -> None:
        """Take a received state."""

    def restore(self, checkpoint: str, committed: int) -> None:
        """Take the state that a checkpoint holds.

        Raises:
            CheckpointDamaged: it cannot be used.
        """

    def keep(self, place: tuple[int, int], *, is_needed: bool) -> None:
        """Keep the state of this boundary, with all members of the generation.

        ``place``: rank of this replica among them, and their number.
        """

    def asked_leader(self) -> tuple[bool, bool]:
        """Whether the script asks for the leader in the last tail, and behind it."""

    def is_kept(self) -> bool:
        """Whether this replica has done its part of all that was to be kept."""

    def unsaved(self) -> str:
        """Why what was to be kept is not durable; empty if it is."""

    def lose(self) -> None:
        """A member of the generation is gone, or may be."""


class WorkerMembership(Protocol):
    """Who trains together with this replica now.

    ``formed``, ``reduce``, ``decide`` and ``await_kept`` raise GroupBroken once the generation is
    over or somebody has died: call ``recover``.
    """

    @property
    def member(self) -> Member:
        """The protocol's state."""

    @property
    def leads(self) -> bool:
        """Whether this replica is the first member of its generation."""

    @property
    def asked_after(self) -> int:
        """Number of committed steps after which someone wants a checkpoint; -1: nobody does."""

    def arrive(self, total: int = 0) -> bool:
        """Be a member that holds state, or learn that this ``steps()`` call is over: False."""

    def formed(self) -> Formed:
        """Return the generation to compute in; serves what is pending first."""

    def reduce(self) -> list[torch.Tensor]:
        """Wait for the step's reduced buckets, all launched before."""

    @property
    def place(self) -> tuple[int, int]:
        """Rank of this replica in the generation it is in, and the number of its members."""

    def decide(self, step: int, condition: Condition, requests: VoteRequests) -> StepDecision:
        """Vote for ``step``, whose reduced result is complete, and wait until it is committed.

        After GroupBroken it is not known whether the others committed it.
        """

    def recover(self, reason: str) -> None:
        """Enter the generation that follows a broken one; commits what was voted if told so."""

    def settle(self, *, is_over: bool, is_last: bool = False) -> Ending:
        """Between steps: hand over state, cross a boundary, serve a Reform.

        ``is_over``: this replica will compute no step of this ``steps()`` call any more.
        ``is_last``: that was the last, so too few replicas to train on are enough.  Return
        whether the job has agreed to end here.  Raises SystemExit on a replica that leaves.
        """

    def team(self, generation: Generation) -> EvaluationTeam:
        """Return those who run the tail of a step that was committed in ``generation``."""

    def tell_busy(self, max_s: float) -> None:
        """Tell supervision that no step will end for up to ``max_s``."""

    def told(self, call: str, flag: bool) -> bool:
        """Return what worker 0 of this replica says; every worker of it must call."""

    def await_kept(self) -> None:
        """Wait until this replica has done its part of what is being kept, or for ``KEPT_S``."""

    def finish(self, *, has_left_loop: bool) -> None:
        """The script is done: wait until nobody needs this replica.

        ``has_left_loop``: with a ``break``, before the job was over.
        """
