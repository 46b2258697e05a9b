"""What one worker knows about its membership, and what it is in the middle of.

Owns the value, the one function that replaces it and asks the table of its states, and what it
registers with a new coordinator.  What changes it is in ``member``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pliant.core.errors import TransitionError
from pliant.core.events import Registered, Spare
from pliant.core.membership.transitions import MEMBERS, MemberState
from pliant.core.transitions import Story, extended
from pliant.core.values import (
    FIRST_LINEAGE,
    NO_GENERATION,
    NO_INCARNATION,
    Generation,
    Incarnation,
    Lineage,
    Order,
    ReplicaId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Everything one worker knows about its membership; a plain value, safe to log."""

    replica: ReplicaId

    incarnation: Incarnation = NO_INCARNATION
    """Newest coordinator heard of; commands of an older one are refused (R3)."""

    lineage: Lineage = FIRST_LINEAGE

    committed: int = 0
    """Number of committed steps.  Counts the moment of decision: the optimizer runs after it."""

    made_by: Generation = NO_GENERATION
    """Generation that made the last commit."""

    calls: int = 0

    has_state: bool = False
    """False for a joiner, and again from being told to receive until the last digest matched."""

    leaving: bool = False
    """Crossed a boundary that left it behind; waits for Release."""

    stopping: bool = False
    """Was told to stop; says so in the next metadata."""

    current: Generation = NO_GENERATION
    """Generation it is in; 0: none entered yet."""

    sealed: Generation = NO_GENERATION
    """Highest Reform accepted: nothing of an older generation is looked at any more (R13)."""

    prepared: Order | None = None
    """Newest Prepare that is neither entered nor given up."""

    ordered: Order | None = None
    """``prepared``, once its Switch has arrived: it ends only by completion or Reform (R7)."""

    reform: Order | None = None
    """Reform accepted and not yet entered."""

    built: bool = False
    """The groups of ``reform``, else of ``prepared``, are built and not known to be broken."""

    vote: tuple[int, Generation] | None = None
    """(step, generation) of which it holds the complete reduced result, uncommitted."""

    broken: bool = False
    """A collective of ``current`` failed here; only a Reform helps."""

    story: Story = field(default=(), compare=False, repr=False)
    """What happened to it last."""


def state_of(member: Member) -> MemberState:
    """Return what a member is in the middle of; what weighs most comes first."""
    if member.leaving:
        return MemberState.LEAVING
    if member.reform is not None:
        return MemberState.MEETING if member.built else MemberState.REFORMING
    if member.broken:
        return MemberState.BROKEN
    if member.ordered is not None:
        return MemberState.ORDERED if member.built else MemberState.UNREADY
    if member.prepared is not None:
        return MemberState.PREPARED if member.built else MemberState.PREPARING
    return MemberState.TRAINING if member.current else MemberState.SPARE


def became(before: Member, cause: str, after: Member, detail: object = "") -> Member:
    """Return ``after``, which a cause has made of ``before``.  Nothing else replaces a member.

    Raises:
        TransitionError: that cause does not lead there.
    """
    state = MEMBERS.follow(state_of(before), cause, state_of(after), story=before.story)
    return replace(after, story=extended(before.story, f"{cause} {detail}: {state}"))


def refusal(member: Member, event: str) -> TransitionError:
    """Return the error that a member may not do this now."""
    phase = f"{state_of(member)}, committed={member.committed}, sealed={member.sealed}"
    return TransitionError(phase=phase, event=event, story=member.story)


def registration(member: Member, *, spare: Spare | None, finished: bool) -> Registered:
    """Return where this member stands.

    An accepted Reform has sealed ``current``: that group is as good as broken.
    """
    return Registered(
        replica=member.replica,
        asked_by=member.incarnation,
        lineage=member.lineage,
        committed=member.committed if member.has_state else 0,
        calls=member.calls,
        has_state=member.has_state,
        current=member.current,
        prepared=_number(member.prepared),
        ordered=_number(member.ordered),
        broken=member.broken or member.current < member.sealed,
        leaving=member.leaving,
        finished=finished,
        spare=spare,
    )


def _number(order: Order | None) -> Generation:
    return NO_GENERATION if order is None else order.generation
