"""Membership of one job: who trains together, and how that set changes.

Owns the value behind the coordinator's half of the protocol, what can be read off it, and the one
function that changes its phase.  The moves are in ``changes`` (plan, lose, tick), ``worker_events``
(what workers say) and ``rejoin`` (what a new coordinator begins with); where they lead is in
``docs/reference/states.md``.  None of them chooses *which* replicas to add or let go (the
controller does) or knows of nodes, processes, sockets, torch or the wall clock.

A Broken waits ``grace_s`` for the exit report that mostly explains it, then everybody reforms.
Silence past a deadline is a loss, so there is one failure path instead of two.  News of an older
attempt is stale: dropped, counted, never an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pliant.core.commands import Command
from pliant.core.errors import TransitionError
from pliant.core.events import Spare
from pliant.core.heartbeats import SILENCE_S, found_at_s
from pliant.core.membership.transitions import PHASES, Phase
from pliant.core.table import Table
from pliant.core.values import (
    FIRST_LINEAGE,
    NO_GENERATION,
    Generation,
    Incarnation,
    Lineage,
    Order,
    Register,
    ReplicaId,
    Restore,
    Seat,
)

Link = tuple[ReplicaId, ReplicaId]
"""Two members, in the order of their names, one of which could not connect to the other."""

NOBODY: frozenset[ReplicaId] = frozenset()
NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long each phase may wait before silence counts as loss.  All in seconds."""

    prepare_s: float = 60.0
    """Building groups beside training takes milliseconds; a script that compiles can starve it."""

    step_s: float = 600.0
    """From Switch until all members have reached the boundary: one step, tail included."""

    reform_s: float = 300.0
    """From Reform until all members are there: the rest of a micro-batch, which may compile its
    kernels, or of a tail."""

    switch_s: float = 120.0
    """From there until all are in: headers and state transfer."""

    hang_s: float = 1800.0
    """Without a committed step for so long, a member that others wait for and that waits for nobody
    is hung.  As long as torch lets a collective wait; Busy allows for more."""

    register_s: float = 20.0
    """From the start of a new coordinator until the members of the newest generation have said
    where they stand.  Agents look for a lost coordinator for 10 s; theirs is the longest way."""

    grace_s: float = 0.1
    """From a Broken until everybody reforms: time for the exit report of whoever died."""

    heartbeat_s: float = SILENCE_S
    """Silence that ends a replica, unless nobody else holds the state.  Heartbeats come twice a
    second, less often from more than 200 replicas (``core.heartbeats``), from its agent if its
    script keeps the interpreter lock; from one that was stopped, or that waits for a device that
    does not answer, none do.  If no event at all came for a quarter of it, it was the coordinator
    that slept: then everyone has another fifth to report."""

    retry_s: float = 0.5
    """Pause after an attempt that failed with nobody to drop; grows with each in a row."""

    @property
    def asleep_s(self) -> float:
        """Return how long no event at all must have come for it to have been the coordinator."""
        return self.heartbeat_s / 4

    def at_steps_of(self, step_s: float) -> Timeouts:
        """Return these, with patience for steps that usually take so long, tail included."""
        if 4 * step_s <= min(self.step_s, self.reform_s) and 20 * step_s <= self.hang_s:
            return self
        bounds = {"step_s": 4, "reform_s": 4, "hang_s": 20}
        longer = {
            name: n * step_s for name, n in bounds.items() if n * step_s > getattr(self, name)
        }
        return replace(self, **longer) if longer else self


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What every transition needs besides the state."""

    now_s: float
    """Monotonic seconds; must not run backwards between calls."""

    timeouts: Timeouts

    min_replicas: int
    """With fewer members a generation holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """The last sign of life of one replica."""

    silent_at_s: float
    """When silence turns into loss."""

    busy_until_s: float = 0.0
    """Until when it asked not to be taken for hung."""

    committed: int = 0

    waiting: Generation = NO_GENERATION
    """In which generation it said last that it waits for the other members."""

    held_up_by: int | None = None
    """Its worker for which, as it said last, its other workers wait."""

    hung_at_s: float = NEVER
    """When it counts as hung, as it says so all the time, or is mute, and no step is committed."""

    mute_at_s: float = NEVER
    """Since when its agent speaks for it: it lives, and its threads do not come to do anything."""

    @property
    def is_mute(self) -> bool:
        """Whether its agent spoke for it last."""
        return self.mute_at_s < NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Which generations were ordered, and who is in them (``changes``)."""

    issued: Generation = NO_GENERATION
    """Highest number issued, for Prepare or otherwise.  Never reused."""

    formed: Generation = NO_GENERATION
    """Last generation that all its members reported to be in."""

    recorded: Order | None = None
    """The newest Switch or Reform."""

    gone: frozenset[ReplicaId] = NOBODY
    """Members of ``recorded`` that are known to be lost."""

    attempt: Order | None = None
    """What is being prepared; None outside PREPARING."""

    joiners: frozenset[ReplicaId] = NOBODY
    """New members of the attempt, or of ``recorded`` until they report to be in it."""

    leavers: frozenset[ReplicaId] = NOBODY
    """Who the attempt, or ``recorded``, leaves behind; empty once they are released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseWait:
    """Whose answers the phase waits for, and until when (``worker_events``, ``silence``)."""

    awaiting: frozenset[ReplicaId] = NOBODY
    """Replicas whose answer the phase still needs."""

    arrived: frozenset[ReplicaId] = NOBODY
    """Those of them that say that they themselves wait for the others."""

    deadline_s: float = NEVER
    """When waiting for ``awaiting`` ends."""

    hung_at_s: float = NEVER
    """When members that train are looked at because no step was committed."""

    is_hurried: bool = False
    """The deadline of this attempt was cut short for a leaver: being late is no fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What went wrong since the last generation formed, and who may be why (``blame``)."""

    broken: Generation = NO_GENERATION
    """Highest generation reported broken."""

    reform_at_s: float = NEVER
    """When everybody reforms because of a Broken that no known loss explains."""

    late: frozenset[ReplicaId] = NOBODY
    """Old members that let the previous attempt pass in silence."""

    unheard: frozenset[ReplicaId] = NOBODY
    """Replicas that are silent past their deadline and kept: nobody else holds the state."""

    passed_over: frozenset[ReplicaId] = NOBODY
    """Joiners that were too slow for a leaver in a hurry; asked again after the next change."""

    links: frozenset[Link] = frozenset()
    """Between which replicas no connection could be made since a generation was formed."""

    cut: frozenset[Link] = frozenset()
    """By which of them somebody has just been left out; for whoever calls the move."""

    failures: int = 0
    """Attempts that failed in a row without a loss."""

    retry_at_s: float = 0.0
    """No new attempt before this."""

    unsure: frozenset[ReplicaId] = NOBODY
    """Replicas of the last group that could not be built or broke, not heard since: each may be
    why."""

    suspects: frozenset[ReplicaId] = NOBODY
    """Joiners that are dropped once all others are heard: two attempts with them failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Everything needed to decide the next move; a plain value, safe to log."""

    incarnation: Incarnation
    lineage: Lineage = FIRST_LINEAGE
    restore: Restore | None = None
    """The newest restore: what this lineage began from, if it is not the first."""

    phase: Phase = Phase.EMPTY
    orders: Orders = Orders()
    wait: PhaseWait = PhaseWait()
    trouble: Trouble = Trouble()

    spares: Table[ReplicaId, Spare] = field(default_factory=Table)
    """Replicas that wait to join, joiners of a running attempt included."""

    pulses: Table[ReplicaId, Pulse] = field(default_factory=Table)
    """One entry for every replica that has ever reported and is not lost."""

    calls: int = 0
    """Finished ``steps()`` calls of the members."""

    committed: int = 0
    """Highest number of committed steps that anyone reported."""

    finished: frozenset[ReplicaId] = NOBODY
    """Members that have done the last step."""

    stale: int = 0
    """Messages dropped because they came too late."""


