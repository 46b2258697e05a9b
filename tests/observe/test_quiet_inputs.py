"""A core that hears only the signs of life that are written comes to the same state."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tools.replay_log import quiet_of

from pliant.core import events
from pliant.core.job import controller
from pliant.core.job.state import Job, JobSettings
from pliant.core.policy.decide import Policy
from pliant.core.values import Generation, NodeId, ReplicaId
from pliant.observe.quiet_inputs import Quiet, QuietInputs

SETTINGS = JobSettings(policy=Policy(max_replicas=8))
NAMES = [ReplicaId(f"r{number}") for number in range(1, 9)]


def trained(now_s: float, *, has_switched: bool = True) -> Job:
    """Return a job of eight replicas that train, or are to begin."""
    job, _ = controller.begin(now_s=now_s, settings=SETTINGS)
    told: list[events.Event] = [events.NodeJoined(node=NodeId("n1"), devices=8)]
    for name in NAMES:
        spare = events.Spare(replica=name, calls=0, num_slots=8, layout="l", endpoint="h:1")
        told.append(spare)
    told += [events.Prepared(replica=name, generation=Generation(1)) for name in NAMES]
    if has_switched:
        told += [events.Switched(replica=name, generation=Generation(1), step=0) for name in NAMES]
    for event in told:
        job, _ = controller.step(job, event, now_s=now_s, settings=SETTINGS)
    return job


@pytest.mark.parametrize("seed", range(12))
def test_signs_that_are_left_out_change_nothing(seed: int) -> None:
    draw = random.Random(seed)
    now_s, committed = 100.0, 0
    job = other = trained(now_s)
    quiet = QuietInputs(most_silence_s=SETTINGS.timeouts.asleep_s)
    heard = kept = 0
    for _ in range(600):
        now_s += draw.choice([0.001, 0.05, 0.4, 1.2, 2.4, 2.6 if draw.random() < 0.1 else 0.1])
        what = draw.random()
        event: events.Ticked | events.Progressed | events.Running = events.Ticked()
        if what < 0.8:
            committed += draw.random() < 0.2
            event = events.Progressed(
                replica=draw.choice(NAMES),
                generation=Generation(1),
                committed=committed - draw.randrange(2) if committed else 0,
                calls=0,
                waiting=Generation(draw.randrange(2)),
                held_up_by=draw.choice([None, None, -1, 0, 3]),
                is_spoken_for=draw.random() < 0.02,
                slow=20 * (draw.random() < 0.02),
            )
        elif what < 0.95:
            event = events.Running(node=NodeId("n1"), replicas=tuple(NAMES))
        elif now_s < controller.next_deadline_s(job):
            continue
        after, ready = controller.step(job, event, now_s=now_s, settings=SETTINGS)
        if ready.commands or ready.decision or ready.notes:
            break  # somebody was silent for too long: such events are written on their own
        quiet.add(event, job, after, now_s)
        job, heard = after, heard + 1
        if draw.random() < 0.02:
            for entry in quiet.taken():
                at_s, told = quiet_of(entry)
                kept += 1
                other, ready = controller.step(other, told, now_s=at_s, settings=SETTINGS)
                assert not ready.commands
            assert replace(other, history=replace(other.history, events=())) == replace(
                job, history=replace(job.history, events=())
            )
    for entry in quiet.taken():
        at_s, told = quiet_of(entry)
        other, _ = controller.step(other, told, now_s=at_s, settings=SETTINGS)
    assert other == job


def told_both_ways(job: Job, told: list[tuple[float, Quiet]]) -> tuple[Job, Job, int]:
    """Return what a core knows that heard all, one that heard what is written, and how much."""
    quiet, other = QuietInputs(most_silence_s=SETTINGS.timeouts.asleep_s), job
    for now_s, event in told:
        after, ready = controller.step(job, event, now_s=now_s, settings=SETTINGS)
        assert not ready.commands
        quiet.add(event, job, after, now_s)
        job = after
    entries = quiet.taken()
    for now_s, event in map(quiet_of, entries):
        other, ready = controller.step(other, event, now_s=now_s, settings=SETTINGS)
        assert not ready.commands
    return job, other, len(entries)


def life(name: str, *, waiting: int = 0) -> events.Progressed:
    return events.Progressed(
        replica=ReplicaId(name),
        generation=Generation(1),
        committed=0,
        calls=0,
        waiting=Generation(waiting),
    )


def test_a_tick_finds_the_signs_of_life_that_came_before_it() -> None:
    told: list[tuple[float, Quiet]] = [(103.05, life("r1"))]
    for second in range(101, 114):
        told += [(second + 0.1 * number, life(f"r{number}")) for number in range(2, 9)]
    told += [(111.95, events.Ticked()), (112.95, life("r1"))]

    all_heard, written, number = told_both_ways(
        trained(100.0), sorted(told, key=lambda one: one[0])
    )

    assert written == all_heard
    assert number < len(told) - 10


def test_who_has_come_to_the_boundary_is_not_forgotten() -> None:
    told: list[tuple[float, Quiet]] = [
        (100.05, life("r2")),
        (100.1, life("r2")),
        (100.2, life("r1", waiting=1)),
        (100.4, life("r1")),
        (100.6, life("r1")),
    ]

    all_heard, written, number = told_both_ways(trained(100.0, has_switched=False), told)

    assert all_heard.membership.wait.arrived == {"r1"}
    assert written == all_heard
    assert number == 4


def test_hours_of_life_take_few_words() -> None:
    now_s, job = 100.0, trained(100.0)
    quiet = QuietInputs(most_silence_s=SETTINGS.timeouts.asleep_s)
    for _ in range(3600):  # half an hour
        now_s += 0.5
        for name in NAMES:
            event = events.Progressed(replica=name, generation=Generation(1), committed=0, calls=0)
            after, _ = controller.step(job, event, now_s=now_s, settings=SETTINGS)
            quiet.add(event, job, after, now_s)
            job = after

    assert len(quiet.taken()) < 2000, "of 28,800"
    assert quiet.taken() == []


@pytest.mark.parametrize(
    "entry",
    [None, [], ["x"], [-1.0], [1.0, 2], [1.0, "r1", 1], [1.0, "r1", 1, None, 0], [1.0, "n", [1]]],
)
def test_what_is_no_sign_of_life_is_refused(entry: object) -> None:
    with pytest.raises(ValueError, match=r"is no|counts with"):
        quiet_of(entry)
