"""Members that live and do nothing more: whom the others wait for, and who says so of itself.

Owns which members those are, from when each counts as hung, and the words for it.  In a generation
that trains a member hangs if others wait for it and it waits for nobody; a replica of several
workers of which one keeps the rest waiting says so itself, and that is heard in every phase.  So is
the agent of a spare that keeps the interpreter lock; a member that does is in ``blame`` and
``silence``, for it may hold the state.  What follows is in ``silence``.
"""

from __future__ import annotations

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
from pliant.core.membership.whereabouts import EACH_OTHER
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
