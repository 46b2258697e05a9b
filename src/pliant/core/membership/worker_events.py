"""What the workers of a job say, and what it does to the membership.

Owns which news counts and which is stale.  What follows from it is in ``changes``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from pliant.core import events
from pliant.core.commands import Command, Dismiss, Release
from pliant.core.membership import changes
from pliant.core.membership.failure import blame, worker_activity
from pliant.core.membership.state import (
    NEVER,
    NOBODY,
    Membership,
    Moment,
    Outcome,
    Pulse,
    Trouble,
    forget,
    members,
    moved,
    outsiders,
    under_way,
)
from pliant.core.membership.transitions import PHASES, Phase
from pliant.core.values import NO_GENERATION, ReplicaId

MORE_LINKS = 20
"""Graces that are waited for what other members say of their links."""


def hear_worker(state: Membership, event: events.WorkerEvent, moment: Moment) -> Outcome:
    """Apply what a worker said; return the next state and the commands it causes.

    Pure.  The caller has made sure that the sender is not lost.  Every replica that is lost here
    is named by a Dismiss among the commands.
    """
    is_back = event.replica in state.trouble.unheard
    state = _noted(state, event, moment)
    again: tuple[Command, ...] = ()
    if is_back and event.replica not in state.trouble.unheard and _is_waited_for_to_reform(state):
        state, again = changes.reform(state, moment, cause="still broken")
    state, commands = _heard(state, event, moment)
    return state, (*again, *commands)


def _is_waited_for_to_reform(state: Membership) -> bool:
    """Whether a group broke while nobody was heard with whom it could be built again."""
    met = state.phase in (Phase.STEADY, Phase.SWITCHING, Phase.REFORMING)
    return met and state.trouble.broken >= under_way(state).generation


def _heard(state: Membership, event: events.WorkerEvent, moment: Moment) -> Outcome:
    if not PHASES.hears(state.phase, type(event).__name__):
        return _stale(state)
    match event:
        case events.Spare():
            return _on_spare(state, event)
        case events.Prepared():
            return _on_prepared(state, event, moment)
        case events.Refused():
            return _on_refused(state, event, moment)
        case events.Switched():
            return _on_switched(state, event, moment)
        case events.Broken():
            return _on_broken(state, event, moment)
        case events.Progressed():
            return _on_progressed(state, event, moment)
        case events.Busy():
            return _on_busy(state, event, moment)
        case events.Finished():
            return _on_finished(state, event)
        case events.PublishAsked() | events.Saved() if event.lineage == state.lineage:
            return replace(state, committed=max(state.committed, event.committed)), ()
        case events.Registered() | events.Unrestorable() | events.PublishAsked() | events.Saved():
            return state, ()  # a sign of life; what else it means is for the controller
        case _:
            assert_never(event)


def _noted(state: Membership, event: events.WorkerEvent, moment: Moment) -> Membership:
    """Remember that this was said, and that who said it is alive."""
    if not (isinstance(event, events.Refused) and event.joiner):  # said by a survivor about one
        is_mute = isinstance(event, events.Progressed) and event.is_spoken_for
        state = _alive(state, event.replica, moment, is_mute=is_mute)
    if (
        isinstance(event, events.Broken | events.Refused)
        and event.generation >= state.orders.issued - 1
    ):
        state = replace(
            state,
            trouble=replace(
                state.trouble,
                links=blame.links_added(state.trouble.links, event.replica, event.unreached),
            ),
        )
    return state


def _alive(
    state: Membership, replica: ReplicaId, moment: Moment, *, is_mute: bool = False
) -> Membership:
    """Start the replica's silence anew; what it asked for with Busy lasts."""
    pulse = state.pulses.get(replica) or Pulse(silent_at_s=NEVER)
    silent_at_s = max(moment.now_s, pulse.busy_until_s) + moment.timeouts.heartbeat_s
    mute_at_s = min(pulse.mute_at_s, moment.now_s) if is_mute else NEVER
    hung_at_s = NEVER if pulse.is_mute and not is_mute else pulse.hung_at_s
    pulse = replace(pulse, silent_at_s=silent_at_s, mute_at_s=mute_at_s, hung_at_s=hung_at_s)
    trouble = state.trouble
    if replica in trouble.unheard or replica in trouble.unsure:
        trouble = replace(
            trouble, unheard=trouble.unheard - {replica}, unsure=trouble.unsure - {replica}
        )
    return replace(state, pulses=state.pulses.put(replica, pulse), trouble=trouble)


