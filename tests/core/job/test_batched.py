"""Answers and heartbeats that are heard together are what they are one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.core.errors import TransitionError
from pliant.core.events import (
    Broken,
    Busy,
    DrainRequested,
    Event,
    Exited,
    ExitKind,
    NodeJoined,
    NodeSilent,
    Prepared,
    Progressed,
    Running,
    Scaled,
    Spare,
    Switched,
    Ticked,
)
from pliant.core.job import controller
from pliant.core.job.batched import hear_answers, hear_heartbeats
from pliant.core.job.state import Job, JobPhase, JobSettings, Ready
from pliant.core.membership.transitions import Phase
from pliant.core.policy.decide import Policy
from pliant.core.values import Generation, NodeId, ReplicaId

SETTINGS = JobSettings(policy=Policy(max_replicas=7), restart_budget=1000)
NAMES = [ReplicaId(f"r{number}") for number in range(1, 10)]
FIRST = Generation(1)


def spare(name: ReplicaId) -> Spare:
    return Spare(replica=name, calls=0, num_slots=42, layout="l", endpoint=f"{name}:1")


def after(story: Sequence[Event], *, now_s: float = 1.0, job: Job | None = None) -> Job:
    job = controller.begin(now_s=0.0, settings=SETTINGS)[0] if job is None else job
    for event in story:
        job, _ = controller.step(job, event, now_s=now_s, settings=SETTINGS)
    return job


SIX = after(
    [
        Scaled(target=6),
        NodeJoined(node=NodeId("n"), devices=9),
        *map(spare, NAMES[:6]),
        *(Prepared(replica=name, generation=FIRST) for name in NAMES[:6]),
        *(Switched(replica=name, generation=FIRST, step=0) for name in NAMES[:6]),
    ]
)
GROWING = after([Scaled(target=7), spare(NAMES[6])], job=SIX)
SWITCHING = after(
    [Prepared(replica=name, generation=Generation(2)) for name in NAMES[:7]], job=GROWING
)
REFORMING = after([Exited(replica=NAMES[0], kind=ExitKind.SIGNAL)], job=SIX)


def prepared(names: Sequence[ReplicaId]) -> list[Event]:
    return [Prepared(replica=name, generation=Generation(2)) for name in names]


def switched(names: Sequence[ReplicaId]) -> list[Event]:
    return [Switched(replica=name, generation=Generation(2), step=3) for name in names]


def test_all_old_members_but_the_last_awaited_are_heard_together() -> None:
    assert GROWING.membership.phase is Phase.PREPARING
    assert hear_answers(GROWING, prepared(NAMES[:6]), now_s=2.0, settings=SETTINGS)[1] == 6
    assert hear_answers(SWITCHING, switched(NAMES[:6]), now_s=2.0, settings=SETTINGS)[1] == 6
    assert hear_answers(REFORMING, switched(NAMES[1:6]), now_s=2.0, settings=SETTINGS)[1] == 4


def test_of_a_joiner_more_follows_than_that_it_has_answered() -> None:
    with_joiner = switched([NAMES[6], *NAMES[:3]])

    assert hear_answers(SWITCHING, with_joiner, now_s=2.0, settings=SETTINGS)[1] == 0


names = st.sampled_from(NAMES)
generations = st.integers(1, 6).map(Generation)
answers = st.one_of(
    st.builds(Prepared, replica=names, generation=generations),
    st.builds(Switched, replica=names, generation=generations, step=st.integers(0, 4)),
)
turns = st.lists(
    st.one_of(
        answers,
        st.builds(spare, names),
        st.builds(Exited, replica=names, kind=st.just(ExitKind.SIGNAL)),
        st.builds(Broken, replica=names, generation=generations, reason=st.just("")),
        st.builds(DrainRequested, replica=names, notice_s=st.just(30.0)),
        st.builds(Scaled, target=st.integers(1, 7)),
        st.builds(
            Progressed,
            replica=names,
            generation=generations,
            committed=st.integers(0, 4),
            calls=st.just(0),
            waiting=generations,
            is_spoken_for=st.booleans(),
        ),
        st.just(Ticked()),
    ),
    max_size=6,
)


def one_after_the_other(job: Job, heard: Sequence[Event], now_s: float) -> tuple[Job, list[Ready]]:
    said = []
    for event in heard:
        job, ready = controller.step(job, event, now_s=now_s, settings=SETTINGS)
        said.append(ready)
    return job, said


@settings(max_examples=400)
@given(
    job=st.sampled_from([SIX, GROWING, SWITCHING, REFORMING]),
    turns=turns,
    said=st.lists(answers, min_size=2, max_size=8),
    names=st.permutations(NAMES),
    later_s=st.sampled_from([0.0, 0.5, 9.0, 700.0]),
)
def test_answers_together_are_what_they_are_one_after_the_other(
    job: Job, turns: list[Event], said: list[Event], names: list[ReplicaId], later_s: float
) -> None:
    try:
        job = after(turns, now_s=2.0, job=job)
    except TransitionError:
        return
    newest, now_s = job.membership.orders.issued, 2.0 + later_s
    for batch in (
        said,
        [Prepared(replica=name, generation=newest) for name in names],
        [Switched(replica=name, generation=newest, step=3) for name in names],
    ):
        together, number = hear_answers(job, batch, now_s=now_s, settings=SETTINGS)
        expected, ready = one_after_the_other(job, batch[:number], now_s)

        assert together == expected
        assert together.history.events == expected.history.events
        silent = Ready(incarnation=job.membership.incarnation)
        assert ready == [silent] * number


def life(name: ReplicaId) -> Progressed:
    return Progressed(replica=name, generation=FIRST, committed=0, calls=0)


def test_all_signs_that_tell_no_news_are_heard_together_each_as_often_as_it_comes() -> None:
    said = [life(name) for name in (*NAMES[:6], *NAMES[:3])]

    for job in (SIX, GROWING, SWITCHING):
        assert hear_heartbeats(job, said, now_s=2.0, settings=SETTINGS)[1] == 9


def test_what_follows_the_first_other_event_is_not_heard_before_it() -> None:
    killed = Exited(replica=NAMES[1], kind=ExitKind.SIGNAL)
    said: list[Event] = [life(NAMES[0]), killed, life(NAMES[1])]

    assert hear_heartbeats(SIX, said, now_s=2.0, settings=SETTINGS)[1] == 1


@pytest.mark.parametrize(
    "news",
    [
        replace(life(NAMES[1]), committed=1),
        replace(life(NAMES[1]), calls=1),
        replace(life(NAMES[1]), held_up_by=0),
        replace(life(NAMES[1]), is_spoken_for=True),
        replace(life(NAMES[1]), slow=20),
        life(ReplicaId("r99")),
    ],
    ids=["a step", "a call", "held up", "mute", "slow", "a stranger"],
)
def test_a_sign_that_tells_more_is_left_to_the_controller(news: Progressed) -> None:
    assert hear_heartbeats(SIX, [life(NAMES[0]), news], now_s=2.0, settings=SETTINGS)[1] == 1


def test_of_one_that_was_in_trouble_the_next_sign_is_left_to_the_controller() -> None:
    for said in (
        replace(life(NAMES[0]), held_up_by=0),
        replace(life(NAMES[0]), is_spoken_for=True),
        replace(life(NAMES[0]), slow=20),
    ):
        job = after([said], job=SIX)
        assert hear_heartbeats(job, [life(NAMES[0])], now_s=2.0, settings=SETTINGS)[1] == 0


def test_of_one_that_is_lost_or_not_heard_yet_the_next_sign_is_left_to_the_controller() -> None:
    unheard = replace(
        SIX.membership, trouble=replace(SIX.membership.trouble, unheard=frozenset({NAMES[0]}))
    )
    lost = replace(SIX.replicas[NAMES[0]], is_lost=True)

    for job in (
        replace(SIX, membership=unheard),
        replace(SIX, replicas=SIX.replicas.put(NAMES[0], lost)),
    ):
        assert hear_heartbeats(job, [life(NAMES[0])], now_s=2.0, settings=SETTINGS)[1] == 0


def test_who_waits_for_the_others_in_the_next_generation_has_arrived() -> None:
    waits = replace(life(NAMES[1]), waiting=Generation(2))

    assert hear_heartbeats(REFORMING, [waits], now_s=2.0, settings=SETTINGS)[1] == 0
    assert hear_heartbeats(SIX, [waits], now_s=2.0, settings=SETTINGS)[1] == 1


def test_nobody_is_heard_together_who_registers_or_after_a_sleep_of_the_coordinator() -> None:
    recovering = replace(SIX, phase=JobPhase.RECOVERING)
    remembered = replace(SIX, membership=replace(SIX.membership, phase=Phase.REMEMBERED))

    assert hear_heartbeats(recovering, [life(NAMES[0])], now_s=2.0, settings=SETTINGS)[1] == 0
    assert hear_heartbeats(remembered, [life(NAMES[0])], now_s=2.0, settings=SETTINGS)[1] == 0
    assert hear_heartbeats(SIX, [life(NAMES[0])], now_s=700.0, settings=SETTINGS)[1] == 0


sign_generations = st.integers(0, 6).map(Generation)
signs = st.builds(
    Progressed,
    replica=names,
    generation=sign_generations,
    committed=st.integers(0, 4),
    calls=st.integers(0, 1),
    waiting=sign_generations,
    is_spoken_for=st.booleans(),
    held_up_by=st.sampled_from([None, None, None, -1, 0, 3]),
    slow=st.sampled_from([0, 0, 0, 20]),
)
sign_turns = st.lists(
    st.one_of(
        answers,
        signs,
        st.builds(spare, names),
        st.builds(Exited, replica=names, kind=st.just(ExitKind.SIGNAL)),
        st.builds(Broken, replica=names, generation=sign_generations, reason=st.just("")),
        st.builds(Busy, replica=names, max_s=st.just(30.0)),
        st.builds(DrainRequested, replica=names, notice_s=st.just(30.0)),
        st.builds(Scaled, target=st.integers(1, 7)),
        st.just(NodeSilent(node=NodeId("n"), others=())),
        st.just(Running(node=NodeId("n"), replicas=tuple(NAMES[:7]))),
        st.just(Ticked()),
    ),
    max_size=6,
)


@settings(max_examples=400)
@given(
    job=st.sampled_from([SIX, GROWING, SWITCHING, REFORMING]),
    sign_turns=sign_turns,
    said=st.lists(st.one_of(signs, names.map(life)), min_size=1, max_size=8),
    later_s=st.sampled_from([0.0, 0.5, 9.0, 700.0]),
)
def test_heartbeats_together_are_what_they_are_one_after_the_other(
    job: Job, sign_turns: list[Event], said: list[Progressed], later_s: float
) -> None:
    try:
        job = after(sign_turns, now_s=2.0, job=job)
    except TransitionError:
        return
    now_s = 2.0 + later_s
    for batch in (said, [life(one.replica) for one in said]):
        together, number = hear_heartbeats(job, batch, now_s=now_s, settings=SETTINGS)
        expected, ready = one_after_the_other(job, batch[:number], now_s)

        assert together == expected
        assert list(together.membership.pulses) == list(expected.membership.pulses)
        assert together.history.events == expected.history.events
        assert ready == [Ready(incarnation=job.membership.incarnation)] * number
        assert controller.next_deadline_s(together) == controller.next_deadline_s(expected)
