"""What the workers of a job say, and what it does to the membership.

Owns which news counts and which is stale.  What follows from it is in ``changes``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from pliant.core import events
from pliant.core.commands import Command, Dismiss, Release
from pliant.core.copies import changed
from pliant.core.membership import blame, changes, hangs, links
from pliant.core.membership import state as group
from pliant.core.membership.state import NEVER, NOBODY, Membership, Moment, Outcome, Pulse
from pliant.core.membership.transitions import PHASES, Phase
from pliant.core.transitions import told
from pliant.core.values import NO_GENERATION, ReplicaId

MORE_LINKS = 20
"""Graces that are waited for what other members say of their links."""


def hear_worker(state: Membership, event: events.WorkerEvent, moment: Moment) -> Outcome:
    """Apply what a worker said; return the next state and the commands it causes.

    Pure.  The caller has made sure that the sender is not lost.  Every replica that is lost here
    is named by a Dismiss among the commands.
    """
    is_back = event.replica in state.unheard
    state = _noted(state, event, moment)
    again: tuple[Command, ...] = ()
    if is_back and event.replica not in state.unheard and _is_waited_for_to_reform(state):
        state, again = changes.reform(state, moment, cause="still broken")
    state, commands = _heard(state, event, moment)
    return state, (*again, *commands)


def _is_waited_for_to_reform(state: Membership) -> bool:
    """Whether a group broke while nobody was heard with whom it could be built again."""
    met = state.phase in (Phase.STEADY, Phase.SWITCHING, Phase.REFORMING)
    return met and state.broken >= group.under_way(state).generation


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
            return changed(state, committed=max(state.committed, event.committed)), ()
        case events.Registered() | events.Unrestorable() | events.PublishAsked() | events.Saved():
            return state, ()  # a sign of life; what else it means is for the controller
        case _:
            assert_never(event)


def _noted(state: Membership, event: events.WorkerEvent, moment: Moment) -> Membership:
    """Remember that this was said, and that who said it is alive."""
    if not (isinstance(event, events.Refused) and event.joiner):  # said by a survivor about one
        is_mute = isinstance(event, events.Progressed) and event.is_spoken_for
        # Of a Progressed no more is told: a thousand agents send two thousand a second.
        heard = None if isinstance(event, events.Progressed) else event
        state = _alive(state, event.replica, moment, is_mute=is_mute, heard=heard)
    else:
        state = replace(state, story=told(state.story, event))
    if isinstance(event, events.Broken | events.Refused) and event.generation >= state.issued - 1:
        state = replace(state, links=links.added(state.links, event.replica, event.unreached))
    return state


def _alive(
    state: Membership,
    replica: ReplicaId,
    moment: Moment,
    *,
    is_mute: bool = False,
    heard: events.WorkerEvent | None = None,
) -> Membership:
    """Start the replica's silence anew; what it asked for with Busy lasts.  ``heard``: to tell."""
    pulse = state.pulses.get(replica, Pulse(silent_at_s=NEVER))
    silent_at_s = max(moment.now_s, pulse.busy_until_s) + moment.timeouts.heartbeat_s
    mute_at_s = min(pulse.mute_at_s, moment.now_s) if is_mute else NEVER
    hung_at_s = NEVER if pulse.is_mute and not is_mute else pulse.hung_at_s
    pulse = changed(pulse, silent_at_s=silent_at_s, mute_at_s=mute_at_s, hung_at_s=hung_at_s)
    return changed(
        state,
        pulses=state.pulses.put(replica, pulse),
        unheard=_without(state.unheard, replica),
        unsure=_without(state.unsure, replica),
        story=state.story if heard is None else told(state.story, heard),
    )


def _stale(state: Membership) -> Outcome:
    return replace(state, stale=state.stale + 1), ()


def _on_spare(state: Membership, event: events.Spare) -> Outcome:
    if event.replica in group.members(state) or event.replica in state.leavers:
        known = state.spares.get(event.replica)
        if known is not None and known.calls < event.calls:  # a joiner that is to be set aside
            state = replace(state, spares=state.spares.put(event.replica, event))
        return _stale(state)
    state = replace(state, spares=state.spares.put(event.replica, event))
    if state.phase is Phase.LOST:  # where it is to go depends on what will be restored
        return state, ()
    return state, changes.fall_through(state, (event.replica,))


def _on_prepared(state: Membership, event: events.Prepared, moment: Moment) -> Outcome:
    # Even if late: it is not silent, and must not count towards a loss.
    late = _without(state.late, event.replica)
    if state.attempt is None or event.generation != state.attempt.generation:
        return _stale(replace(state, late=late))
    awaiting = state.awaiting - {event.replica}
    state = changed(state, late=late, awaiting=awaiting)
    return (state, ()) if awaiting else changes.switch(state, moment)


def _on_refused(state: Membership, event: events.Refused, moment: Moment) -> Outcome:
    order = state.attempt or state.recorded
    if order is None or event.generation != order.generation:
        return _stale(state)
    if event.joiner and event.replica in order.replicas and event.replica not in state.gone:
        if state.attempt is not None and event.replica not in state.joiners:
            return blame.attempt_failed(state, None, moment)
        if event.calls:
            return _on_late_for_call(state, event, moment)
        state, commands = changes.lose(state, frozenset({event.replica}), moment)
        return state, (Dismiss(to=(event.replica,), reason=event.reason), *commands)
    if event.joiner:
        return _stale(state)
    if state.attempt is not None:
        return blame.attempt_failed(state, event.replica, moment)
    return _reform_soon(state, event, moment)