Outcome = tuple[Membership, tuple[Command, ...]]


def moved(state: Membership, cause: str, phase: Phase) -> Membership:
    """Return the state in the phase that a cause leads to.  Nothing else sets a phase.

    Raises:
        TransitionError: it does not lead there.
    """
    return replace(state, phase=PHASES.follow(state.phase, cause, phase))


def forget(state: Membership, lost: frozenset[ReplicaId]) -> Membership:
    """Expect no sign of life from these any more."""
    return replace(
        state,
        spares=state.spares.drop(*lost),
        pulses=state.pulses.drop(*lost),
        trouble=replace(
            state.trouble,
            late=state.trouble.late - lost,
            unheard=state.trouble.unheard - lost,
            passed_over=state.trouble.passed_over - lost,
            unsure=state.trouble.unsure - lost,
            suspects=state.trouble.suspects - lost,
        ),
        finished=state.finished - lost,
    )


def waited_for(state: Membership, names: frozenset[ReplicaId], until_s: float) -> Membership:
    """Bear the silence of these for longer."""
    pulses = {name: replace(state.pulses[name], silent_at_s=until_s) for name in names}
    state = replace(
        state,
        trouble=replace(state.trouble, unheard=state.trouble.unheard | names),
        pulses=Table({**state.pulses, **pulses}),
    )
    return explained(state, names)


