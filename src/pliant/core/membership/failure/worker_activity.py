"""What workers are doing: who hangs, and who waits for whom.

A member hangs if others wait for it and it waits for nobody (``awaited``).  A replica of several
workers says itself which of them keeps the others waiting (``blocking_worker``, which the replica
works out).  The agent of a spare says that the script keeps the interpreter lock.  Those count in
every phase (``stuck``).  A member that keeps the lock may hold the state: see ``blame`` and
``silence``.  ``silence`` decides what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pliant.core.membership.state import (
    NEVER,
    NOBODY,
    Membership,
    Moment,
    Pulse,
    members,
    mute_of,
)
from pliant.core.membership.transitions import Phase
from pliant.core.values import ReplicaId


def awaited(state: Membership) -> frozenset[ReplicaId]:
    """Return the members that others wait for and that wait for nobody."""
    present = frozenset(members(state))
    if state.phase is Phase.REFORMING:
        return (state.wait.awaiting - state.wait.arrived) & present
    waiting = frozenset(r for r in present & state.pulses.keys() if _waits(state, r))
    waiting |= state.finished
    return present - waiting if waiting else NOBODY


def is_waiting(state: Membership) -> bool:
    """Whether a member waits for the others in the generation that trains."""
    return any(_waits(state, r) for r in members(state) if r in state.pulses)


def _waits(state: Membership, name: ReplicaId) -> bool:
    return state.pulses[name].waiting == state.orders.formed


def stuck(state: Membership) -> dict[ReplicaId, float]:
    """Return the replicas of which a worker keeps the rest waiting, and when each counts as hung.

    Spares, too: one that hangs can never join; nor can one that is mute, which holds nothing that
    others need.  Not those that have fallen silent since, nor those that have done their last step
    or wait for their release.
    """
    said = {r: pulse.hung_at_s for r, pulse in state.pulses.items() if pulse.hung_at_s < NEVER}
    if not said:
        return said
    present = frozenset(members(state))
    others = state.finished | state.trouble.unheard | (state.orders.leavers - present)
    others |= mute_of(state, said) - (state.spares.keys() - present)
    return {r: hung_at_s for r, hung_at_s in said.items() if r not in others}


def stuck_alike(state: Membership, names: frozenset[ReplicaId]) -> frozenset[ReplicaId]:
    """Return those of these that are ended together: members first, then for one reason."""
    found = names & frozenset(members(state)) or names
    return mute_of(state, found) or found


def held_up_by(state: Membership) -> frozenset[ReplicaId]:
    """Return the members that the others wait for; while no member waits, those that are stuck."""
    return awaited(state) or frozenset(members(state)).intersection(stuck(state))


def counts_as_hung_at_s(
    pulse: Pulse, held_up_by: int | None, committed: int, moment: Moment
) -> float:
    """Return when one counts as hung that says now who keeps its other workers waiting, or mute."""
    if held_up_by is None and not pulse.is_mute:
        return NEVER
    is_as_before = (held_up_by is None) == (pulse.held_up_by is None)
    if pulse.hung_at_s < NEVER and is_as_before and committed == pulse.committed:
        return pulse.hung_at_s
    return moment.now_s + moment.timeouts.hang_s


def why_hung(state: Membership, hung: frozenset[ReplicaId], hang_s: float) -> str:
    """Say why these are ended: members, or spares alone."""
    present = frozenset(members(state))
    longer = "announce longer pauses with session.busy(max_s)"
    if not hung & present and mute_of(state, hung) == hung:
        return f"its script kept the interpreter lock for {hang_s:g} s; {longer}"
    worker = next((w for r in sorted(hung) if (w := state.pulses[r].held_up_by) is not None), None)
    who = "the others wait for it"
    if worker == EACH_OTHER:
        who = "its workers wait for each other, so their scripts made other calls"
    elif worker is not None:
        who = f"the others wait for its worker {worker}"
    what = "no step ended" if hung & present else "nothing went on in it"
    return f"{what} for {hang_s:g} s and {who}; {longer}"


EACH_OTHER = -1
"""Stands for a worker: all wait for each other, as if their scripts made other calls."""


class Whereabouts(StrEnum):
    """Where the main thread of a worker is."""

    MEMBERS = "members"
    """It waits for the workers of its place in other replicas."""

    REPLICA = "replica"
    """It has been waiting for other workers of its replica."""

    SCRIPT = "script"
    """In the script, or in what that calls: it computes, or hangs."""

    ENGINE = "engine"
    """In the session's own work, or not known."""


def waits(workers: Sequence[Whereabouts]) -> bool:
    """Whether a replica waits for the other members: none of its workers is anywhere else."""
    return Whereabouts.MEMBERS in workers and Whereabouts.SCRIPT not in workers


def blocking_worker(workers: Sequence[Whereabouts]) -> int | None:
    """Return which worker keeps others of its replica waiting; None: nobody does."""
    if Whereabouts.REPLICA not in workers:
        return None
    if Whereabouts.SCRIPT in workers:
        return workers.index(Whereabouts.SCRIPT)
    return EACH_OTHER if set(workers) == {Whereabouts.REPLICA} else None
