"""The moves of a membership: numbering attempts, changing on plan, reforming after a loss.

Owns when a number is issued, whom an order contains, and what is said again that no worker has
answered (every command may be carried out twice).  It does not read messages
(``worker_events`` does), knows no deadline (``silence`` does) and does not choose who should train
(the controller does).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from pliant.core.commands import Command, EndReplica, Prepare, Reform, SkipCalls, Switch
from pliant.core.membership.state import (
    NEVER,
    NOBODY,
    Membership,
    Moment,
    Outcome,
    explained,
    forget,
    is_finished,
    members,
    moved,
    mute_holders,
    seats,
    under_way,
)
from pliant.core.membership.transitions import Phase
from pliant.core.values import Generation, Order, ReplicaId, Seat, arranged

# --- planned changes ----------------------------------------------------------------


def plan(
    state: Membership,
    moment: Moment,
    *,
    join: Iterable[ReplicaId],
    leave: Iterable[ReplicaId],
    leave_by_s: float = NEVER,
) -> Outcome:
    """Head for a membership with these spares and without these members, as soon as may be.

    Call it as often as you like with what is wanted *now*: the same wish changes nothing, a
    running attempt that still fits is left alone, and nothing is begun where it could not end (a
    loss is being dealt with, a Switch is out, members have finished, are silent or mute).

    Spares in another ``steps()`` call than the members wait.  If only leavers are left, the joiners
    come first (R10).  ``leave_by_s``, when the first leaver will be ended, cuts waiting for joiners
    short.
    """
    if not _may_begin(state, moment):
        return state, ()
    present = frozenset(members(state))
    leavers = frozenset(leave) & present
    if leavers == present:
        leavers = NOBODY
    joining = joinable(state, join, is_hurried=bool(leavers))
    if not leavers and not joining and not _is_freed(state, moment):
        return (at_rest(state, "not wanted") if state.orders.attempt is not None else state), ()
    if (
        state.orders.attempt is not None
        and leavers == state.orders.leavers
        and state.orders.joiners <= set(joining)
    ):
        return state, ()
    return _prepare(replace(state, calls=_calls(state)), joining, leavers, leave_by_s, moment)


def _is_freed(state: Membership, moment: Moment) -> bool:
    """Whether members hold who need not any more, as the minimum was lowered."""
    is_held = state.orders.recorded is not None and state.orders.recorded.hold
    return is_held and len(members(state)) >= moment.min_replicas


def joinable(
    state: Membership, spares: Iterable[ReplicaId], *, is_hurried: bool
) -> list[ReplicaId]:
    """Return those of these spares that could join now: in the members' ``steps()`` call.

    With ``is_hurried`` also without those that have just been too slow for a leaver.
    """
    calls = _calls(state)
    return [
        r
        for r in spares
        if r in state.spares
        and state.spares[r].calls == calls
        and not (is_hurried and r in state.trouble.passed_over)
    ]


def _calls(state: Membership) -> int:
    if state.orders.recorded is not None or state.restore is not None:
        return state.calls
    return max((spare.calls for spare in state.spares.values()), default=0)


def _may_begin(state: Membership, moment: Moment) -> bool:
    return (
        state.phase in (Phase.EMPTY, Phase.STEADY, Phase.PREPARING)
        and not state.finished
        and not state.trouble.unheard
        and not mute_holders(state)
        and not (state.trouble.unsure or state.trouble.suspects)
        and state.trouble.reform_at_s == NEVER
        and moment.now_s >= state.trouble.retry_at_s
    )


def _prepare(
    state: Membership,
    joining: list[ReplicaId],
    leavers: frozenset[ReplicaId],
    leave_by_s: float,
    moment: Moment,
) -> Outcome:
    kept = [seat for seat in seats(state) if seat.replica not in leavers]
    new = [Seat(replica=r, endpoint=state.spares[r].endpoint) for r in joining]
    order = _order(state, (*kept, *new), moment)
    patient_s = moment.now_s + moment.timeouts.prepare_s
    # Half of the notice for an attempt with joiners leaves the other half for one without.
    hurried_s = (moment.now_s + leave_by_s) / 2 if joining and leavers else NEVER
    state = moved(state, "planned", Phase.PREPARING)
    state = replace(
        state,
        orders=replace(
            state.orders,
            issued=order.generation,
            attempt=order,
            joiners=frozenset(joining),
            leavers=leavers,
        ),
        wait=replace(
            state.wait,
            awaiting=frozenset(order.replicas) | leavers,
            arrived=NOBODY,
            deadline_s=min(patient_s, hurried_s),
            is_hurried=hurried_s < patient_s,
        ),
    )
    commands: tuple[Command, ...] = (Prepare(to=_ranked(order, leavers), order=order),)
    return state, skip_calls(state, state.spares) + commands


def skip_calls(state: Membership, spares: Iterable[ReplicaId]) -> tuple[Command, ...]:
    """Tell those of these spares that wait in a ``steps()`` call the members have finished."""
    behind = tuple(sorted(r for r in spares if state.spares[r].calls < state.calls))
    return (SkipCalls(to=behind, calls=state.calls),) if behind else ()


def _order(state: Membership, places: tuple[Seat, ...], moment: Moment) -> Order:
    return Order(
        generation=Generation(state.orders.issued + 1),
        members=arranged(places),
        origin=None if state.orders.formed else _origin(state, places),
        restore=None if state.orders.formed else state.restore,
        hold=len(places) < moment.min_replicas,
    )


def _origin(state: Membership, places: tuple[Seat, ...]) -> ReplicaId:
    """Choose whose state counts: one that has seen what is to be restored, if there is such."""
    wanted = state.restore.checkpoint if state.restore is not None else None
    for seat in places:
        spare = state.spares.get(seat.replica)
        if spare is not None and any(found.name == wanted for found in spare.checkpoints):
            return seat.replica
    return places[0].replica


def _ranked(order: Order, leavers: frozenset[ReplicaId]) -> tuple[ReplicaId, ...]:
    return (*order.replicas, *sorted(leavers))


def switch(state: Membership, moment: Moment) -> Outcome:
    """All have prepared: record the attempt as the newest generation and say so."""
    order = under_way(state)
    state = moved(state, "all prepared", Phase.SWITCHING)
    state = replace(
        state,
        orders=replace(state.orders, recorded=order, gone=NOBODY, attempt=None),
        wait=replace(
            state.wait,
            awaiting=frozenset(order.replicas),
            arrived=NOBODY,
            deadline_s=moment.now_s + moment.timeouts.step_s,
            hung_at_s=NEVER,
            is_hurried=False,
        ),
    )
    return state, (Switch(to=_ranked(order, state.orders.leavers), order=order),)


# --- losses --------------------------------------------------------------------------


def lose(state: Membership, lost: frozenset[ReplicaId], moment: Moment) -> Outcome:
    """Count these replicas as gone for good; whoever is left of their generation reforms at once.

    The loss of a joiner ends the attempt it was to join.  The loss of a leaver after the Switch
    causes nothing: if it takes a collective with it, the members report Broken.
    """
    old = lost & frozenset(members(state))
    state = forget(explained(state, lost), lost)
    if old:
        state = replace(state, orders=replace(state.orders, gone=state.orders.gone | old))
        if not is_finished(state):
            return reform(state, moment, cause="member lost")
        return replace(
            state, wait=replace(state.wait, awaiting=state.wait.awaiting - lost, deadline_s=NEVER)
        ), ()
    if state.orders.attempt is None:
        return replace(state, orders=replace(state.orders, leavers=state.orders.leavers - lost)), ()
    return (at_rest(state, "joiner lost") if lost & state.orders.joiners else state), ()


def end(state: Membership, lost: frozenset[ReplicaId], reason: str, moment: Moment) -> Outcome:
    """Count these replicas as lost, and have their processes ended."""
    ends = tuple(EndReplica(replica=replica, reason=reason) for replica in sorted(lost))
    state, commands = lose(state, lost, moment)
    return state, (*ends, *commands)


def set_aside(state: Membership, joiner: ReplicaId, moment: Moment) -> Outcome:
    """Go on without a joiner that has received no state; it hears so and is a spare again."""
    state = replace(
        state,
        orders=replace(
            state.orders, gone=state.orders.gone | {joiner}, joiners=state.orders.joiners - {joiner}
        ),
    )
    behind = skip_calls(state, (joiner,))
    if is_finished(state):
        return state, behind
    state, commands = reform(state, moment, cause="joiner behind")
    told = tuple(
        replace(command, to=(*command.to, joiner)) if isinstance(command, Reform) else command
        for command in commands
    )
    return state, (*behind, *told)


def at_rest(state: Membership, cause: str) -> Membership:
    """Return the state with the running attempt given up; its number is burned."""
    rest = Phase.EMPTY if state.orders.recorded is None else Phase.STEADY
    return _without_attempt(moved(state, cause, rest))


def _without_attempt(state: Membership) -> Membership:
    return replace(
        state,
        orders=replace(state.orders, attempt=None, joiners=NOBODY, leavers=NOBODY),
        wait=replace(
            state.wait, awaiting=NOBODY, arrived=NOBODY, deadline_s=NEVER, is_hurried=False
        ),
    )


def given_up(state: Membership, *, cause: str = "given up") -> Membership:
    """Return a membership in which nobody holds state any more: only a restore helps."""
    gone = frozenset(under_way(state).replicas)
    state = _without_attempt(moved(state, cause, Phase.LOST))
    state = replace(
        state,
        orders=replace(state.orders, gone=gone),
        trouble=replace(state.trouble, reform_at_s=NEVER),
        wait=replace(state.wait, hung_at_s=NEVER),
    )
    return replace(state, trouble=replace(state.trouble, unsure=NOBODY, suspects=NOBODY))


def reform(state: Membership, moment: Moment, *, cause: str) -> Outcome:
    """Issue the next number to whoever is left of the recorded generation, and to no one else."""
    if state.orders.attempt is not None:
        state = _without_attempt(state)
    state = replace(
        state, trouble=replace(state.trouble, reform_at_s=NEVER, unsure=NOBODY, suspects=NOBODY)
    )
    places = seats(state)
    if not places:
        # Even before the first Switched was heard: it may be on its way from one that has trained.
        return given_up(state, cause="nobody left"), ()
    order = _order(state, places, moment)
    state = moved(state, cause, Phase.REFORMING)
    state = replace(
        state,
        orders=replace(
            state.orders,
            issued=order.generation,
            recorded=order,
            gone=NOBODY,
            joiners=state.orders.joiners & frozenset(order.replicas),
        ),
        wait=replace(
            state.wait,
            awaiting=frozenset(order.replicas),
            arrived=NOBODY,
            deadline_s=moment.now_s + moment.timeouts.reform_s,
            hung_at_s=NEVER,
        ),
    )
    return state, (Reform(to=order.replicas, order=order),)


def unanswered(state: Membership, names: Collection[ReplicaId]) -> tuple[Command, ...]:
    """Return what counts now of what these replicas were told, as far as its answer is awaited."""
    told = tuple(sorted(name for name in names if _is_awaited(state, name)))
    if state.phase is Phase.LOST:
        return ()
    behind = skip_calls(state, [name for name in state.spares if name in names])
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