def _on_late_for_call(state: Membership, event: events.Refused, moment: Moment) -> Outcome:
    """The members had come to another ``steps()`` call by the time they met this joiner."""
    if event.replica not in state.joiners:
        return _stale(state)
    state = replace(state, calls=max(state.calls, event.calls))
    return changes.set_aside(state, event.replica, moment)


def _on_switched(state: Membership, event: events.Switched, moment: Moment) -> Outcome:
    if (
        state.recorded is None
        or event.generation != state.recorded.generation
        or event.replica not in state.awaiting
    ):
        # Of an abandoned generation, but whoever was in it holds state: it is no joiner any more.
        known = replace(state, late=state.late - {event.replica})
        return _stale(replace(known, joiners=known.joiners - {event.replica}))
    state = changed(
        state,
        awaiting=state.awaiting - {event.replica},
        joiners=_without(state.joiners, event.replica),
        late=_without(state.late, event.replica),
        spares=state.spares.drop(event.replica),
        committed=max(state.committed, event.step),
    )
    state = at_boundary(state, moment)
    # The survivors hold the state in the new generation: nobody needs a leaver any more (R9).
    release: tuple[Command, ...] = ()
    if state.leavers and state.awaiting <= state.joiners:
        release = (Release(to=tuple(sorted(state.leavers))),)
        state = replace(group.forget(state, state.leavers), leavers=NOBODY)
    if state.awaiting:
        return state, release
    return _formed(state, moment), release


def _without(names: frozenset[ReplicaId], name: ReplicaId) -> frozenset[ReplicaId]:
    """Return the others; the same set if it is not among them, by which no change is seen."""
    return names - {name} if name in names else names


def _formed(state: Membership, moment: Moment) -> Membership:
    order = group.under_way(state)
    formed = order.generation
    return replace(
        group.moved(state, "all switched", Phase.STEADY),
        formed=formed,
        arrived=NOBODY,
        late=NOBODY,
        passed_over=NOBODY,
        links=frozenset(),
        unsure=NOBODY,
        failures=0,
        deadline_s=NEVER,
        hung_at_s=NEVER if order.hold else moment.now_s + moment.timeouts.hang_s,
        reform_at_s=state.reform_at_s if state.broken >= formed else NEVER,
    )


def _on_broken(state: Membership, event: events.Broken, moment: Moment) -> Outcome:
    if state.attempt is not None and event.generation == state.attempt.generation:
        return blame.attempt_failed(state, event.replica, moment)
    known = state.recorded is not None and (
        event.replica in group.members(state) or event.replica in state.leavers
    )
    if not known or event.generation < state.formed:
        return _stale(state)
    if state.phase is Phase.REFORMING and event.generation < group.under_way(state).generation:
        return _stale(state)  # the Reform under way is the answer to it
    return _reform_soon(state, event, moment)


def _reform_soon(
    state: Membership, event: events.Broken | events.Refused, moment: Moment
) -> Outcome:
    """Reform with everybody unless a loss is reported within the grace; prepare nothing else.

    Those who could not reach each other say so one after the other, each at its own deadline.
    """
    grace_s = moment.timeouts.grace_s * (MORE_LINKS if event.unreached else 1)
    state = changes.at_rest(state, "broken") if state.attempt is not None else state
    if state.reform_at_s == NEVER:
        state = replace(state, unsure=frozenset(group.members(state)) - {event.replica})
    return replace(
        state,
        broken=max(state.broken, event.generation, key=int),
        reform_at_s=min(state.reform_at_s, moment.now_s + grace_s),
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
    hung_at_s = hangs.counts_as_hung_at_s(pulse, stuck, committed, moment)
    said = committed, event.waiting, stuck, hung_at_s
    if said != (pulse.committed, pulse.waiting, pulse.held_up_by, pulse.hung_at_s):
        pulse = changed(
            pulse,
            committed=committed,
            waiting=event.waiting,
            held_up_by=stuck,
            hung_at_s=hung_at_s,
        )
        state = changed(state, pulses=state.pulses.put(replica, pulse))
    if committed > state.committed:
        state = replace(state, committed=committed)
        if state.hung_at_s != NEVER:
            state = replace(state, hung_at_s=moment.now_s + moment.timeouts.hang_s)
    newest = state.recorded.generation if state.recorded else NO_GENERATION
    is_entering = state.phase in (Phase.SWITCHING, Phase.REFORMING)
    if is_entering and event.waiting == newest and replica in state.awaiting:
        state = at_boundary(replace(state, arrived=state.arrived | {replica}), moment)
    if (
        event.calls <= state.calls
        or replica not in group.members(state)
        or replica in state.joiners
    ):
        return state, ()
    return _next_call(replace(state, calls=event.calls))


def at_boundary(state: Membership, moment: Moment) -> Membership:
    """Once every old member is there, those that are not in have ``switch_s``."""
    there, outside = state.arrived, group.outsiders(state)
    if any(name not in there and name not in outside for name in state.awaiting):
        return state
    return replace(state, deadline_s=min(state.deadline_s, moment.now_s + moment.timeouts.switch_s))


def _next_call(state: Membership) -> Outcome:
    """The members are in another ``steps()`` call: joiners must follow before they can join."""
    if state.attempt is not None and state.joiners:
        state = changes.at_rest(state, "next call")
    return state, changes.fall_through(state, state.spares)


def _on_finished(state: Membership, event: events.Finished) -> Outcome:
    if event.replica not in group.members(state):
        return _stale(state)
    state = replace(
        state,
        finished=state.finished | {event.replica},
        committed=max(state.committed, event.committed),
    )
    return (changes.at_rest(state, "finished") if state.attempt is not None else state), ()
