"""The two tables of a membership: complete, reachable, exercised to the last entry, and never left.

``Recorder`` notes what is followed and heard.  The coordinator's side is driven by the scenario
files, some cases of the explorer and a few short stories; the worker's by a random walk in which
commands, builds and the script go on in any order.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.core.explorer.cases import Case, run
from tests.core.explorer.world import Faults
from tests.core.tables import entries, recorded
from tests.support.player import CoreAlone, play

from pliant.core.errors import TransitionError
from pliant.core.events import (
    Broken,
    Busy,
    DrainRequested,
    Finished,
    Prepared,
    Progressed,
    PublishAsked,
    Refused,
    Registered,
    Saved,
    Scaled,
    Spare,
    Switched,
    Unrestorable,
    WorkerEvent,
)
from pliant.core.membership import changes, worker_events
from pliant.core.membership import member as protocol
from pliant.core.membership.failure import silence
from pliant.core.membership.member import Abandon, Build, Member
from pliant.core.membership.resolve import Resolution
from pliant.core.membership.state import Membership, Moment, Timeouts
from pliant.core.membership.transitions import ANYWHERE, MEMBERS, PHASES, MemberState, Phase
from pliant.core.values import Generation, Incarnation, Lineage, Order, ReplicaId, Seat

A, B, C = (ReplicaId(name) for name in "abc")
ONE = Incarnation(1)
SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.txt"))


# --- the tables -------------------------------------------------------------------------


def test_what_is_lost_or_leaves_stays_so() -> None:
    assert PHASES.terminal == {Phase.LOST}
    assert MEMBERS.terminal == {MemberState.LEAVING}


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.REMEMBERED])
def test_every_phase_says_what_it_listens_to(phase: Phase) -> None:
    assert PHASES.hears(phase, "Progressed")
    assert PHASES.hears(phase, "Switched") == (phase in (Phase.SWITCHING, Phase.REFORMING))
    assert PHASES.hears(phase, "Prepared") == (phase is Phase.PREPARING)


def test_nobody_is_heard_before_the_roll_is_complete() -> None:
    """The controller keeps what workers say until then."""
    assert not any(PHASES.hears(Phase.REMEMBERED, event.__name__) for event in ANYWHERE)


# --- the coordinator's side ---------------------------------------------------------------


def moment(now_s: float = 0.0) -> Moment:
    return Moment(now_s=now_s, timeouts=Timeouts(heartbeat_s=1e6, grace_s=5.0), min_replicas=1)


def spare(name: ReplicaId) -> Spare:
    return Spare(replica=name, calls=0, num_slots=8, layout="", endpoint=f"{name}:1")


def hear(state: Membership, *events: WorkerEvent) -> Membership:
    for event in events:
        state, _ = worker_events.hear_worker(state, event, moment())
    return state


def planned(
    state: Membership, *, join: Sequence[ReplicaId] = (), leave: Sequence[ReplicaId] = ()
) -> Membership:
    return changes.plan(state, moment(), join=join, leave=leave)[0]


def answered(state: Membership) -> Membership:
    """Let everybody prepare, or switch, whom the phase waits for."""
    number = state.orders.issued
    for name in sorted(state.wait.awaiting):
        if state.phase is Phase.PREPARING:
            state = hear(state, Prepared(replica=name, generation=number))
        else:
            state = hear(state, Switched(replica=name, generation=number, step=0))
    return state


def in_phase(phase: Phase, *names: ReplicaId) -> Membership:
    """Return a membership of these in some phase; PREPARING: with ``c`` as a joiner."""
    state = hear(Membership(incarnation=ONE), *(spare(name) for name in names or (A, B)))
    if phase is Phase.EMPTY:
        return state
    state = answered(planned(state, join=names or (A, B)))
    if phase is Phase.SWITCHING:
        return state
    state = answered(state)
    match phase:
        case Phase.PREPARING:
            return planned(hear(state, spare(C)), join=[C])
        case Phase.REFORMING:
            return changes.lose(state, frozenset({(names or (A, B))[-1]}), moment())[0]
        case Phase.LOST:
            return changes.lose(state, frozenset(names or (A, B)), moment())[0]
        case _:
            return state


def signs(name: ReplicaId) -> tuple[WorkerEvent, ...]:
    registered = Registered(
        replica=name,
        asked_by=ONE,
        lineage=Lineage(1),
        committed=0,
        calls=0,
        has_state=False,
        current=Generation(0),
        prepared=Generation(0),
        ordered=Generation(0),
        broken=False,
        leaving=False,
        finished=False,
        spare=None,
    )
    return (
        spare(name),
        Progressed(replica=name, generation=Generation(0), committed=0, calls=0),
        Busy(replica=name, max_s=1.0),
        registered,
        Unrestorable(replica=name, generation=Generation(1), checkpoint="1/1", reason="digest"),
        PublishAsked(replica=name, lineage=Lineage(1), committed=1, checkpoint="1/1"),
        Saved(replica=name, lineage=Lineage(1), committed=1, checkpoint="1/1"),
    )


def test_signs_of_life_are_never_stale() -> None:
    for phase in Phase:
        if phase is not Phase.REMEMBERED:
            state = in_phase(phase)
            assert hear(state, *signs(C)).stale == state.stale, phase


def test_a_checkpoint_tells_that_its_steps_were_committed_in_its_own_history() -> None:
    asked = PublishAsked(replica=A, lineage=Lineage(1), committed=3, checkpoint="3/1")
    saved = Saved(replica=A, lineage=Lineage(1), committed=3, checkpoint="3/1")

    for event in (asked, saved):
        state = in_phase(Phase.STEADY)
        assert hear(state, event).committed == 3
        assert hear(state, event, replace(event, committed=2)).committed == 3
        assert hear(state, replace(event, lineage=Lineage(2))).committed == state.committed


def test_an_attempt_that_is_late_or_not_wanted_or_fails_leads_back_to_rest() -> None:
    first = planned(in_phase(Phase.EMPTY), join=[A, B])
    later = in_phase(Phase.PREPARING)

    for attempt, rest in ((first, Phase.EMPTY), (later, Phase.STEADY)):
        refused = Refused(replica=A, generation=attempt.orders.issued, reason="", joiner=False)
        assert planned(attempt).phase is rest
        assert hear(attempt, refused).phase is rest
        assert changes.lose(attempt, attempt.orders.joiners, moment())[0].phase is rest
        hurried = replace(attempt, wait=replace(attempt.wait, is_hurried=True))
        assert silence.tick(hurried, moment(100.0))[0].phase is rest


def test_a_group_in_which_all_wait_reforms_whatever_is_being_prepared() -> None:
    for phase in (Phase.STEADY, Phase.PREPARING):
        state = in_phase(phase)
        for name in (A, B):
            waits = Progressed(
                replica=name,
                generation=state.orders.formed,
                committed=0,
                calls=0,
                waiting=state.orders.formed,
            )
            state = hear(state, waits)
        state = replace(state, wait=replace(state.wait, deadline_s=1e5))

        state, _ = silence.tick(state, moment(1800.0))

        assert state.phase is Phase.REFORMING


def test_an_entry_that_takes_too_long_reforms() -> None:
    for phase in (Phase.SWITCHING, Phase.REFORMING):
        state, _ = silence.tick(in_phase(phase, A, B, C), moment(1000.0))

        assert state.phase is Phase.REFORMING


def test_a_joiner_of_another_call_is_set_aside_from_a_reform_too() -> None:
    """The generation it was to enter broke before it said that it was behind."""
    state = answered(in_phase(Phase.PREPARING))
    assert state.orders.joiners == {C}
    state = hear(state, Broken(replica=A, generation=state.orders.issued, reason="reset"))
    state, _ = silence.tick(state, moment(10.0))
    assert state.phase is Phase.REFORMING
    assert C in state.orders.joiners
    behind = Refused(replica=C, generation=state.orders.issued, reason="", joiner=True, calls=1)

    state = hear(state, behind)

    assert state.phase is Phase.REFORMING
    assert state.orders.recorded is not None
    assert state.orders.recorded.replicas == (A, B)


def test_a_joiner_that_says_so_before_its_switch_is_set_aside_as_well() -> None:
    state = in_phase(Phase.PREPARING)
    behind = Refused(replica=C, generation=state.orders.issued, reason="", joiner=True, calls=1)

    assert hear(state, behind).phase is Phase.REFORMING


def test_with_its_last_member_a_membership_loses_the_state_whatever_it_was_at() -> None:
    for phase in (Phase.STEADY, Phase.PREPARING, Phase.SWITCHING, Phase.REFORMING):
        state, _ = changes.lose(in_phase(phase), frozenset({A, B}), moment())

        assert state.phase is Phase.LOST


def test_who_finishes_is_heard_in_the_middle_of_a_change() -> None:
    for phase in (Phase.SWITCHING, Phase.REFORMING):
        assert hear(in_phase(phase), Finished(replica=A, committed=9)).finished == {A}


def test_state_can_be_given_up_at_any_time() -> None:
    """A checkpoint of another call of ``steps()`` is to be loaded: nobody is a member then."""
    for phase in Phase:
        if phase not in (Phase.EMPTY, Phase.REMEMBERED):
            assert changes.given_up(in_phase(phase)).phase is Phase.LOST


def short_stories() -> None:
    """Go where neither a scenario nor the explorer leads."""
    test_signs_of_life_are_never_stale()
    test_an_attempt_that_is_late_or_not_wanted_or_fails_leads_back_to_rest()
    test_a_group_in_which_all_wait_reforms_whatever_is_being_prepared()
    test_an_entry_that_takes_too_long_reforms()
    test_a_joiner_of_another_call_is_set_aside_from_a_reform_too()
    test_a_joiner_that_says_so_before_its_switch_is_set_aside_as_well()
    test_with_its_last_member_a_membership_loses_the_state_whatever_it_was_at()
    test_who_finishes_is_heard_in_the_middle_of_a_change()
    test_state_can_be_given_up_at_any_time()


EXPLORED = (
    Case(members=0, devices=2, steps=3, storage=((1, 1), (2, 1)), is_prompt=True,
         faults=Faults(damages=1, kills=1)),
    Case(devices=2, wishes=(DrainRequested(replica=ReplicaId("r1"), notice_s=1000.0),)),
    Case(members=1, devices=2, steps=1, wishes=(Scaled(target=2),), is_prompt=True,
         faults=Faults(crashes=1)),
    Case(members=1, devices=2, steps=1, wishes=(Scaled(target=2),), faults=Faults(breaks=1)),
)  # fmt: skip


@pytest.mark.timeout(120)
def test_every_entry_of_the_phases_is_used() -> None:
    with recorded() as seen:
        for path in SCENARIOS:
            play(path.read_text(), CoreAlone)
        for case in EXPLORED:
            assert not run(case).violation
        short_stories()

    assert entries(PHASES) - seen == set()


# --- the worker's side ----------------------------------------------------------------------


@dataclass
class Walk:
    """One worker: commands, builds and its script in any order that threads and network allow."""

    dice: random.Random
    member: Member = field(default_factory=lambda: Member(replica=A))
    newest: int = 1
    orders: dict[int, Order] = field(default_factory=dict)
    builds: set[Generation] = field(default_factory=set)
    attempt: Order | None = None
    """The newest Prepare."""

    is_answered: bool = False
    """It has said Prepared to that, so that the Switch may come."""

    def go(self, steps: int) -> None:
        if self.dice.random() < 0.5:
            self.member = replace(self.member, has_state=True, current=Generation(1))
        for _ in range(steps):
            act = self.dice.choice((self.command, self.command, self.build, self.work, self.work))
            act()

    def order(self, *, is_in: bool) -> Order:
        """Return a new order, or one of the last few again."""
        if self.orders and self.dice.random() < 0.2:
            order = self.orders[self.dice.choice(sorted(self.orders)[-4:])]
            if is_in <= (A in order.replicas):
                return order
        self.newest += 1
        names = (A, B) if is_in or self.dice.random() < 0.7 else (B, C)
        seats = tuple(Seat(replica=name, endpoint="") for name in names)
        order = Order(generation=Generation(self.newest), members=seats)
        self.orders[self.newest] = order
        return order

    def command(self) -> None:
        member, incarnation = self.member, Incarnation(self.dice.choice((1, 1, 1, 2)))
        match self.dice.choices(("Prepare", "Switch", "Reform", "RollCall"), (6, 9, 2, 1))[0]:
            case "Prepare":  # a spare is not left behind
                order = self.order(is_in=not member.current)
                if self.attempt is None or order.generation > self.attempt.generation:
                    self.attempt, self.is_answered = order, False
                self.member, tasks = protocol.on_prepare(member, order, incarnation)
            case "Switch":
                if self.attempt is None or not self.is_answered:
                    return
                number = self.attempt.generation - self.dice.choice((0, 0, 0, 1))
                older = self.orders.get(number, self.attempt)
                order = self.attempt if older == member.prepared else older
                self.member, tasks = protocol.on_switch(member, order, incarnation)
            case "Reform":  # leaves out joiners only, which were in no generation
                order = self.order(is_in=bool(member.current) and not member.has_state)
                self.member, tasks = protocol.on_reform(member, order, incarnation)
            case "RollCall":
                member = protocol.told_to_stop(member)
                self.member, tasks = protocol.on_roll_call(
                    member, incarnation, spare=None, finished=False
                )
            case _:
                raise AssertionError
        self.do(tasks)

    def do(self, tasks: Sequence[protocol.Task]) -> None:
        for task in tasks:
            match task:
                case Build(order=order):
                    self.builds.add(order.generation)
                case Abandon(generation=generation) if self.dice.random() < 0.5:  # else: too late
                    self.builds.discard(generation)
                case Prepared(generation=generation):
                    assert self.attempt is not None
                    self.is_answered |= generation == self.attempt.generation
                case _:
                    pass

    def build(self) -> None:
        """A builder thread is done."""
        if not self.builds:
            return
        generation = self.dice.choice(sorted(self.builds))
        self.builds.discard(generation)
        if self.dice.random() < 0.7:
            self.member, tasks = protocol.on_built(self.member, generation)
        else:
            self.member, tasks = protocol.on_build_failed(self.member, generation, "no route")
        self.do(tasks)

    def work(self) -> None:
        """The script's thread comes by."""
        member = self.member
        if self.dice.random() < 0.02:
            self.member = protocol.dismissed(member)
            return
        if member.leaving:
            return
        order = member.reform or member.ordered
        choices = [self.finish_call] if not member.broken or member.reform else []
        if order is not None and member.built and (member.reform or not member.broken):
            choices += [self.enter] * 2
        can_step = member.current and member.has_state and not member.broken
        if can_step and not protocol.is_sealed(member, member.current):
            choices += [self.step] * 3
        if member.broken or member.reform is not None or (order and not member.built):
            choices.append(self.is_released)
        if self.dice.random() < 0.6:
            choices.append(self.breaks)
        if choices:
            self.dice.choice(choices)()

    def finish_call(self) -> None:
        self.member = protocol.call_finished(self.member)

    def is_released(self) -> None:
        self.member = protocol.left(self.member)

    def step(self) -> None:
        member = self.member
        if member.vote is None:
            self.member = protocol.voted(member, member.committed)
        elif member.vote == (member.committed, member.current):
            self.member = protocol.committed(member, member.current)

    def breaks(self) -> None:
        awaited = protocol.entering(self.member)
        which = [g for g in (self.member.current, awaited.generation if awaited else 0) if g]
        for generation in which[self.dice.randrange(2) :][:1]:
            self.member, _ = protocol.on_broken(self.member, Generation(generation), "reset")

    def enter(self) -> None:
        """Meet, agree, receive, be in; a Reform or a fault may come between any two of these."""
        order = self.member.reform or self.member.ordered
        assert order is not None
        if A not in order.replicas:
            self.member = protocol.left(self.member)
            return
        rank = order.replicas.index(A)
        vote = self.member.vote
        commits = vote is not None and vote[0] == self.member.committed and bool(self.member.reform)
        receives = not self.member.has_state or self.dice.random() < 0.1
        resolution = Resolution(
            survivors=() if receives and not commits else (rank,),
            commits=(rank,) if commits else (),
            committed=self.member.committed,
            made_by=self.member.made_by,
            lineage=self.member.lineage,
            calls=self.member.calls,
            joiners=(rank,) if receives else (),
        )
        self.member = protocol.resolved(self.member, resolution, rank)
        if self.is_interrupted(order):
            return
        if not self.member.has_state:
            self.member = protocol.received(self.member, resolution)
            if self.is_interrupted(order):
                return
        self.member = protocol.entered(self.member, order)

    def is_interrupted(self, order: Order) -> bool:
        if self.dice.random() < 0.2:
            self.member, _ = protocol.on_broken(self.member, order.generation, "reset")
            return True
        if self.dice.random() < 0.2:
            self.command()
        return protocol.is_sealed(self.member, order.generation)


@pytest.mark.timeout(120)
def test_every_entry_of_a_member_is_used_and_no_order_of_events_leaves_the_table() -> None:
    with recorded() as seen:
        for seed in range(900, 1800):
            Walk(dice=random.Random(seed)).go(steps=40)
        alone = Member(replica=A, has_state=True, current=Generation(1))
        protocol.restored(alone, committed=3, lineage=Lineage(2))

    assert entries(MEMBERS) - seen == set()


def test_a_member_that_may_not_tells_what_happened_to_it() -> None:
    member = Member(replica=A, has_state=True, current=Generation(1))
    member = protocol.committed(protocol.voted(member, 0), Generation(1))

    with pytest.raises(TransitionError, match="before it, oldest first: vote 0: training") as one:
        protocol.committed(member, Generation(1))

    assert one.value.history == ("vote 0: training", "commit 1: training")
    with pytest.raises(TransitionError, match="received, to be training") as other:
        protocol.received(
            member,
            Resolution(
                survivors=(),
                commits=(),
                committed=0,
                made_by=Generation(0),
                lineage=Lineage(1),
                calls=0,
                joiners=(0,),
            ),
        )
    assert len(other.value.history) == 2
