"""Answers and heartbeats that are heard together are what they are one after the other."""

from __future__ import annotations

from collections.abc import Sequence

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
from pliant.core.job.state import Job, JobSettings, Ready
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