def _timely(trouble: Trouble, replica: ReplicaId) -> Trouble:
    """Return what is wrong, but for what this replica let pass in silence."""
    if replica not in trouble.late:
        return trouble
    return replace(trouble, late=trouble.late - {replica})


def _stale(state: Membership) -> Outcome:
    return replace(state, stale=state.stale + 1), ()


def _on_spare(state: Membership, event: events.Spare) -> Outcome:
    if event.replica in members(state) or event.replica in state.orders.leavers:
        known = state.spares.get(event.replica)
        if known is not None and known.calls < event.calls:  # a joiner that is to be set aside
            state = replace(state, spares=state.spares.put(event.replica, event))
        return _stale(state)
    state = replace(state, spares=state.spares.put(event.replica, event))
    if state.phase is Phase.LOST:  # where it is to go depends on what will be restored
        return state, ()
    return state, changes.skip_calls(state, (event.replica,))


def _on_prepared(state: Membership, event: events.Prepared, moment: Moment) -> Outcome:
    # Even if late: it is not silent, and must not count towards a loss.
    trouble = _timely(state.trouble, event.replica)
    if state.orders.attempt is None or event.generation != state.orders.attempt.generation:
        return _stale(replace(state, trouble=trouble))
    awaiting = state.wait.awaiting - {event.replica}
    state = replace(state, trouble=trouble, wait=replace(state.wait, awaiting=awaiting))
    return (state, ()) if awaiting else changes.switch(state, moment)


def _on_refused(state: Membership, event: events.Refused, moment: Moment) -> Outcome:
    order = state.orders.attempt or state.orders.recorded
    if order is None or event.generation != order.generation:
        return _stale(state)
    if event.joiner and event.replica in order.replicas and event.replica not in state.orders.gone:
        if state.orders.attempt is not None and event.replica not in state.orders.joiners:
            return blame.attempt_failed(state, None, moment)
        if event.calls:
            return _on_late_for_call(state, event, moment)
        state, commands = changes.lose(state, frozenset({event.replica}), moment)
        return state, (Dismiss(to=(event.replica,), reason=event.reason), *commands)
    if event.joiner:
        return _stale(state)
    if state.orders.attempt is not None:
        return blame.attempt_failed(state, event.replica, moment)
    return _reform_soon(state, event, moment)


def _on_late_for_call(state: Membership, event: events.Refused, moment: Moment) -> Outcome:
    """The members had come to another ``steps()`` call by the time they met this joiner."""
    if event.replica not in state.orders.joiners:
        return _stale(state)
    state = replace(state, calls=max(state.calls, event.calls))
    return changes.set_aside(state, event.replica, moment)


def _on_switched(state: Membership, event: events.Switched, moment: Moment) -> Outcome:
    if (
        state.orders.recorded is None
        or event.generation != state.orders.recorded.generation
        or event.replica not in state.wait.awaiting
    ):
        # Of an abandoned generation, but whoever was in it holds state: it is no joiner any more.
        orders = replace(state.orders, joiners=state.orders.joiners - {event.replica})
        return _stale(replace(state, orders=orders, trouble=_timely(state.trouble, event.replica)))
    orders = state.orders
    if event.replica in orders.joiners:
        orders = replace(orders, joiners=orders.joiners - {event.replica})
    state = replace(
        state,
        orders=orders,
        wait=replace(state.wait, awaiting=state.wait.awaiting - {event.replica}),
        trouble=_timely(state.trouble, event.replica),
        spares=state.spares.drop(event.replica),
        committed=max(state.committed, event.step),
    )
    state = at_boundary(state, moment)
    # The survivors hold the state in the new generation: nobody needs a leaver any more (R9).
    release: tuple[Command, ...] = ()
    if state.orders.leavers and state.wait.awaiting <= state.orders.joiners:
        release = (Release(to=tuple(sorted(state.orders.leavers))),)
        state = forget(state, state.orders.leavers)
        state = replace(state, orders=replace(state.orders, leavers=NOBODY))
    if state.wait.awaiting:
        return state, release
    return _formed(state, moment), release


def _formed(state: Membership, moment: Moment) -> Membership:
    order = under_way(state)
    formed = order.generation
    state = moved(state, "all switched", Phase.STEADY)
    return replace(
        state,
        orders=replace(state.orders, formed=formed),
        wait=replace(
            state.wait,
            arrived=NOBODY,
            deadline_s=NEVER,
            hung_at_s=NEVER if order.hold else moment.now_s + moment.timeouts.hang_s,
        ),
        trouble=replace(
            state.trouble,
            late=NOBODY,
            passed_over=NOBODY,
            links=frozenset(),
            unsure=NOBODY,
            failures=0,
            reform_at_s=state.trouble.reform_at_s if state.trouble.broken >= formed else NEVER,
        ),
    )


