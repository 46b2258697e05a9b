"""The core is asked when something is due, and not at each of a thousand signs of life."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.coordinator.register_file import RegisterFile
from tests.scene import in_a_loop
from tools.replay_log import quiet_of

from pliant.coordinator.loop import MOST_AT_ONCE, CoreHolder, GroupCommit, Inbox, Incoming, Turn
from pliant.coordinator.nodes import JobNodes
from pliant.coordinator.register import HeldRegister
from pliant.core.commands import Command, EndReplica, Reform, Switch
from pliant.core.events import (
    Event,
    Exited,
    ExitKind,
    Finished,
    NodeJoined,
    Prepared,
    Progressed,
    Running,
    Scaled,
    Spare,
    Switched,
    Ticked,
)
from pliant.core.job import controller
from pliant.core.job.state import Job, JobSettings
from pliant.core.policy.decide import Policy
from pliant.core.values import Generation, Lineage, NodeId, ReplicaId
from pliant.machine.clock import TICK_S
from pliant.observe.quiet_inputs import QuietInputs

NAMES = [ReplicaId(f"r{number}") for number in range(1, 4)]
FIRST = Generation(1)
STUCK = [None, None, None, None, 0]


def beat(name: ReplicaId) -> Progressed:
    return Progressed(replica=name, generation=FIRST, committed=1, calls=0)


def a_running_core() -> CoreHolder:
    refused: list[tuple[str, str]] = []
    core = CoreHolder(
        JobSettings(policy=Policy(max_replicas=3)), lambda *what: refused.append(what)
    )
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
            assert replace(other, history=replace(other.history, events=())) == replace(
                core.state, history=replace(core.state.history, events=())
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


@in_a_loop
async def test_what_is_there_is_taken_together_and_in_order() -> None:
    inbox = Inbox()
    events = [Scaled(target=target) for target in range(MOST_AT_ONCE + 1)]
    for event in events:
        inbox.put(event)

    first, second = await inbox.take_events(1.0), await inbox.take_events(1.0)

    assert [one.event for one in (*first, *second)] == events
    assert len(second) == 1
    assert not await inbox.take_events(0.0)


@in_a_loop
async def test_who_asks_as_it_closes_is_told_that_there_is_no_answer() -> None:
    inbox = Inbox()
    asked = asyncio.create_task(inbox.ask(Ticked()))
    await asyncio.sleep(0)

    inbox.close()

    assert await asked is None
    assert await inbox.ask(Ticked()) is None


SIX = [ReplicaId(f"r{number}") for number in range(1, 7)]
NODE = NodeId("n")
START: list[Event] = [Scaled(target=4), NodeJoined(node=NODE, devices=6)]


def spare(name: ReplicaId) -> Spare:
    return Spare(replica=name, calls=0, num_slots=12, layout="l", endpoint="h:1")


def trained(names: Sequence[ReplicaId]) -> list[Event]:
    first = Generation(1)
    return [
        *map(spare, names),
        *(Prepared(replica=name, generation=first) for name in names),
        *(Switched(replica=name, generation=first, step=1) for name in names),
    ]


def killed(name: ReplicaId) -> Exited:
    return Exited(replica=name, kind=ExitKind.SIGNAL)


def heard(
    story: Sequence[Event], *batches: Sequence[Event], path: Path
) -> tuple[CoreHolder, list[Command]]:
    """Let a core hear a story, and all live until what is under way is over; then some turns.

    Of what comes in the turns the first batch is there, and the others as it is recorded.
    """
    core = CoreHolder(JobSettings(policy=Policy(max_replicas=6)), lambda *_: None)
    inbox, clock, commands = Inbox(), [1.0], list[Command]()

    async def main() -> None:
        register = HeldRegister(RegisterFile(path / "register.json"))
        ready = core.begin(now_s=0.0, register=await register.read(), is_asked=False)
        assert ready.register is not None
        await register.write(ready.register)
        joint = GroupCommit(
            core=core,
            register=register,
            nodes=JobNodes(10.0),
            inbox=inbox,
            now_s=lambda: clock[0],
        )
        for event in story:
            await joint.to([Incoming(event)], Turn())
        while clock[0] < min(core.state.membership.wait.deadline_s, 100.0):
            clock[0] += 1.0
            for name in core.state.replicas:
                beat = Progressed(replica=name, generation=Generation(1), committed=1, calls=0)
                core.answers([beat], clock[0], is_all=False)
        first, *more = batches
        left = [Incoming(event) for event in first]
        for event in (event for batch in more for event in batch):
            inbox.put(event)
        while left:
            said = Turn()
            await joint.to(left, said)
            commands.extend(one for answer in said.answers for one in answer.ready.commands)
            inbox.put_back(said.later)
            left = inbox.taken()

    asyncio.run(main())
    return core, commands


def test_who_has_answered_by_then_is_not_late(tmp_path: Path) -> None:
    """The last answers come in with two deaths, at the moment at which the attempt is over."""
    story = [*START, *trained(SIX[:4]), Scaled(target=6), spare(SIX[4])]
    second = [Prepared(replica=name, generation=Generation(2)) for name in SIX[:5]]
    deaths = [killed(SIX[5]), killed(ReplicaId("r7"))]

    core, commands = heard(story, [*second, *deaths], path=tmp_path)

    assert [one.order.generation for one in commands if isinstance(one, Switch)] == [2]
    assert SIX[4] in core.state.replicas


def test_nothing_overtakes_what_waits_for_the_reform(tmp_path: Path) -> None:
    """An agent lists what it runs, then says that one of these has ended."""
    lists = Running(node=NODE, replicas=tuple(SIX[:4]))
    first: list[Event] = [lists, killed(SIX[0]), killed(SIX[1])]
    left = Exited(replica=SIX[2], kind=ExitKind.LEFT)

    core, commands = heard([*START, *trained(SIX[:4])], first, [left], path=tmp_path)

    assert SIX[2] not in core.state.replicas
    assert [one.order.replicas for one in commands if isinstance(one, Reform)] == [
        tuple(SIX[2:4]),
        (SIX[3],),
    ]


def test_one_that_dies_after_others_is_left_out_with_them(tmp_path: Path) -> None:
    first = [killed(SIX[0]), killed(SIX[1])]

    _, commands = heard([*START, *trained(SIX[:4])], first, [killed(SIX[2])], path=tmp_path)

    orders = [one.order.replicas for one in commands if isinstance(one, Reform)]
    assert orders == [tuple(SIX[2:4]), (SIX[3],)]
