"""Who is blamed for what could not be built, and that nobody is while one of them is not heard."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.commands import Dismiss, EndReplica, Reform
from pliant.core.events import (
    Broken,
    Busy,
    Prepared,
    Progressed,
    Refused,
    Spare,
    Switched,
    WorkerEvent,
)
from pliant.core.membership import changes, worker_events
from pliant.core.membership.failure import blame, silence
from pliant.core.membership.failure.blame import left_out, links_added, no_link_between
from pliant.core.membership.state import Membership, Moment, Timeouts, members
from pliant.core.membership.transitions import Phase
from pliant.core.table import Table
from pliant.core.values import Generation, Incarnation, ReplicaId

A, B, C = (ReplicaId(name) for name in "abc")


def moment(now_s: float) -> Moment:
    return Moment(now_s=now_s, timeouts=Timeouts(), min_replicas=1)


def hear(state: Membership, at_s: float, *said: WorkerEvent) -> Membership:
    for event in said:
        state, _ = worker_events.hear_worker(state, event, moment(at_s))
    return state


def spare(name: ReplicaId) -> Spare:
    return Spare(replica=name, calls=0, num_slots=8, layout="", endpoint=f"{name}:1")


def alive(name: ReplicaId) -> Progressed:
    return Progressed(replica=name, generation=Generation(0), committed=0, calls=0)


def refused(
    name: ReplicaId, state: Membership, *, unreached: tuple[ReplicaId, ...] = ()
) -> Refused:
    return Refused(
        replica=name, generation=state.orders.issued, reason="", joiner=False, unreached=unreached
    )


def planned(state: Membership, at_s: float) -> Membership:
    return changes.plan(state, moment(at_s), join=(A, B, C), leave=())[0]


def started() -> Membership:
    state = hear(Membership(incarnation=Incarnation(1)), 0.0, *map(spare, (A, B, C)))
    return planned(state, 0.0)


def test_nothing_is_tried_again_before_all_are_heard_again() -> None:
    state = started()
    state = hear(state, 1.0, refused(A, state), alive(B))

    assert state.trouble.unsure == {C}
    assert planned(state, 5.0).orders.attempt is None
    assert planned(hear(state, 5.0, alive(C)), 5.0).orders.attempt is not None


def test_nobody_is_dropped_before_all_are_heard_again() -> None:
    state = hear(started(), 1.0, refused(A, started()), alive(B), alive(C))
    again = planned(state, 5.0)
    failed = hear(again, 6.0, refused(A, again), alive(B))

    assert silence.tick(failed, moment(6.5)) == (failed, ())
    heard = hear(failed, 7.0, alive(C))
    assert silence.next_deadline_s(heard) < 7.0
    after, commands = silence.tick(heard, moment(7.0))
    assert commands == (
        Dismiss(to=(A, B, C), reason="the groups of two attempts could not be built with a, b, c"),
    )
    assert (after.trouble.suspects, after.trouble.failures) == (frozenset(), 0)


def test_one_that_is_lost_meanwhile_was_why() -> None:
    again = planned(hear(started(), 1.0, refused(A, started()), alive(B), alive(C)), 5.0)
    failed = hear(again, 6.0, refused(A, again), alive(B))

    state, _ = changes.lose(failed, frozenset({C}), moment(12.0))

    assert (state.trouble.unsure, state.trouble.suspects, state.trouble.failures) == (
        frozenset(),
        frozenset(),
        0,
    )
    assert planned(state, 12.0).orders.attempt is not None


def test_one_that_was_heard_and_is_lost_was_not() -> None:
    again = planned(hear(started(), 1.0, refused(A, started()), alive(B), alive(C)), 5.0)
    failed = hear(again, 6.0, refused(A, again), alive(B))

    state, _ = changes.lose(failed, frozenset({B}), moment(12.0))

    assert state.trouble.unsure == {C}
    assert state.trouble.suspects == {A, C}


def entering_with_a_mute_holder(*, holders: tuple[ReplicaId, ...]) -> Membership:
    """Return a generation that is entered, for longer than one may hang: a keeps its lock."""
    state = hear(Membership(incarnation=Incarnation(1)), 0.0, *map(spare, holders))
    state = changes.plan(state, moment(0.0), join=holders, leave=())[0]
    prepared = [Prepared(replica=r, generation=state.orders.issued) for r in holders]
    switched = [Switched(replica=r, generation=state.orders.issued, step=3) for r in holders]
    state = planned(hear(state, 1.0, *prepared, *switched, spare(C)), 1.0)
    state = hear(
        state, 1.0, *(Prepared(replica=r, generation=state.orders.issued) for r in (*holders, C))
    )
    return hear(state, 2.0, replace(alive(A), is_spoken_for=True))


def test_nobody_is_blamed_where_nobody_can_meet_the_last_holder_which_is_mute() -> None:
    state = entering_with_a_mute_holder(holders=(A,))
    late_s = 2.0 + 2 * Timeouts().hang_s
    pulses = {r: replace(pulse, silent_at_s=late_s + 1.0) for r, pulse in state.pulses.items()}
    state = replace(state, pulses=Table(pulses))

    for _ in range(3):
        state, commands = silence.tick(state, moment(late_s))
        order = state.orders.recorded
        assert order is not None
        assert commands == (Reform(to=(A, C), order=order),)
        state = replace(state, wait=replace(state.wait, deadline_s=late_s))


def test_a_joiner_is_late_as_ever_where_another_than_the_mute_holds_the_state() -> None:
    state = entering_with_a_mute_holder(holders=(A, B))
    late_s = 2.0 + 2 * Timeouts().hang_s
    pulses = {r: replace(pulse, silent_at_s=late_s + 1.0) for r, pulse in state.pulses.items()}
    state = replace(state, pulses=Table(pulses))

    state, commands = silence.tick(state, moment(late_s))

    assert [type(command) for command in commands] == [EndReplica, Reform]
    assert members(state) == (A, B)


def not_built_with_a_mute(holders: tuple[ReplicaId, ...], *, busy_s: float = 0.0) -> Membership:
    """Return a Reform that could not be built, as long after as a member may hang: a is mute."""
    state = hear(entering_with_a_mute_holder(holders=holders), 3.0, Busy(replica=A, max_s=busy_s))
    state = hear(state, 3.0, replace(alive(A), is_spoken_for=True))
    state, _ = changes.reform(state, moment(3.0), cause="late")
    late_s = 4.0 + Timeouts().hang_s
    broken = Broken(replica=C, generation=state.orders.issued, reason="not built; not there: a")
    return hear(state, late_s, *map(alive, holders[1:]), broken)


def still_broken(state: Membership) -> tuple[Membership, list[type]]:
    after, commands = blame.still_broken(state, moment(5.0 + Timeouts().hang_s))
    return after, [type(command) for command in commands]


def test_a_mute_member_with_which_nothing_is_built_is_ended_once_it_counts_as_hung() -> None:
    state, commands = still_broken(not_built_with_a_mute((A, B)))

    assert commands == [EndReplica, Reform]
    assert members(state) == (B, C)


def test_it_is_not_while_it_may_be_busy_or_may_not_hang_yet() -> None:
    busy = not_built_with_a_mute((A, B), busy_s=1e6)
    early = not_built_with_a_mute((A, B))
    pulses = early.pulses.put(A, replace(early.pulses[A], mute_at_s=10.0))

    for state in (busy, replace(early, pulses=pulses)):
        after, commands = still_broken(state)
        assert commands == [Reform]
        assert members(after) == (A, B, C)


def test_nobody_is_ended_where_nothing_is_built_with_the_last_holder_which_is_mute() -> None:
    state = not_built_with_a_mute((A,))

    for _ in range(7):
        state, commands = still_broken(state)
        assert commands == [Reform]
        assert members(state) == (A, C)


def test_who_is_said_to_have_failed_has_not_spoken() -> None:
    """The second time, a survivor names a joiner."""
    state = started()
    while state.phase is Phase.PREPARING:
        state = hear(
            state, 1.0, *(Prepared(replica=r, generation=state.orders.issued) for r in (A, B, C))
        )
    told = replace(refused(C, state), joiner=True)
    before = state.pulses[C]

    assert hear(state, 9.0, told).pulses.get(C) in (None, before)


def broken_in_training() -> Membership:
    """A and B train; their links broke in an attempt with C, and then their own group did."""
    state = hear(Membership(incarnation=Incarnation(1)), 0.0, spare(A), spare(B), spare(C))
    state, _ = changes.plan(state, moment(0.0), join=(A, B), leave=())
    state = hear(state, 0.0, *(Prepared(replica=r, generation=state.orders.issued) for r in (A, B)))
    formed = state.orders.issued
    state = hear(state, 0.0, *(Switched(replica=r, generation=formed, step=3) for r in (A, B)))
    state, _ = changes.plan(state, moment(1.0), join=(C,), leave=())
    state = hear(state, 2.0, refused(B, state, unreached=(A,)), alive(A), alive(C))
    broken = Broken(replica=B, generation=formed, reason="", unreached=(A,))
    return hear(state, 2.1, broken)


def ticked(state: Membership, from_s: float, to_s: float) -> Membership:
    while (due_s := max(silence.next_deadline_s(state), from_s)) <= to_s:
        state, _ = silence.tick(state, moment(due_s))
    return state


def test_those_that_train_and_fell_silent_together_meet_again_once_one_is_heard() -> None:
    silent = ticked(broken_in_training(), 2.1, 20.0)
    assert silent.phase is Phase.STEADY
    assert silent.trouble.unheard == {A, B}

    back, commands = worker_events.hear_worker(silent, alive(A), moment(20.0))

    assert [type(command) for command in commands] == [Reform]
    assert back.phase is Phase.REFORMING
    assert back.wait.awaiting == {A, B}


def test_those_that_train_and_were_silent_go_on_where_nothing_broke() -> None:
    state = hear(Membership(incarnation=Incarnation(1)), 0.0, spare(A))
    state, _ = changes.plan(state, moment(0.0), join=(A,), leave=())
    state = hear(state, 0.0, Prepared(replica=A, generation=state.orders.issued))
    state = hear(state, 0.0, Switched(replica=A, generation=state.orders.issued, step=3))
    silent = ticked(state, 0.0, 20.0)

    assert silent.trouble.unheard == {A}
    back, commands = worker_events.hear_worker(silent, alive(A), moment(20.0))
    assert (back.phase, commands) == (Phase.STEADY, ())


NAMES = tuple(ReplicaId(f"r{number}") for number in range(1, 7))
R1, R2, R3, R4, R5, R6 = NAMES


def test_the_larger_part_stays() -> None:
    links = frozenset((a, b) for a in (R1, R2) for b in (R3, R4, R5))

    assert left_out((R1, R2, R3, R4, R5), links, NAMES) == {R1, R2}
    assert left_out((R1, R2, R3, R4), links, NAMES) == {R3, R4}
    assert left_out((R1, R2), links, NAMES) == frozenset()


def test_one_link_costs_one_member() -> None:
    assert left_out(NAMES, {(R2, R5)}, NAMES) == {R5}
    assert left_out(NAMES, {(R2, R5)}, {R5}) == {R2}


def test_a_link_has_no_direction() -> None:
    assert links_added(links_added(frozenset(), R1, (R2,)), R2, (R1,)) == {(R1, R2)}


def test_who_is_left_out_is_told_because_of_whom() -> None:
    links = frozenset({(R1, R3), (R2, R3), (R4, R5)})

    assert no_link_between({R3}, links) == "no connection between r3 and r1, r2 could be made"


@given(
    st.sets(st.sampled_from(list(combinations(NAMES, 2)))),
    st.sets(st.sampled_from(NAMES), min_size=1),
)
def test_all_who_stay_reach_each_other_and_somebody_holds_the_state(
    links: set[tuple[ReplicaId, ReplicaId]], holders: set[ReplicaId]
) -> None:
    there = set(NAMES) - left_out(NAMES, links, holders)

    assert there & holders
    assert not [link for link in links if set(link) <= there]
