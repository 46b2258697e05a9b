"""One worker's half of the protocol: what it knows, and what commands and collectives do to it.

Owns the value, the one function that replaces it (``became`` asks the table of its states), what it
registers with a new coordinator, and every transition.  Knows nothing of sockets, threads or torch:
the engine carries out the tasks that the transitions return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pliant.core.errors import TransitionError
from pliant.core.events import Broken, Prepared, Refused, Registered, Spare
from pliant.core.membership.resolve import NO_STEP, Header, Resolution
from pliant.core.membership.transitions import MEMBERS, MemberState
from pliant.core.transitions import EventHistory, extended
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

    history: EventHistory = field(default=(), compare=False, repr=False)
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
    state = MEMBERS.follow(state_of(before), cause, state_of(after), history=before.history)
    return replace(after, history=extended(before.history, f"{cause} {detail}: {state}"))


def refusal(member: Member, event: str) -> TransitionError:
    """Return the error that a member may not do this now."""
    phase = f"{state_of(member)}, committed={member.committed}, sealed={member.sealed}"
    return TransitionError(phase=phase, event=event, history=member.history)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Build the groups of ``order`` on a background thread; report the result to this module."""

    order: Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Never wait for, or look at, a group or build of this generation again."""

    generation: Generation


Task = Build | Abandon | Prepared | Refused | Broken | Registered
"""What a transition causes: work for the engine, or an event to send to the coordinator."""

Outcome = tuple["Member", tuple[Task, ...]]


# --- commands of the coordinator ---------------------------------------------------


def on_prepare(member: Member, order: Order, incarnation: Incarnation) -> Outcome:
    """Start to build ``order``, or answer at once when it leaves this member behind.

    A newer attempt takes the place of an older one unless that one's Switch has arrived.  The
    same order again repeats the answer.
    """
    if _is_old(member, incarnation):
        return member, ()
    known = replace(member, incarnation=incarnation)
    if member.prepared is not None and order.generation == member.prepared.generation:
        member = became(member, "Prepare", known, order.generation)
        return member, _prepared(member, order.generation) if member.built else ()
    if (
        member.leaving
        or member.ordered is not None
        or member.reform is not None
        or order.generation <= newest(member)
    ):
        return became(member, "Prepare", known, order.generation), ()
    older = _abandon(member.prepared)
    leaver = member.replica not in order.replicas
    prepared = replace(known, prepared=order, built=leaver)
    member = became(member, "Prepare", prepared, order.generation)
    return member, older + (
        _prepared(member, order.generation) if leaver else (Build(order=order),)
    )


def on_switch(member: Member, order: Order, incarnation: Incarnation) -> Outcome:
    """Remember that the prepared order is to be entered at the boundary."""
    if _is_old(member, incarnation):
        return member, ()
    after = replace(member, incarnation=incarnation)
    if member.prepared is not None and member.prepared.generation == order.generation:
        after = replace(after, ordered=order)
    return became(member, "Switch", after, order.generation), ()


def on_reform(member: Member, order: Order, incarnation: Incarnation) -> Outcome:
    """Seal every older generation and build ``order`` now.

    A joiner that holds no state and is not in ``order`` is a spare again.

    The caller stops waiting for any collective of an abandoned generation at once.  A vote is
    kept: it is what the header will say.
    """
    if _is_old(member, incarnation):
        return member, ()
    known = replace(member, incarnation=incarnation)
    if member.leaving or order.generation <= newest(member):
        return became(member, "Reform", known, order.generation), ()
    older = _abandon(member.prepared) + _abandon(member.reform)
    if member.replica not in order.replicas:
        if member.has_state:
            return became(member, "Reform", known, order.generation), ()
        spare = replace(
            known, sealed=order.generation, prepared=None, ordered=None, reform=None, built=False
        )
        return became(member, "Reform", spare, order.generation), older
    if member.current:
        older += (Abandon(generation=member.current),)
    sealed = replace(
        known,
        sealed=order.generation,
        reform=order,
        prepared=None,
        ordered=None,
        built=False,
        broken=member.current != NO_GENERATION,
    )
    return became(member, "Reform", sealed, order.generation), (*older, Build(order=order))


def on_roll_call(
    member: Member, incarnation: Incarnation, *, spare: Spare | None, finished: bool
) -> Outcome:
    """Answer a new coordinator, and obey no older one from here on (R3, R4).

    ``member`` is the value as it is when the answer is written: nothing may be lost in between.
    ``spare`` is what this worker said when it last waited in ``steps()``.
    """
    if _is_old(member, incarnation):
        return member, ()
    member = became(member, "RollCall", replace(member, incarnation=incarnation), incarnation)
    return member, (registration(member, spare=spare, finished=finished),)


def told_to_stop(member: Member) -> Member:
    """Want to stop; says so in the next metadata."""
    return became(member, "Stop", replace(member, stopping=True))


def dismissed(member: Member) -> Member:
    """Be told that the job goes on without this replica, wherever it is."""
    return became(member, "Dismiss", replace(member, leaving=True))


# --- what the engine reports --------------------------------------------------------


def on_built(member: Member, generation: Generation) -> Outcome:
    """Take note that the groups of ``generation`` are built; stale if that is not awaited."""
    order = entering(member)
    if order is None or order.generation != generation or member.built:
        return member, ()
    member = became(member, "built", replace(member, built=True), generation)
    return member, () if member.reform is not None else _prepared(member, generation)


def on_build_failed(
    member: Member, generation: Generation, reason: str, unreached: Sequence[ReplicaId] = ()
) -> Outcome:
    """Say that ``generation`` cannot be built here; it takes a new number to try again.

    Nobody is blamed, not even by a joiner: mostly another member has died.
    """
    order = entering(member)
    if order is None or order.generation != generation or member.built:
        return member, ()
    if member.reform is not None:
        broken = Broken(replica=member.replica, generation=generation, reason=reason)
        return member, (replace(broken, unreached=tuple(unreached)),)
    refused = Refused(replica=member.replica, generation=generation, reason=reason, joiner=False)
    refused = replace(refused, unreached=tuple(unreached))
    member = became(member, "not built", replace(member, prepared=None), generation)
    return member, (Abandon(generation=generation), refused)


def on_broken(member: Member, generation: Generation, reason: str) -> Outcome:
    """Take note that a group failed: the current one, or the one to be entered.

    Either way the coordinator hears of it once.  The member names no generation in its metadata
    any more if the group that it was ready to enter is the broken one (R7).
    """
    news = (Broken(replica=member.replica, generation=generation, reason=reason),)
    if generation < member.sealed:
        return member, ()
    if generation == member.current:
        if member.broken:
            return member, ()
        return became(member, "broken", replace(member, broken=True), generation), news
    order = entering(member)
    if order is None or order.generation != generation or not member.built:
        return member, ()
    return became(member, "broken", replace(member, built=False), generation), news


# --- steps ----------------------------------------------------------------------------


def is_sealed(member: Member, generation: Generation) -> bool:
    """Whether a completion in ``generation`` comes too late to be looked at (R13)."""
    return generation < member.sealed


def voted(member: Member, step: int) -> Member:
    """Record the complete reduced result of ``step``; call before issuing the metadata (R14).

    Raises:
        TransitionError: the current generation is sealed, ask ``is_sealed`` first; or the step is
            not the next one.
    """
    if (
        is_sealed(member, member.current)
        or step != member.committed
        or not (member.has_state and member.current)
    ):
        raise refusal(member, f"vote for step {step}")
    return became(member, "vote", replace(member, vote=(step, member.current)), step)


def committed(member: Member, generation: Generation) -> Member:
    """Commit the step voted for: its metadata exchange completed in ``generation``.

    Call under the lock, at the completion and before the optimizer runs.

    Raises:
        TransitionError: the generation is sealed or was not voted in; ask ``is_sealed`` first.
    """
    if is_sealed(member, generation) or member.vote != (member.committed, generation):
        raise refusal(member, f"commit in {generation}")
    return became(member, "commit", _with_vote(member), generation)


def call_finished(member: Member) -> Member:
    """Count a finished ``steps()`` call."""
    return became(member, "call finished", replace(member, calls=member.calls + 1))


def ready_number(member: Member) -> Generation:
    """Return the generation this member is ready to enter, for its metadata; 0 for none (R7)."""
    if member.ordered is None or not member.built or member.broken or member.reform is not None:
        return NO_GENERATION
    return member.ordered.generation


def boundary(member: Member, numbers: Sequence[Generation]) -> Generation:
    """Return the generation to enter now, from all members' numbers of one completed metadata.

    0 unless all named the same one.  What a member has learned since it wrote its own number does
    not count: the others have crossed.
    """
    ordered = NO_GENERATION if member.ordered is None else member.ordered.generation
    return ordered if numbers and all(one == ordered for one in numbers) else NO_GENERATION


# --- entering a generation ---------------------------------------------------------------


def entering(member: Member) -> Order | None:
    """Return the order whose groups are being built or waited for: the Reform first."""
    return member.reform if member.reform is not None else member.prepared


def header(member: Member) -> Header:
    """Return what this member says of itself in the header exchange."""
    vote = member.vote if member.has_state else None
    step, generation = vote or (NO_STEP, NO_GENERATION)
    return Header(
        lineage=member.lineage,
        committed=member.committed if member.has_state else 0,
        made_by=member.made_by if member.has_state else NO_GENERATION,
        vote_step=step,
        vote_generation=generation,
        has_state=member.has_state,
        calls=member.calls,
    )


def resolved(member: Member, resolution: Resolution, replica_rank: int) -> Member:
    """Take this member's part of a resolution; call under the lock, before acting on it.

    One that commits does so under the generation of its vote; one that redoes the step forgets
    its vote; one that receives holds no state until ``received``.  The origin of a restore receives
    from storage.
    """
    if replica_rank in resolution.commits:
        return became(member, "resolved", _with_vote(member), "to commit")
    if replica_rank in resolution.survivors and resolution.restore is None:
        return became(member, "resolved", replace(member, vote=None, has_state=True), "to go on")
    return became(member, "resolved", replace(member, vote=None, has_state=False), "to receive")


def received(member: Member, resolution: Resolution) -> Member:
    """Hold the state: the digest of the last chunk, or of what was loaded, matched (R8, R20)."""
    after = replace(
        member,
        lineage=resolution.lineage,
        committed=resolution.committed,
        made_by=resolution.made_by,
        calls=resolution.calls,
        has_state=True,
        vote=None,
    )
    return became(member, "received", after, resolution.committed)


def restored(member: Member, committed: int, lineage: Lineage) -> Member:
    """Go on from a checkpoint, in a lineage of its own; for a script that runs alone."""
    return became(member, "restored", replace(member, committed=committed, lineage=lineage))


def entered(member: Member, order: Order) -> Member:
    """Be in ``order``: headers agreed, state held.  The caller tells Switched.

    Raises:
        TransitionError: a newer Reform was accepted meanwhile, or no state is held.
    """
    if is_sealed(member, order.generation) or not member.has_state:
        raise refusal(member, f"enter {order.generation}")
    after = replace(
        member,
        current=order.generation,
        prepared=None,
        ordered=None,
        reform=None,
        built=False,
        broken=False,
    )
    return became(member, "entered", after, order.generation)


def left(member: Member) -> Member:
    """Be a leaver that has crossed: it takes part in nothing more and waits for Release."""
    after = replace(member, leaving=True, prepared=None, ordered=None, built=False)
    return became(member, "left", after)


def newest(member: Member) -> Generation:
    """Return the highest generation this member has acted on."""
    known = (order.generation for order in (member.prepared, member.reform) if order is not None)
    return max(member.current, member.sealed, *known, key=int)


def _is_old(member: Member, incarnation: Incarnation) -> bool:
    return incarnation < member.incarnation


def _prepared(member: Member, generation: Generation) -> tuple[Task, ...]:
    return (Prepared(replica=member.replica, generation=generation),)


def _abandon(order: Order | None) -> tuple[Task, ...]:
    return () if order is None else (Abandon(generation=order.generation),)


def _with_vote(member: Member) -> Member:
    """Return the member with the step committed that it voted for."""
    if member.vote is None or member.vote[0] != member.committed:
        raise refusal(member, f"commit {member.vote}")
    step, generation = member.vote
    return replace(member, committed=step + 1, made_by=generation, vote=None, has_state=True)
