"""The first moves of a coordinator that another has gone before: who is there, and in what state.

Owns rule R4.  The register says which generation is the newest; each of its members says where it
stands (Registered); what a member said before that is contained in it, and what it says after is
kept until everybody was heard, or is known to be gone, or is silent at the deadline.  Then:

    all in the recorded generation, unbroken      go on; release whoever it left behind
    some gone, behind or broken                   Reform with those that registered
    nobody left                                   only a restore helps

Decides nothing about processes: ``job.registration`` ends those that this module calls past.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pliant.core.commands import Command, Reform, Release
from pliant.core.events import Registered
from pliant.core.membership import changes
from pliant.core.membership.state import (
    NEVER,
    NOBODY,
    Membership,
    Moment,
    Orders,
    Outcome,
    Pulse,
    forget,
    is_finished,
    members,
    moved,
    under_way,
)
from pliant.core.membership.transitions import Phase
from pliant.core.table import Table
from pliant.core.values import (
    FIRST_LINEAGE,
    NO_GENERATION,
    Generation,
    Incarnation,
    Register,
    ReplicaId,
)


def remembered(register: Register | None) -> Membership:
    """Return the membership that a register tells of, under the next incarnation.

    Nothing is decided in it before ``reunited``; without a recorded generation there is nobody to
    wait for, and a history that was begun can only be restored.
    """
    if register is None:
        return Membership(incarnation=Incarnation(1), lineage=FIRST_LINEAGE)
    at_home = {name for name, _ in register.homes}
    recorded = register.newest
    state = Membership(
        incarnation=Incarnation(register.incarnation + 1),
        lineage=register.lineage,
        restore=register.restore,
        orders=Orders(
            issued=register.number,
            recorded=recorded,
            gone=frozenset(recorded.replicas) - at_home if recorded else NOBODY,
            joiners=frozenset(register.joiners),
            leavers=frozenset(register.leavers),
        ),
    )
    if recorded is None and register.restore is None:
        return state
    return moved(state, "register read", Phase.REMEMBERED if members(state) else Phase.LOST)


def awaited(state: Membership, registered: Mapping[ReplicaId, Registered]) -> frozenset[ReplicaId]:
    """Return the members that may still say where they stand."""
    return frozenset(name for name in members(state) if name not in registered)


def reunited(
    state: Membership, registered: Mapping[ReplicaId, Registered], moment: Moment
) -> Outcome:
    """Go on with the members that registered; all others are lost."""
    order = under_way(state)
    here = frozenset(name for name in members(state) if name in registered)
    entered = frozenset(n for n in here if _is_in(registered[n], order.generation))
    state = replace(
        state,
        orders=replace(
            state.orders,
            gone=frozenset(order.replicas) - here,
            # Some generation before this one has formed; which one does not matter any more.
            formed=NO_GENERATION if order.origin else Generation(order.generation - 1),
            joiners=frozenset(
                n for n in state.orders.joiners & here if not registered[n].has_state
            ),
            leavers=frozenset(name for name in state.orders.leavers if name in registered),
        ),
        finished=frozenset(n for n in here if registered[n].finished),
        committed=max((registered[n].committed for n in here), default=0),
        calls=max((registered[n].calls for n in here), default=0),
        pulses=Table(),
        spares=Table(),
    )
    for name in sorted(registered):
        if name in here or name in state.orders.leavers or not is_past(registered[name]):
            state = _welcomed(state, registered[name], moment)
    if entered == frozenset(order.replicas):
        return _intact(state, registered, moment)
    if is_finished(state):
        return moved(state, "reunited", Phase.STEADY), ()
    state, commands = changes.reform(state, moment, cause="not all reunited")
    return state, (*commands, *_left_out(state, registered))


def without_members(
    state: Membership, registered: Mapping[ReplicaId, Registered], moment: Moment
) -> Membership:
    """Return a membership whose state is gone."""
    if state.phase is not Phase.LOST:  # as it is where the register told already of nobody
        state = moved(state, "nobody left", Phase.LOST)
    state = replace(state, orders=replace(state.orders, joiners=NOBODY, leavers=NOBODY))
    for name in sorted(registered):
        if not is_past(registered[name]):
            state = _welcomed(state, registered[name], moment)
    return state


def is_past(event: Registered) -> bool:
    """Whether this process, if it is no member, belongs to a past that nobody continues."""
    return event.has_state or event.leaving or event.finished


def _is_in(event: Registered, generation: Generation) -> bool:
    return event.current == generation and event.has_state and not event.broken


def _welcomed(state: Membership, event: Registered, moment: Moment) -> Membership:
    """Expect signs of life of this one; of a member without state also know what it said."""
    name = event.replica
    silent_at_s = moment.now_s + moment.timeouts.heartbeat_s
    pulse = Pulse(silent_at_s=silent_at_s, committed=event.committed)
    state = replace(state, pulses=state.pulses.put(name, pulse))
    if event.spare is None or event.has_state or name not in members(state):
        return state
    return replace(state, spares=state.spares.put(name, replace(event.spare, replica=name)))


def _intact(
    state: Membership, registered: Mapping[ReplicaId, Registered], moment: Moment
) -> Outcome:
    """Everybody trains in the recorded generation, and may have done so all the time."""
    order = under_way(state)
    hung_at_s = NEVER if order.hold else moment.now_s + moment.timeouts.hang_s
    release = (Release(to=tuple(sorted(state.orders.leavers))),) if state.orders.leavers else ()
    state = forget(moved(state, "reunited", Phase.STEADY), state.orders.leavers)
    state = replace(
        state,
        orders=replace(state.orders, formed=order.generation, leavers=NOBODY),
        wait=replace(state.wait, hung_at_s=hung_at_s),
    )
    return state, (*release, *_left_out(state, registered))


def _left_out(state: Membership, registered: Mapping[ReplicaId, Registered]) -> tuple[Command, ...]:
    """Tell joiners of an attempt that is no more; they may have missed that they were left out."""
    names = tuple(
        name
        for name in sorted(registered)
        if name not in members(state)
        and not is_past(registered[name])
        and (registered[name].prepared or registered[name].current)
    )
    return (Reform(to=names, order=under_way(state)),) if names and state.orders.recorded else ()
