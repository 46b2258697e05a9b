"""Who counts as hung by what it says of its own workers, and from when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core.commands import EndReplica
from pliant.core.events import Busy, Progressed, Spare
from pliant.core.membership import worker_events
from pliant.core.membership.failure import silence
from pliant.core.membership.failure.worker_activity import (
    EACH_OTHER,
    Whereabouts,
    blocking_worker,
    held_up_by,
    stuck,
    waits,
)
from pliant.core.membership.state import Membership, Moment, Orders, PhaseWait, Pulse, Timeouts
from pliant.core.membership.transitions import Phase
from pliant.core.table import Table
from pliant.core.values import Generation, Incarnation, Order, ReplicaId, Seat

A, B = (ReplicaId(name) for name in "ab")
TWO = Generation(2)
ORDER = Order(
    generation=TWO, members=tuple(Seat(replica=name, endpoint=f"{name}:1") for name in (A, B))
)
TIMEOUTS = Timeouts(hang_s=60.0, heartbeat_s=200.0)


def moment(now_s: float) -> Moment:
    return Moment(now_s=now_s, timeouts=TIMEOUTS, min_replicas=1)


def membership(phase: Phase = Phase.SWITCHING, *, deadline_s: float = 1e6) -> Membership:
    return Membership(
        incarnation=Incarnation(1),
        phase=phase,
        orders=Orders(
            issued=TWO, formed=TWO if phase is Phase.STEADY else Generation(1), recorded=ORDER
        ),
        wait=PhaseWait(
            awaiting=frozenset() if phase is Phase.STEADY else frozenset({A, B}),
            deadline_s=deadline_s,
        ),
        committed=8,
        pulses=Table({name: Pulse(silent_at_s=1e6) for name in (A, B)}),
    )


def says(
    state: Membership, at_s: float, held_up_by: int | None = 1, committed: int = 8
) -> Membership:
    sign = Progressed(
        replica=A, generation=TWO, committed=committed, calls=0, held_up_by=held_up_by
    )
    return worker_events.hear_worker(state, sign, moment(at_s))[0]


def ended(state: Membership, at_s: float) -> tuple[str, ...]:
    _, commands = silence.tick(state, moment(at_s))
    return tuple(command.replica for command in commands if isinstance(command, EndReplica))


@pytest.mark.parametrize("phase", [Phase.STEADY, Phase.SWITCHING, Phase.REFORMING])
def test_one_that_says_so_for_long_is_ended_whatever_is_under_way(phase: Phase) -> None:
    state = says(says(membership(phase), 10.0), 50.0, EACH_OTHER)

    assert silence.next_deadline_s(state) == 70.0
    assert ended(state, 69.0) == ()
    assert ended(state, 70.0) == (A,)


def test_one_that_goes_on_meanwhile_begins_anew() -> None:
    again = says(says(says(membership(), 10.0), 40.0, None), 50.0)
    after_a_step = says(says(membership(), 10.0), 50.0, committed=9)

    for state in (again, after_a_step):
        assert stuck(state) == {A: 110.0}


def test_a_pause_that_was_announced_is_no_hang() -> None:
    state = says(membership(), 10.0)
    state, _ = worker_events.hear_worker(state, Busy(replica=A, max_s=100.0), moment(20.0))

    state, commands = silence.tick(state, moment(70.0))

    assert commands == ()
    assert stuck(state) == {A: 180.0}


def test_what_the_coordinator_slept_is_no_hang() -> None:
    state = silence.woken(says(membership(), 10.0), moment(1000.0))

    assert stuck(state) == {A: 1040.0}
    assert ended(state, 1000.0) == ()


def test_one_that_has_fallen_silent_since_is_waited_for_like_any_that_is_silent() -> None:
    known = says(membership(), 10.0)
    state = replace(known, trouble=replace(known.trouble, unheard=frozenset({A})))

    assert stuck(state) == {}
    assert ended(says(state, 1000.0), 1000.0) == (A,)


def test_who_has_nothing_left_to_do_does_not_hang() -> None:
    state = says(membership(), 10.0)
    leaver = replace(
        state, orders=replace(state.orders, gone=frozenset({A}), leavers=frozenset({A}))
    )

    assert stuck(replace(state, finished=frozenset({A}))) == {}
    assert stuck(leaver) == {}
    assert stuck(replace(state, orders=replace(state.orders, leavers=frozenset({A})))) == {A: 70.0}


def test_a_spare_that_hangs_is_ended_and_nobody_waits_for_it() -> None:
    known = says(membership(), 10.0)
    state = replace(known, orders=replace(known.orders, gone=frozenset({A})))

    _, commands = silence.tick(state, moment(70.0))

    assert held_up_by(state) == frozenset()
    assert commands == (
        EndReplica(
            replica=A,
            reason="nothing went on in it for 60 s and the others wait for its worker 1; announce "
            "longer pauses with session.busy(max_s)",
        ),
    )


def mute(state: Membership, at_s: float) -> Membership:
    sign = Progressed(replica=A, generation=TWO, committed=0, calls=0, is_spoken_for=True)
    return worker_events.hear_worker(state, sign, moment(at_s))[0]


def spare() -> tuple[Membership, Spare]:
    """Return a membership of which A is no member any more, and what A says as a spare."""
    said = Spare(replica=A, calls=0, num_slots=8, layout="l", endpoint="a:1", is_durable=False)
    known = membership()
    state = replace(known, orders=replace(known.orders, gone=frozenset({A})))
    return worker_events.hear_worker(state, said, moment(5.0))[0], said


def test_a_spare_that_keeps_the_lock_is_ended_and_a_member_is_not() -> None:
    state = mute(mute(spare()[0], 10.0), 50.0)

    _, commands = silence.tick(state, moment(70.0))

    assert ended(state, 69.0) == ()
    assert commands == (
        EndReplica(
            replica=A,
            reason="its script kept the interpreter lock for 60 s; announce longer pauses with "
            "session.busy(max_s)",
        ),
    )
    assert stuck(mute(mute(membership(), 10.0), 50.0)) == {}


def test_a_spare_that_lets_go_of_the_lock_begins_anew() -> None:
    """It says Spare when it comes to ``steps()``: its next sign of life may come later."""
    state, said = spare()
    state = worker_events.hear_worker(mute(state, 10.0), said, moment(69.0))[0]

    assert stuck(state) == {}
    assert stuck(mute(state, 80.0)) == {A: 140.0}
    assert stuck(mute(says(state, 75.0), 80.0)) == {A: 140.0}
    assert stuck(says(mute(state, 80.0), 90.0)) == {A: 150.0}


def test_a_spare_that_asked_for_patience_may_keep_the_lock() -> None:
    state, _ = spare()
    state, _ = worker_events.hear_worker(state, Busy(replica=A, max_s=100.0), moment(9.0))
    state = mute(state, 10.0)

    state, commands = silence.tick(state, moment(70.0))

    assert commands == ()
    assert stuck(mute(state, 80.0)) == {A: 169.0}


def test_spares_that_hang_for_several_reasons_are_ended_one_after_the_other() -> None:
    known = mute(spare()[0], 10.0)
    state = replace(known, orders=replace(known.orders, recorded=None))
    sign = Progressed(replica=B, generation=TWO, committed=8, calls=0, held_up_by=1)
    state, _ = worker_events.hear_worker(state, sign, moment(10.0))

    after, _ = silence.tick(state, moment(70.0))

    assert ended(state, 70.0) == (A,)
    assert ended(after, 70.0) == (B,)


def test_the_others_wait_for_whom_nobody_else_waits_first() -> None:
    state = says(membership(Phase.STEADY), 10.0)
    waits = Progressed(replica=A, generation=TWO, committed=8, calls=0, waiting=TWO)

    assert held_up_by(state) == {A}
    assert held_up_by(worker_events.hear_worker(state, waits, moment(11.0))[0]) == {B}


M, R, S, E = Whereabouts.MEMBERS, Whereabouts.REPLICA, Whereabouts.SCRIPT, Whereabouts.ENGINE


@pytest.mark.parametrize(
    ("workers", "is_waiting", "by"),
    [
        ((M,), True, None),
        ((M, M, M), True, None),
        ((M, R), True, None),
        ((R, M), True, None),
        ((M, E), True, None),
        ((M, S), False, None),
        ((R, S), False, 1),
        ((S, R, R), False, 0),
        ((M, R, S), False, 2),
        ((R, E), False, None),
        ((R, R), False, EACH_OTHER),
        ((S, S), False, None),
        ((E, E), False, None),
    ],
)
def test_where_the_workers_are_says_who_waits_for_whom(
    workers: tuple[Whereabouts, ...], is_waiting: bool, by: int | None
) -> None:
    assert (waits(workers), blocking_worker(workers)) == (is_waiting, by)