def _on_broken(state: Membership, event: events.Broken, moment: Moment) -> Outcome:
    if state.orders.attempt is not None and event.generation == state.orders.attempt.generation:
        return blame.attempt_failed(state, event.replica, moment)
    known = state.orders.recorded is not None and (
        event.replica in members(state) or event.replica in state.orders.leavers
    )
    if not known or event.generation < state.orders.formed:
        return _stale(state)
    if state.phase is Phase.REFORMING and event.generation < under_way(state).generation:
        return _stale(state)  # the Reform under way is the answer to it
    return _reform_soon(state, event, moment)


def _reform_soon(
    state: Membership, event: events.Broken | events.Refused, moment: Moment
) -> Outcome:
    """Reform with everybody unless a loss is reported within the grace; prepare nothing else.

    Those who could not reach each other say so one after the other, each at its own deadline.
    """
    grace_s = moment.timeouts.grace_s * (MORE_LINKS if event.unreached else 1)
    state = changes.at_rest(state, "broken") if state.orders.attempt is not None else state
    if state.trouble.reform_at_s == NEVER:
        state = replace(
            state,
            trouble=replace(state.trouble, unsure=frozenset(members(state)) - {event.replica}),
        )
    return replace(
        state,
        trouble=replace(
            state.trouble,
            broken=max(state.trouble.broken, event.generation, key=int),
            reform_at_s=min(state.trouble.reform_at_s, moment.now_s + grace_s),
        ),
    ), ()


def _on_busy(state: Membership, event: events.Busy, moment: Moment) -> Outcome:
    pulse = replace(state.pulses[event.replica], busy_until_s=moment.now_s + event.max_s)
    state = replace(state, pulses=state.pulses.put(event.replica, pulse))
    return _alive(state, event.replica, moment), ()


def _on_progressed(state: Membership, event: events.Progressed, moment: Moment) -> Outcome:
    replica = event.replica
    pulse = state.pulses[replica]
    committed = max(pulse.committed, event.committed)
    stuck = event.held_up_by
    hung_at_s = worker_activity.counts_as_hung_at_s(pulse, stuck, committed, moment)
    said = committed, event.waiting, stuck, hung_at_s
    if said != (pulse.committed, pulse.waiting, pulse.held_up_by, pulse.hung_at_s):
        pulse = replace(
            pulse,
            committed=committed,
            waiting=event.waiting,
            held_up_by=stuck,
            hung_at_s=hung_at_s,
        )
        state = replace(state, pulses=state.pulses.put(replica, pulse))
    if committed > state.committed:
        state = replace(state, committed=committed)
        if state.wait.hung_at_s != NEVER:
            state = replace(
                state, wait=replace(state.wait, hung_at_s=moment.now_s + moment.timeouts.hang_s)
            )
    newest = state.orders.recorded.generation if state.orders.recorded else NO_GENERATION
    is_entering = state.phase in (Phase.SWITCHING, Phase.REFORMING)
    if is_entering and event.waiting == newest and replica in state.wait.awaiting:
        state = at_boundary(
            replace(state, wait=replace(state.wait, arrived=state.wait.arrived | {replica})), moment
        )
    if (
        event.calls <= state.calls
        or replica not in members(state)
        or replica in state.orders.joiners
    ):
        return state, ()
    return _next_call(replace(state, calls=event.calls))


def at_boundary(state: Membership, moment: Moment) -> Membership:
    """Once every old member is there, those that are not in have ``switch_s``."""
    there, outside = state.wait.arrived, outsiders(state)
    if any(name not in there and name not in outside for name in state.wait.awaiting):
        return state
    return replace(
        state,
        wait=replace(
            state.wait,
            deadline_s=min(state.wait.deadline_s, moment.now_s + moment.timeouts.switch_s),
        ),
    )


def _next_call(state: Membership) -> Outcome:
    """The members are in another ``steps()`` call: joiners must follow before they can join."""
    if state.orders.attempt is not None and state.orders.joiners:
        state = changes.at_rest(state, "next call")
    return state, changes.skip_calls(state, state.spares)


def _on_finished(state: Membership, event: events.Finished) -> Outcome:
    if event.replica not in members(state):
        return _stale(state)
    state = replace(
        state,
        finished=state.finished | {event.replica},
        committed=max(state.committed, event.committed),
    )
    return (changes.at_rest(state, "finished") if state.orders.attempt is not None else state), ()
