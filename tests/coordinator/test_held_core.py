"""The core is asked when something is due, and not at each of a thousand signs of life."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pliant.coordinator.held_core import HeldCore
from pliant.core.commands import EndReplica
from pliant.core.events import (
    Event,
    Exited,
    ExitKind,
    Finished,
    NodeJoined,
    Prepared,
    Progressed,
    Scaled,
    Spare,
    Switched,
)
from pliant.core.job import controller
from pliant.core.job.state import Job, JobSettings
from pliant.core.policy.decide import Policy
from pliant.core.values import Generation, Lineage, NodeId, ReplicaId
from pliant.machine.clock import TICK_S
from pliant.observe.quiet_inputs import QuietInputs, quiet_of

NAMES = [ReplicaId(f"r{number}") for number in range(1, 4)]
FIRST = Generation(1)
STUCK = [None, None, None, None, 0]


def beat(name: ReplicaId) -> Progressed:
    return Progressed(replica=name, generation=FIRST, committed=1, calls=0)


def a_running_core() -> HeldCore:
    refused: list[tuple[str, str]] = []
    core = HeldCore(JobSettings(policy=Policy(max_replicas=3)), lambda *what: refused.append(what))
    core.begin(now_s=0.0, register=None, is_asked=False)
    story: list[Event] = [NodeJoined(node=NodeId("n"), devices=3)]
    story += [
        Spare(replica=name, calls=0, num_slots=4, layout="l", endpoint="h:1") for name in NAMES
    ]
    story += [Prepared(replica=name, generation=FIRST) for name in NAMES]
    story += [Switched(replica=name, generation=FIRST, step=0) for name in NAMES]
    assert len(core.answers(story, 1.0)) == len(story)
    assert refused == []
    return core


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The states at which it was looked when something is due."""
    found: list[Job] = []
    look = controller.next_deadline_s

    def noted(job: Job) -> float:
        found.append(job)
        return look(job)

    monkeypatch.setattr(controller, "next_deadline_s", noted)
    return found


def test_signs_of_life_are_no_reason_to_look_again(looks: list[Job]) -> None:
    core = a_running_core()
    due_s, known = core.due_s(1.0), len(looks)

    for number in range(50):
        now_s = 1.0 + number / 1000
        (answered,) = core.answers([beat(NAMES[number % 3])], now_s)
        assert answered.is_mere_sign
        assert core.due_s(now_s) == due_s
    assert len(looks) == known

    core.due_s(1.5)
    assert len(looks) == known + 1


def test_what_is_written_of_signs_heard_together_brings_another_core_to_the_same_state() -> None:
    draw, core, now_s = random.Random(7), a_running_core(), 1.0
    other, quiet = core.state, QuietInputs(most_silence_s=JobSettings().timeouts.asleep_s)
    num_alone = 0
    for number in range(300):
        now_s += draw.choice([0.01, 0.3, 1.1])
        said = [
            replace(beat(draw.choice(NAMES)), committed=number // 20, held_up_by=draw.choice(STUCK))
            for _ in range(draw.randrange(1, 6))
        ]
        found = core.answers(said, now_s)
        states = {id(answered.states) for answered in found}
        num_alone += len(states) == len(found)
        for answered in found:
            assert answered.event is not None
            assert answered.states is not None
            quiet.add(answered.event, *answered.states, answered.now_s)  # type: ignore[arg-type]
        if draw.random() < 0.1:
            entries = quiet.taken()
            for at_s, event in map(quiet_of, entries):
                other, ready = controller.step(other, event, now_s=at_s, settings=JobSettings())
                assert not ready.commands
            assert replace(other, history=replace(other.history, story=())) == replace(
                core.state, history=replace(core.state.history, story=())
            )
    assert 50 < num_alone < 250


def test_what_changes_the_job_is_reason_to_look_at_once(looks: list[Job]) -> None:
    core = a_running_core()
    core.due_s(1.0)
    known = len(looks)

    (answered,) = core.answers([Scaled(target=2)], 1.01)

    assert not answered.is_mere_sign
    assert len(looks) > known
    assert looks[-1] is core.state


def test_silence_is_noticed_to_the_tenth_of_a_second_though_others_speak() -> None:
    core = a_running_core()
    now_s, ended_s = 1.0, None
    while ended_s is None and now_s < 20.0:
        now_s += 0.01
        found = core.answers([beat(NAMES[0]), beat(NAMES[1])], now_s)
        commands = [command for one in found for command in one.ready.commands]
        if any(isinstance(command, EndReplica) for command in commands):
            ended_s = now_s

    assert ended_s is not None
    assert 11.0 <= ended_s <= 11.0 + TICK_S + 0.02


def test_what_cannot_be_is_refused_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    core = a_running_core()
    before = core.state

    def fail(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(controller, "step", fail)
    (answered,) = core.answers([beat(NAMES[0])], 1.02)

    assert answered.event is None
    assert core.state is before


def test_who_says_something_before_it_is_killed_does_not_die_with_the_others() -> None:
    core = a_running_core()
    one, two, three = (Exited(replica=name, kind=ExitKind.SIGNAL) for name in NAMES)
    finished = Finished(replica=NAMES[1], committed=1, lineage=Lineage(1))

    assert core.died_together([one]) == (NAMES[0],)
    assert core.died_together([one, beat(NAMES[1]), finished, two, three]) == (NAMES[0], NAMES[2])
    assert core.died_together([one, two, three]) == (NAMES[1],), "of the others it is told"
    refused = replace(two, kind=ExitKind.USAGE)
    assert core.died_together([refused]) == ()
