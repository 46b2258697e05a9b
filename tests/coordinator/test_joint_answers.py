"""What is told of many deaths before all else takes nothing from what was said by then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.coordinator.register_file import RegisterFile

from pliant.coordinator.held_core import HeldCore
from pliant.coordinator.inbox import Inbox, Incoming
from pliant.coordinator.joint_answers import HeardTogether, JointAnswers
from pliant.coordinator.nodes import JobNodes
from pliant.coordinator.register import HeldRegister
from pliant.core.commands import Command, Reform, Switch
from pliant.core.events import (
    Event,
    Exited,
    ExitKind,
    NodeJoined,
    Prepared,
    Progressed,
    Running,
    Scaled,
    Spare,
    Switched,
)
from pliant.core.job.state import JobSettings
from pliant.core.policy.decide import Policy
from pliant.core.values import Generation, NodeId, ReplicaId

NAMES = [ReplicaId(f"r{number}") for number in range(1, 7)]
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
) -> tuple[HeldCore, list[Command]]:
    """Let a core hear a story, and all live until what is under way is over; then some turns.

    Of what comes in the turns the first batch is there, and the others as it is recorded.
    """
    core = HeldCore(JobSettings(policy=Policy(max_replicas=6)), lambda *_: None)
    inbox, clock, commands = Inbox(), [1.0], list[Command]()

    async def main() -> None:
        register = HeldRegister(RegisterFile(path / "register.json"))
        ready = core.begin(now_s=0.0, register=await register.read(), is_asked=False)
        assert ready.register is not None
        await register.write(ready.register)
        joint = JointAnswers(
            core=core,
            register=register,
            nodes=JobNodes(10.0),
            inbox=inbox,
            now_s=lambda: clock[0],
        )
        for event in story:
            await joint.to([Incoming(event)], HeardTogether())
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
            said = HeardTogether()
            await joint.to(left, said)
            commands.extend(one for answer in said.answers for one in answer.ready.commands)
            inbox.put_back(said.later)
            left = inbox.taken()

    asyncio.run(main())
    return core, commands


def test_who_has_answered_by_then_is_not_late(tmp_path: Path) -> None:
    """The last answers come in with two deaths, at the moment at which the attempt is over."""
    story = [*START, *trained(NAMES[:4]), Scaled(target=6), spare(NAMES[4])]
    second = [Prepared(replica=name, generation=Generation(2)) for name in NAMES[:5]]
    deaths = [killed(NAMES[5]), killed(ReplicaId("r7"))]

    core, commands = heard(story, [*second, *deaths], path=tmp_path)

    assert [one.order.generation for one in commands if isinstance(one, Switch)] == [2]
    assert NAMES[4] in core.state.replicas


def test_nothing_overtakes_what_waits_for_the_reform(tmp_path: Path) -> None:
    """An agent lists what it runs, then says that one of these has ended."""
    lists = Running(node=NODE, replicas=tuple(NAMES[:4]))
    first: list[Event] = [lists, killed(NAMES[0]), killed(NAMES[1])]
    left = Exited(replica=NAMES[2], kind=ExitKind.LEFT)

    core, commands = heard([*START, *trained(NAMES[:4])], first, [left], path=tmp_path)

    assert NAMES[2] not in core.state.replicas
    assert [one.order.replicas for one in commands if isinstance(one, Reform)] == [
        tuple(NAMES[2:4]),
        (NAMES[3],),
    ]


def test_one_that_dies_after_others_is_left_out_with_them(tmp_path: Path) -> None:
    first = [killed(NAMES[0]), killed(NAMES[1])]

    _, commands = heard([*START, *trained(NAMES[:4])], first, [killed(NAMES[2])], path=tmp_path)

    orders = [one.order.replicas for one in commands if isinstance(one, Reform)]
    assert orders == [tuple(NAMES[2:4]), (NAMES[3],)]