def explained(state: Membership, names: frozenset[ReplicaId]) -> Membership:
    """Return the state in which nobody else is to blame if one of these may be why a group failed.

    They are lost, or silent: no group could be built with them.
    """
    if not names & state.trouble.unsure:
        return state
    return replace(
        state,
        trouble=replace(
            state.trouble, unsure=NOBODY, suspects=NOBODY, failures=0, reform_at_s=NEVER
        ),
    )


# --- reading the state --------------------------------------------------------------


def members(state: Membership) -> tuple[ReplicaId, ...]:
    """Return the members of the recorded generation that are not lost, in rank order."""
    return tuple(seat.replica for seat in seats(state))


def outsiders(state: Membership) -> frozenset[ReplicaId]:
    """Return the joiners that are not in yet, once a first generation has formed."""
    return state.orders.joiners if state.orders.formed else NOBODY


def dispensable(state: Membership, names: frozenset[ReplicaId]) -> frozenset[ReplicaId]:
    """Return those of these without whom somebody is left who holds state that was trained."""
    holders = frozenset(members(state)) - outsiders(state) if state.committed else NOBODY
    return names - holders if holders <= names else names


def mute_holders(state: Membership) -> frozenset[ReplicaId]:
    """Return the members with state that cannot build a group now: a script keeps the lock."""
    return mute_of(state, frozenset(members(state)) - outsiders(state))


def unable_joiners(state: Membership) -> frozenset[ReplicaId]:
    """Return the joiners that cannot build a group now, nor could anybody who was to with them."""
    return unable_of(
        state, outsiders(state) if state.orders.attempt is None else state.orders.joiners
    )


def unable_of(state: Membership, names: Iterable[ReplicaId]) -> frozenset[ReplicaId]:
    """Return those of these that are mute, or of which a worker keeps the rest waiting."""
    said = ((name, state.pulses[name]) for name in names if name in state.pulses)
    return frozenset(r for r, pulse in said if pulse.is_mute or pulse.held_up_by is not None)


def mute_of(state: Membership, names: Iterable[ReplicaId]) -> frozenset[ReplicaId]:
    """Return those of these whose agents speak for them."""
    return frozenset(r for r in names if r in state.pulses and state.pulses[r].is_mute)


def mute_until_s(state: Membership, moment: Moment) -> float:
    """Return until when nobody is blamed, as one of the awaited that hold state is mute.

    Soon it is looked again; in all it has as long as one that hangs.
    """
    mute = mute_holders(state) & (state.wait.awaiting - state.wait.arrived)
    since_s = max((state.pulses[r].mute_at_s for r in mute), default=-NEVER)
    return min(moment.now_s + moment.timeouts.heartbeat_s, since_s + moment.timeouts.hang_s)


def busy_until_s(state: Membership, names: Iterable[ReplicaId]) -> float:
    """Return until when one of these has asked for patience."""
    said = (state.pulses[name] for name in names if name in state.pulses)
    return max((pulse.busy_until_s for pulse in said), default=0.0)


def is_finished(state: Membership) -> bool:
    """Whether everyone left who takes part in the training has done the last step.

    A joiner that the last boundary left outside is not waited for.  Switched precedes Finished on
    the way here, so a boundary that was crossed is known.
    """
    present = set(members(state))
    crossed = state.orders.recorded is not None and len(state.wait.awaiting) < len(present)
    if state.phase in (Phase.SWITCHING, Phase.REFORMING) and state.orders.formed and not crossed:
        present -= state.orders.joiners
    return bool(present) and present <= state.finished


def register(state: Membership) -> Register:
    """Return what must be durable before the commands of this state are sent (R2)."""
    recorded = state.phase is not Phase.PREPARING
    return Register(
        incarnation=state.incarnation,
        number=state.orders.issued,
        lineage=state.lineage,
        newest=state.orders.recorded,
        joiners=tuple(sorted(state.orders.joiners)) if recorded else (),
        leavers=tuple(sorted(state.orders.leavers)) if recorded else (),
        restore=state.restore,
    )


def found_silent_at_s(state: Membership) -> float:
    """Return when the next are to be lost for their silence, and all together that are so then."""
    return found_at_s(pulse.silent_at_s for pulse in state.pulses.values())


def under_way(state: Membership) -> Order:
    """Return the attempt that is being prepared, else the newest Switch or Reform."""
    order = state.orders.attempt or state.orders.recorded
    if order is None:
        event = "to ask for the generation under way"
        raise TransitionError(phase=state.phase, event=event)
    return order


def seats(state: Membership) -> tuple[Seat, ...]:
    """Return the seats of ``members``."""
    if state.orders.recorded is None:
        return ()
    return tuple(
        seat for seat in state.orders.recorded.members if seat.replica not in state.orders.gone
    )
