"""Time: what follows once nothing was heard for as long as each phase may wait.

Owns the deadlines that pass, and whom silence makes lost.  What a loss leads to is in ``changes``,
who is blamed for what breaks in ``blame``.
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.membership import changes
from pliant.core.membership.failure import blame, worker_activity
from pliant.core.membership.state import (
    NEVER,
    Membership,
    Moment,
    Outcome,
    busy_until_s,
    dispensable,
    found_silent_at_s,
    is_finished,
    members,
    mute_holders,
    mute_until_s,
    outsiders,
    unable_joiners,
    under_way,
    waited_for,
)
from pliant.core.membership.transitions import Phase
from pliant.core.table import Table
from pliant.core.values import ReplicaId

NOW = 0.0
"""A moment that has come."""


def woken(state: Membership, moment: Moment) -> Membership:
    """Return the state after the coordinator itself was away: reports may be waiting to be read.

    Workers get a fifth of a heartbeat to report; whoever is still silent then counts as silent.
    """
    patience_s = moment.now_s + moment.timeouts.heartbeat_s / 5
    pulses = {
        name: replace(
            pulse,
            silent_at_s=max(pulse.silent_at_s, patience_s),
            hung_at_s=max(pulse.hung_at_s, patience_s),
        )
        for name, pulse in state.pulses.items()
    }
    return replace(
        state,
        pulses=Table(pulses),
        wait=replace(
            state.wait,
            deadline_s=max(state.wait.deadline_s, patience_s),
            hung_at_s=max(state.wait.hung_at_s, patience_s),
        ),
    )


def next_deadline_s(state: Membership) -> float:
    """Return when ``tick`` will next have something to do, if nothing else happens."""
    silent_at_s = found_silent_at_s(state)
    stuck_s = min(worker_activity.stuck(state).values(), default=NEVER)
    decided_s = NOW if blame.is_decided(state) else NEVER
    return min(
        state.wait.deadline_s,
        state.trouble.reform_at_s,
        state.wait.hung_at_s,
        silent_at_s,
        stuck_s,
        decided_s,
    )


def tick(state: Membership, moment: Moment) -> Outcome:
    """Turn silence into loss and due moments into moves; call until it changes nothing.

    Every replica that is lost here is named by an EndReplica or Dismiss among the commands.
    """
    now_s = moment.now_s
    if found_silent_at_s(state) <= now_s:
        silent = frozenset(r for r, pulse in state.pulses.items() if pulse.silent_at_s <= now_s)
        patience_s = moment.timeouts.heartbeat_s
        ended = dispensable(state, silent)
        state = waited_for(state, silent - ended, now_s + patience_s)
        return changes.end(state, ended, f"no sign of life for {patience_s:g} s", moment)
    if blame.is_decided(state):
        return blame.drop_suspects(state)
    if state.trouble.reform_at_s <= now_s:
        return blame.still_broken(state, moment)
    if state.wait.hung_at_s <= now_s:
        return _look_for_hung(state, moment)
    if stuck := frozenset(r for r, at_s in worker_activity.stuck(state).items() if at_s <= now_s):
        return _end_stuck(state, stuck, moment)
    if state.wait.deadline_s > now_s:
        return state, ()
    if state.phase is Phase.PREPARING:
        return _prepare_expired(state, moment)
    return _entry_expired(state, moment)


def _look_for_hung(state: Membership, moment: Moment) -> Outcome:
    """No step was committed for long: end the members that the others wait for, if there are such.

    Where nobody waits, all may be in the same long tail.  Where all wait, the group is at fault.
    """
    until_s = busy_until_s(state, members(state))
    began_s = max(until_s, moment.now_s)
    state = replace(state, wait=replace(state.wait, hung_at_s=began_s + moment.timeouts.hang_s))
    if until_s > moment.now_s:
        return state, ()
    hung = worker_activity.awaited(state)
    if not hung:
        if not worker_activity.is_waiting(state) or is_finished(state):
            return state, ()
        return changes.reform(state, moment, cause="all wait")
    reason = worker_activity.why_hung(state, hung, moment.timeouts.hang_s)
    return changes.end(state, hung, reason, moment)


def _end_stuck(state: Membership, stuck: frozenset[ReplicaId], moment: Moment) -> Outcome:
    """End those of which one worker has kept the rest waiting for long, but who asked for more.

    Also the last that hold the state, and whatever is under way: they are not silent, and nobody
    can get at what they hold.  And spares that are mute.
    """
    hang_s, pulses = moment.timeouts.hang_s, state.pulses
    for name in stuck:
        if pulses[name].busy_until_s > moment.now_s:
            later_s = pulses[name].busy_until_s + hang_s
            later = replace(pulses[name], hung_at_s=later_s)
            return replace(state, pulses=pulses.put(name, later)), ()
    ended = worker_activity.stuck_alike(state, stuck)
    return changes.end(state, ended, worker_activity.why_hung(state, ended, hang_s), moment)


def _prepare_expired(state: Membership, moment: Moment) -> Outcome:
    """Drop late joiners; an old member is lost if it was late in the attempt before, too.

    Of joiners that are unable only those are late: the others wait for them.
    """
    if (until_s := busy_until_s(state, state.wait.awaiting)) > moment.now_s:
        return replace(state, wait=replace(state.wait, deadline_s=until_s)), ()
    silent, joiners = state.wait.awaiting, state.orders.joiners
    reason = f"did not prepare generation {under_way(state).generation} in time"
    if state.wait.is_hurried:
        state = replace(
            state, trouble=replace(state.trouble, passed_over=state.trouble.passed_over | joiners)
        )
        return changes.at_rest(state, "late"), ()
    if mute_holders(state) & silent:  # else no group can be built, whoever joins
        return changes.at_rest(state, "late"), ()
    if unable := unable_joiners(state) & silent:
        return changes.end(state, unable, reason, moment)
    late = state.trouble.late
    if not silent & state.trouble.unheard:  # else no group can be built, whoever joins
        late |= joiners
    lost = dispensable(state, silent & late)
    state = replace(state, trouble=replace(state.trouble, late=silent - lost))
    return (
        changes.end(state, lost, reason, moment) if lost else (changes.at_rest(state, "late"), ())
    )


def _entry_expired(state: Membership, moment: Moment) -> Outcome:
    """Reform without the joiners that did not get in; blame an old member only if it is silent.

    Where a joiner is unable, the others may wait for that one.
    Whoever says that it waits for the others is not silent.  If all of them say so, the attempt
    has failed with nobody to blame, which may happen a few times.
    """
    until_s = max(busy_until_s(state, state.wait.awaiting), mute_until_s(state, moment))
    if until_s > moment.now_s:
        return replace(state, wait=replace(state.wait, deadline_s=until_s)), ()
    silent = state.wait.awaiting - state.wait.arrived
    mute = mute_holders(state) & silent
    if silent & state.trouble.unheard or mute - dispensable(state, mute):
        return changes.reform(state, moment, cause="late")  # nobody can meet them, whoever joins
    reason = f"did not enter generation {under_way(state).generation} in time"
    if unable := unable_joiners(state) & silent:
        return changes.end(state, unable, reason, moment)
    lost = dispensable(state, silent & (outsiders(state) | state.trouble.late))
    if not silent:
        state = replace(state, trouble=replace(state.trouble, failures=state.trouble.failures + 1))
        is_hopeless = state.trouble.failures >= blame.MAX_FAILURES
        lost = state.wait.awaiting if is_hopeless else state.wait.awaiting & outsiders(state)
    state = replace(state, trouble=replace(state.trouble, late=silent - lost))
    if lost:
        return changes.end(state, lost, reason, moment)
    return changes.reform(state, moment, cause="late")
