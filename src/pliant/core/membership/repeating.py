"""What workers were told and have not answered: it may be lost, and is said again.

Every command may be carried out twice, so saying one again is harmless where it was not lost.  Must
not know when it is time for that, nor on which node a worker runs.
"""

from __future__ import annotations

from collections.abc import Collection

from pliant.core.commands import Command, Prepare, Reform, Switch
from pliant.core.membership import changes
from pliant.core.membership.state import Membership, under_way
from pliant.core.membership.transitions import Phase
from pliant.core.values import ReplicaId


def unanswered(state: Membership, names: Collection[ReplicaId]) -> tuple[Command, ...]:
    """Return what counts now of what these replicas were told, as far as its answer is awaited."""
    told = tuple(sorted(name for name in names if _is_awaited(state, name)))
    if state.phase is Phase.LOST:
        return ()
    behind = changes.fall_through(state, [name for name in state.spares if name in names])
    if not told:
        return behind
    match state.phase:
        case Phase.PREPARING:
            left_out = _left_out(state, told)
            return (*behind, *left_out, Prepare(to=told, order=under_way(state)))
        case Phase.SWITCHING:
            return (*behind, Switch(to=told, order=under_way(state)))
        case Phase.REFORMING:
            return (*behind, Reform(to=told, order=under_way(state)))
        case _:
            return behind


def _is_awaited(state: Membership, name: ReplicaId) -> bool:
    """Whether its answer is awaited; that of a leaver until it is released."""
    is_leaver = state.phase is Phase.SWITCHING and name in state.orders.leavers
    return is_leaver or name in state.wait.awaiting


def _left_out(state: Membership, told: tuple[ReplicaId, ...]) -> tuple[Command, ...]:
    """Tell joiners once more that the newest Reform was without them: else they wait for it."""
    joiners = tuple(name for name in told if name in state.orders.joiners)
    if state.orders.recorded is None or not joiners:
        return ()
    return (Reform(to=joiners, order=state.orders.recorded),)
