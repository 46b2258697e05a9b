"""The driver: the register before the commands, every message once, silence into events."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import os
import resource
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.register_file import RegisterFile
from tools.replay_log import entries
from tools.replay_telling import Account
from tools.replay_turns import replayed

from pliant.coordinator import driver as driver_module
from pliant.coordinator import journal
from pliant.coordinator import nodes as nodes_module
from pliant.coordinator.driver import JobDriver
from pliant.coordinator.journal import NoteLog
from pliant.coordinator.loop import Inbox
from pliant.coordinator.register_places import LockedFile
from pliant.core.commands import (
    Command,
    EndJob,
    Prepare,
    Publish,
    Reform,
    Release,
    RollCall,
    StartReplica,
    Switch,
)
from pliant.core.errors import ConflictError, PermanentError, TransitionError
from pliant.core.events import (
    Event,
    Exited,
    ExitKind,
    Finished,
    NodeJoined,
    Prepared,
    PublishAsked,
    Running,
    Scaled,
    Spare,
    Switched,
)
from pliant.core.job import controller, node_pauses
from pliant.core.job.state import Job, JobSettings, Ready
from pliant.core.policy.decide import Policy
from pliant.core.table import Table
from pliant.core.values import (
    AgentLife,
    Generation,
    Incarnation,
    Lineage,
    NodeId,
    Outcome,
    Register,
    ReplicaId,
)
from pliant.machine.clock import PAUSE_S, Clock
from pliant.observe.log import EventLog, Journal, Record
from pliant.observe.reading import read
from pliant.wire.codec import COMMANDS, Envelope, decode
from pliant.wire.messages import (
    AgentFailed,
    Committed,
    LedgerGrown,
    Logged,
    OutputGrown,
    Planned,
    Started,
)

NODE = NodeId("here")
BOOT = 7
DEADLINE_S = 5.0


class Agent:
    """A channel that keeps what it was sent, and what the register said at that moment."""

    def __init__(self, register: RegisterFile) -> None:
        self._register = register
        self.sent: list[tuple[Command, Incarnation, int]] = []
        self.heard = asyncio.Condition()

    def send(self, command: Command, incarnation: Incarnation) -> None:
        recorded = self._register.read()
        self.sent.append((command, incarnation, recorded.number if recorded else -1))

    def send_encoded(self, message: bytes) -> None:
        received = decode(message, COMMANDS)
        assert isinstance(received, Envelope)
        command: Any = received.message
        self.send(command, received.incarnation)

    def hang_up(self) -> None:
        pass

    def commands(self, kind: type[Command]) -> list[Any]:
        return [command for command, _, _ in self.sent if isinstance(command, kind)]


SETTINGS = JobSettings(policy=Policy(max_replicas=2))


class World:
    """One driver on real files, with one agent."""

    def __init__(self, directory: Path, workers_per_replica: int = 1) -> None:
        self.records: list[Record] = []
        self.log = EventLog(directory / "events.jsonl", job="j")
        self.log.subscribe(self.records.append)
        self.metrics = directory / "metrics.jsonl"
        self.register = RegisterFile(directory / "register.json")
        self.now_s = 100.0
        self.driver = JobDriver(
            settings=SETTINGS,
            register=self.register,
            log=self.log,
            metrics_path=self.metrics,
            clock=Clock(),
            boot=BOOT,
            workers_per_replica=workers_per_replica,
        )
        self.agent = Agent(self.register)
        self.joined = NodeJoined(node=NODE, devices=2, life=AgentLife(boot=BOOT))

    async def until(self, what: Callable[[], Any]) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            while not (answer := what()):
                await asyncio.sleep(0.01)
            return answer

    def spare(self, name: str) -> None:
        self.driver.receive(
            Spare(
                replica=ReplicaId(name), calls=0, num_slots=4, layout="l", endpoint=f"h:{name[1:]}"
            )
        )

    def kinds(self) -> list[str]:
        return [record["kind"] for record in self.records]


def play(
    directory: Path, scene: Callable[[World], Awaitable[None]], *, workers_per_replica: int = 1
) -> World:
    """Run a scene beside a running driver."""

    async def main() -> World:
        world = World(directory, workers_per_replica)
        driving = asyncio.create_task(world.driver.run())
        try:
            await scene(world)
        finally:
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            world.log.close()
        return world

    return asyncio.run(main())


async def _prepared(world: World) -> None:
    world.driver.attach(world.joined, world.agent)
    await world.until(lambda: len(world.agent.commands(StartReplica)) == 2)
    world.spare("r1")
    world.spare("r2")
    await world.until(lambda: world.agent.commands(Prepare))


def test_every_number_is_recorded_before_it_is_sent(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await _prepared(world)
        for name in ("r1", "r2"):
            prepared = Prepared(replica=ReplicaId(name), generation=Generation(1))
            world.driver.receive(prepared)
        await world.until(lambda: world.agent.commands(Switch))

    world = play(tmp_path, scene)

    for command, _, recorded in world.agent.sent:
        if isinstance(command, Prepare | Switch):
            assert recorded >= command.order.generation
    register = world.register.read()
    assert register is not None
    assert register.newest is not None
    assert register.newest.generation == 1


def test_what_comes_at_once_is_recorded_with_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []
    write = RegisterFile.write

    def counted(register: RegisterFile, *args: Any, **more: Any) -> None:
        writes.append(args)
        write(register, *args, **more)

    monkeypatch.setattr(RegisterFile, "write", counted)

    async def scene(world: World) -> None:
        for number in range(10):
            joined = replace(world.joined, node=NodeId(f"n{number}"), devices=1)
            world.driver.attach(joined, world.agent)
        await world.until(lambda: len(world.agent.commands(StartReplica)) == 2)

    world = play(tmp_path, scene)

    assert len(writes) == 2  # its incarnation, and the numbers of two replicas
    assert all(recorded >= 0 for _, _, recorded in world.agent.sent)
    kinds = world.kinds()
    assert kinds.index("start_replica") < len(kinds) - 1 - kinds[::-1].index("node_joined")


def test_orders_are_sent_before_a_line_is_logged_of_them(tmp_path: Path) -> None:
    logged: list[tuple[str, int]] = []

    async def scene(world: World) -> None:
        world.log.subscribe(lambda record: logged.append((record["kind"], len(world.agent.sent))))
        await _prepared(world)
        await world.until(lambda: "prepare" in world.kinds())

    world = play(tmp_path, scene)

    sent = [type(command) for command, _, _ in world.agent.sent]
    of_prepare = [num_sent for kind, num_sent in logged if kind in ("spare", "prepare")]
    assert of_prepare[-1] == sent.index(Prepare) + 1
    assert of_prepare[-2] == sent.index(Prepare) + 1, "the event that it follows from"
    kinds = [kind for kind, _ in logged]
    assert kinds.index("prepare") > len(kinds) - 1 - kinds[::-1].index("spare"), "logged in order"


def test_an_order_that_its_coordinator_could_not_log_is_logged_by_the_next(tmp_path: Path) -> None:
    """It was killed between sending it and writing the lines of the event that it follows from."""

    async def first(world: World) -> None:
        await _prepared(world)
        for name in ("r1", "r2"):
            prepared = Prepared(replica=ReplicaId(name), generation=Generation(1))
            world.driver.receive(prepared)
        await world.until(lambda: "switch" in world.kinds())

    async def follow(world: World) -> None:
        await world.until(lambda: "core_began" in world.kinds())

    play(tmp_path, first)
    log = tmp_path / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    last = len(kinds) - 1 - kinds[::-1].index("prepared")
    for torn in (b"", lines[last][:-9]):
        log.write_bytes(b"".join(lines[:last]) + torn)
        world = play(tmp_path, follow)

        (told,) = [record for record in world.records if record["kind"] == "switch"]
        assert told["by"] == "register"
        assert world.driver.board.timeline.members == {1: ("r1", "r2")}
        account = Account()
        for step in replayed(entries(log)):
            account.add(step)
        assert account.inputs
        assert account.difference is None

    assert "switch" not in play(tmp_path, follow).kinds(), "it stands in the log now"


def test_a_new_coordinator_opens_a_new_incarnation_before_it_says_anything(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.driver.attach(world.joined, world.agent)
        await world.until(lambda: world.agent.sent)

    first = play(tmp_path, scene)
    second = play(tmp_path, scene)

    assert {incarnation for _, incarnation, _ in first.agent.sent} == {1}
    assert {incarnation for _, incarnation, _ in second.agent.sent} == {2}


def test_a_coordinator_that_was_overtaken_ends_without_sending(tmp_path: Path) -> None:
    async def main() -> tuple[World, BaseException | None]:
        world = World(tmp_path)
        driving = asyncio.create_task(world.driver.run())
        world.driver.attach(world.joined, world.agent)
        await world.until(lambda: len(world.agent.commands(StartReplica)) == 2)
        recorded = world.register.read()
        assert recorded is not None
        (tmp_path / "register.json").write_bytes(
            (tmp_path / "register.json").read_bytes().replace(b'tion":1', b'tion":2')
        )
        world.spare("r1")
        world.spare("r2")
        await asyncio.wait({driving}, timeout=DEADLINE_S)
        world.log.close()
        return world, driving.exception()

    world, error = asyncio.run(main())

    assert isinstance(error, ConflictError)
    assert world.agent.commands(Prepare) == []


def test_nothing_is_published_once_another_has_taken_over(tmp_path: Path) -> None:
    asked = PublishAsked(
        replica=ReplicaId("r1"), lineage=Lineage(1), committed=8, checkpoint="step-8"
    )

    async def main() -> tuple[World, BaseException | None]:
        world = World(tmp_path)
        driving = asyncio.create_task(world.driver.run())
        await _prepared(world)
        world.driver.receive(asked)
        await world.until(lambda: world.agent.commands(Publish))
        recorded = world.register.read()
        assert recorded is not None
        world.register.write(replace(recorded, incarnation=Incarnation(2)), expected=recorded)
        world.driver.receive(asked)
        await asyncio.wait({driving}, timeout=DEADLINE_S)
        world.log.close()
        return world, driving.exception()

    world, error = asyncio.run(main())

    assert isinstance(error, ConflictError)
    assert world.agent.commands(Publish) == [Publish(to=(ReplicaId("r1"),), checkpoint="step-8")]


@pytest.mark.parametrize("is_failure", [True, False])
def test_nobody_is_told_of_an_end_once_another_has_taken_over(
    tmp_path: Path, is_failure: bool
) -> None:
    """Its agents may still be listening, while the job goes on under the other."""
    r1, r2, r3 = (ReplicaId(f"r{number}") for number in (1, 2, 3))

    def is_decided(recorded: Register | None) -> bool:
        return recorded is not None and recorded.outcome is not None and recorded.outcome.is_final

    async def ending(world: World) -> None:
        """Let all be over but the exit of one that is in no record, so that nothing is written."""
        hear, first, second = world.driver.receive, Generation(1), Generation(2)
        for name in (r1, r2):
            hear(Prepared(replica=name, generation=first))
        await world.until(lambda: world.agent.commands(Switch))
        for name in (r1, r2):
            hear(Switched(replica=name, generation=first, step=0))
        hear(Exited(replica=r2, kind=ExitKind.SIGNAL, detail="SIGKILL"))
        await world.until(lambda: len(world.agent.commands(StartReplica)) == 3)
        hear(Switched(replica=r1, generation=second, step=4))
        hear(Finished(replica=r1, committed=8, lineage=Lineage(1)))
        await world.until(lambda: world.agent.commands(Release))
        hear(Exited(replica=r1, kind=ExitKind.FINISHED))
        await world.until(lambda: is_decided(world.register.read()))

    async def main() -> tuple[World, BaseException | None]:
        world = World(tmp_path)
        driving = asyncio.create_task(world.driver.run())
        await _prepared(world)
        if not is_failure:
            await ending(world)
        recorded = world.register.read()
        assert recorded is not None
        world.register.write(replace(recorded, incarnation=Incarnation(2)), expected=recorded)
        if is_failure:
            world.driver.receive(AgentFailed(node=NODE, reason="its fork server died"))
        else:
            world.driver.receive(Exited(replica=r3, kind=ExitKind.SIGNAL, detail="SIGKILL"))
        await asyncio.wait({driving}, timeout=DEADLINE_S)
        world.log.close()
        return world, driving.exception()

    world, error = asyncio.run(main())

    assert isinstance(error, ConflictError)
    assert world.agent.commands(EndJob) == []


@pytest.mark.parametrize("is_written", [False, True])
def test_a_write_that_is_not_confirmed_is_looked_at_and_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """The disk fails before the register is replaced, or after: only the first is a loss."""
    monkeypatch.setattr(LockedFile, "write_again_s", (0.01, 0.01, 0.01))
    real, calls = RegisterFile.write, []

    def write(file: RegisterFile, register: Register, *, expected: Register | None) -> None:
        calls.append(register)
        if len(calls) == 2:
            if is_written:
                real(file, register, expected=expected)
            raise OSError(5, "Input/output error")
        real(file, register, expected=expected)

    monkeypatch.setattr(RegisterFile, "write", write)

    world = play(tmp_path, _prepared)

    assert calls[1] == calls[2]
    assert world.register.read() == calls[-1]


def test_a_register_that_cannot_be_written_ends_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LockedFile, "write_again_s", (0.01, 0.01))

    def write(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RegisterFile, "write", write)

    async def main() -> None:
        world = World(tmp_path)
        try:
            await asyncio.wait_for(world.driver.run(), DEADLINE_S)
        finally:
            world.log.close()

    with pytest.raises(PermanentError, match=r"cannot be written: .*No space left"):
        asyncio.run(main())


def test_a_new_coordinator_asks_the_workers_that_an_agent_runs(tmp_path: Path) -> None:
    async def until_switched(world: World) -> None:
        await _prepared(world)
        for name in ("r1", "r2"):
            prepared = Prepared(replica=ReplicaId(name), generation=Generation(1))
            world.driver.receive(prepared)
        await world.until(lambda: world.agent.commands(Switch))

    async def taken_over(world: World) -> None:
        world.joined = replace(world.joined, replicas=(ReplicaId("r1"), ReplicaId("r2")))
        world.driver.attach(world.joined, world.agent)
        await world.until(lambda: world.agent.commands(RollCall))
        world.driver.attach(world.joined, world.agent)  # what was sent may be lost
        await world.until(lambda: len(world.agent.commands(RollCall)) == 2)

    play(tmp_path, until_switched)
    world = play(tmp_path, taken_over)

    assert world.agent.commands(StartReplica) == []
    assert {incarnation for _, incarnation, _ in world.agent.sent} == {2}


@pytest.mark.parametrize(("devices", "started"), [(8, 2), (7, 1), (4, 1)])
def test_a_node_has_room_for_a_replica_where_all_of_its_workers_have_a_device(
    tmp_path: Path, devices: int, started: int
) -> None:
    async def scene(world: World) -> None:
        world.driver.attach(replace(world.joined, devices=devices), world.agent)
        await world.until(lambda: len(world.agent.commands(StartReplica)) == started)
        await world.driver.ask(Scaled(target=2))
        assert len(world.agent.commands(StartReplica)) == started

    play(tmp_path, scene, workers_per_replica=4)


def test_a_connection_that_comes_back_is_the_same_node(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await _prepared(world)
        world.driver.detach(NODE, world.agent)
        again = Agent(world.register)
        world.driver.attach(world.joined, again)
        await world.driver.ask(Scaled(target=1))
        exited = Exited(replica=ReplicaId("r2"), kind=ExitKind.SCRIPT, detail="x")
        world.driver.receive(exited)
        await world.until(lambda: again.sent)

    world = play(tmp_path, scene)

    assert world.kinds().count("node_joined") == 1
    assert "node_lost" not in world.kinds()


def test_an_agent_that_was_started_anew_runs_nothing_of_the_one_before(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await _prepared(world)
        world.driver.detach(NODE, world.agent)
        again = Agent(world.register)
        world.driver.attach(replace(world.joined, life=AgentLife(at=1)), again)
        await world.until(lambda: len(again.commands(StartReplica)) == 2)

        assert [start.replica for start in again.commands(StartReplica)] == ["r3", "r4"]
        assert await world.driver.nodes.taken_by(world.joined)
        assert (
            await world.driver.nodes.taken_by(replace(world.joined, life=AgentLife(at=1))) is None
        )

    world = play(tmp_path, scene)

    assert "node_lost" in world.kinds()


def test_a_clock_that_jumps_back_makes_no_agent_older_than_one_before(tmp_path: Path) -> None:
    first = AgentLife(boot=7, uptime=100, at=10**15)
    second = AgentLife(boot=7, uptime=200, at=10**14)

    async def scene(world: World) -> None:
        world.driver.attach(replace(world.joined, life=first), world.agent)
        world.driver.detach(NODE, world.agent)
        assert await world.driver.nodes.taken_by(replace(world.joined, life=second)) is None
        world.driver.attach(replace(world.joined, life=second), Agent(world.register))
        assert await world.driver.nodes.taken_by(replace(world.joined, life=first))
        other = AgentLife(boot=8, uptime=300, at=10**13)  # another machine: only clocks can tell
        assert await world.driver.nodes.taken_by(replace(world.joined, life=other))
        await world.until(lambda: "node_lost" in world.kinds())

    play(tmp_path, scene)


def test_an_order_that_stays_unanswered_is_sent_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        await _prepared(world)
        (told,) = world.agent.commands(Prepare)
        monkeypatch.setattr(nodes_module, "AGAIN_S", 0.0)
        world.driver.receive(Running(node=NODE, replicas=told.to))
        await world.until(lambda: len(world.agent.commands(Prepare)) == 2)

    play(tmp_path, scene)


def test_what_was_lost_is_sent_again_to_the_node_that_says_what_it_runs(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await _prepared(world)
        far = Agent(world.register)
        world.driver.attach(NodeJoined(node=NodeId("far"), devices=1), far)
        (told,) = world.agent.commands(Prepare)
        world.driver.receive(Running(node=NODE, replicas=told.to))
        world.driver.attach(replace(world.joined, replicas=told.to), world.agent)
        world.driver.receive(Running(node=NODE, replicas=told.to))
        await world.until(lambda: len(world.agent.commands(Prepare)) == 2)
        await asyncio.sleep(0.05)

        assert world.agent.commands(Prepare) == [told, told]
        assert far.sent == []

    world = play(tmp_path, scene)

    assert world.kinds().count("prepare") == 1


def test_of_many_that_die_at_once_the_others_hear_in_one_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, policy=Policy(max_replicas=4))
    monkeypatch.setattr("tests.coordinator.test_driver.SETTINGS", settings)
    names = [ReplicaId(f"r{number}") for number in range(1, 5)]

    async def scene(world: World) -> None:
        world.driver.attach(replace(world.joined, devices=4), world.agent)
        await world.until(lambda: len(world.agent.commands(StartReplica)) == 4)
        for name in names:
            world.spare(name)
        (prepare,) = await world.until(lambda: world.agent.commands(Prepare))
        first = prepare.order.generation
        for name in names:
            world.driver.receive(Prepared(replica=name, generation=first))
        await world.until(lambda: world.agent.commands(Switch))
        for name in names:
            world.driver.receive(Switched(replica=name, generation=first, step=1))
        await world.until(lambda: world.kinds().count("switched") == 4)

        for name in names[:2]:
            world.driver.receive(Exited(replica=name, kind=ExitKind.SIGNAL, detail="SIGKILL"))

        await world.until(lambda: len(world.agent.commands(StartReplica)) == 6)
        (reform,) = world.agent.commands(Reform)
        assert reform.to == tuple(names[2:]) == reform.order.replicas
        assert reform.order.generation == first + 1
        sent = [type(command) for command, _, _ in world.agent.sent]
        assert sent[-3:] == [Reform, StartReplica, StartReplica]
        await world.until(lambda: world.kinds().count("exited") == 2)
        kinds = [kind for kind in world.kinds() if kind in ("died_together", "reform", "exited")]
        assert kinds == ["died_together", "reform", "exited", "exited"]

    play(tmp_path, scene)


@pytest.mark.parametrize("num_more", [1, 2])
def test_of_those_that_die_while_a_reform_is_recorded_nobody_hears_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_more: int
) -> None:
    settings = replace(SETTINGS, policy=Policy(max_replicas=4))
    monkeypatch.setattr("tests.coordinator.test_driver.SETTINGS", settings)
    names = [ReplicaId(f"r{number}") for number in range(1, 5)]
    write = RegisterFile.write

    async def scene(world: World) -> None:
        world.driver.attach(replace(world.joined, devices=4), world.agent)
        await world.until(lambda: len(world.agent.commands(StartReplica)) == 4)
        for name in names:
            world.spare(name)
        await world.until(lambda: world.agent.commands(Prepare))
        for name in names:
            world.driver.receive(Prepared(replica=name, generation=Generation(1)))
        await world.until(lambda: world.agent.commands(Switch))
        for name in names:
            world.driver.receive(Switched(replica=name, generation=Generation(1), step=1))
        await world.until(lambda: world.kinds().count("switched") == 4)
        loop = asyncio.get_running_loop()
        ends = [Exited(replica=name, kind=ExitKind.SIGNAL, detail="SIGKILL") for name in names]

        def write_slowly(stored: RegisterFile, register: Register, **more: Any) -> None:
            write(stored, register, **more)
            if register.number == 2:
                for end in ends[1 : 1 + num_more]:
                    loop.call_soon_threadsafe(world.driver.receive, end)

        monkeypatch.setattr(RegisterFile, "write", write_slowly)
        world.driver.receive(ends[0])
        await world.until(lambda: world.kinds().count("reform") == 2)

        (reform,) = world.agent.commands(Reform)
        assert reform.to == tuple(names[1 + num_more :]) == reform.order.replicas
        assert [n for command, _, n in world.agent.sent if isinstance(command, Reform)] == [3]

    play(tmp_path, scene)


def test_the_log_waits_while_more_comes_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def always(_: Inbox) -> bool:
        return True

    async def scene(world: World) -> None:
        await _prepared(world)
        await world.until(lambda: "prepare" in world.kinds())
        monkeypatch.setattr(journal, "MANY", 2)
        monkeypatch.setattr(Inbox, "has_more", always)

        for name in ("r1", "r2"):
            world.driver.receive(Prepared(replica=ReplicaId(name), generation=Generation(1)))
        await world.until(lambda: world.agent.commands(Switch))

        assert "prepared" not in world.kinds()
        await world.until(lambda: world.kinds()[-3:] == ["prepared", "prepared", "switch"])

    play(tmp_path, scene)


def test_a_node_that_stays_away_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, node_s=0.2)
    monkeypatch.setattr("tests.coordinator.test_driver.SETTINGS", settings)

    async def scene(world: World) -> None:
        await _prepared(world)
        world.driver.detach(NODE, world.agent)
        await world.until(lambda: "node_lost" in world.kinds())

    play(tmp_path, scene)


def test_a_person_hears_what_the_core_said(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await _prepared(world)
        ready = await world.driver.ask(Scaled(target=0))
        assert ready is not None
        assert ready.declined is not None
        assert "0" in ready.declined.reason

    world = play(tmp_path, scene)

    (refusal,) = [record for record in world.records if record["kind"] == "declined"]
    assert refusal["request"] == {"kind": "scaled", "target": 0}
    assert "scaled" not in world.kinds()  # nothing of it looks as if it had been accepted


def committed_by(name: str, step: int, generation: int = 1) -> Committed:
    return Committed(
        replica=ReplicaId(name),
        generation=Generation(generation),
        step=step,
        mono_s=10.0 + step,
        loss=float("nan"),
        grad_norm=None,
        samples=8,
        step_s=0.5,
    )


def test_a_step_is_logged_once_however_many_report_it(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        ours = replace(world.joined, replicas=(ReplicaId("r1"), ReplicaId("r2")))
        world.driver.attach(ours, world.agent)
        for name, step in (("r1", 0), ("r2", 0), ("r2", 1), ("r1", 1), ("r1", 2)):
            world.driver.receive(committed_by(name, step))

    world = play(tmp_path, scene)

    commits = [record for record in world.records if record["kind"] == "commit"]
    assert [(r["step"], r["by"], r["mono"]) for r in commits] == [
        (0, "r1", 10.0),
        (1, "r2", 11.0),
        (2, "r1", 12.0),
    ]


@pytest.mark.parametrize("boot", [BOOT + 1, 0])
def test_a_commit_on_another_machine_has_its_moment_by_the_clock_of_the_log(
    tmp_path: Path, boot: int
) -> None:
    async def scene(world: World) -> None:
        away = NodeJoined(
            node=NodeId("away"),
            devices=1,
            replicas=(ReplicaId("r1"),),
            life=AgentLife(boot=boot),
        )
        world.driver.attach(away, world.agent)
        world.driver.receive(committed_by("r1", 0))

    began_s = time.monotonic()
    world = play(tmp_path, scene)

    (commit,) = [record for record in world.records if record["kind"] == "commit"]
    assert round(began_s, 6) <= commit["mono"] <= time.monotonic()


def test_which_nodes_are_apart_is_logged_when_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = node_pauses.found_apart(Table(), [node_pauses.pair(NODE, NodeId("there"))], 1.0)
    begin = controller.begin

    def begin_apart(**given: Any) -> tuple[Job, Ready]:
        job, ready = begin(**given)
        return replace(job, nodes=replace(job.nodes, apart=known)), ready

    monkeypatch.setattr(controller, "begin", begin_apart)

    async def scene(world: World) -> None:
        await world.until(lambda: "nodes_apart" in world.kinds())

    world = play(tmp_path, scene)

    (told,) = [record for record in world.records if record["kind"] == "nodes_apart"]
    assert told["pairs"] == [[["here", "there"], 1, None]]


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_job_that_has_ended_goes_on_if_somebody_asks_for_it(
    tmp_path: Path, is_asked: bool
) -> None:
    outcome = Outcome(exit_code=0, reason="finished 9 steps", is_final=True)
    world = World(tmp_path)
    asyncio.run(world.driver.begin())
    register = world.register.read()
    assert register is not None
    world.register.write(replace(register, outcome=outcome), expected=register)

    asyncio.run(World(tmp_path).driver.begin(is_asked=is_asked))

    register = world.register.read()
    assert register is not None
    assert register.outcome == (None if is_asked else outcome)


def test_a_step_that_was_lost_and_done_again_is_logged_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        for name, step, generation in (("r1", 0, 1), ("r1", 1, 1), ("r2", 1, 2), ("r1", 1, 1)):
            world.driver.receive(committed_by(name, step, generation))

    world = play(tmp_path, scene)

    commits = [record for record in world.records if record["kind"] == "commit"]
    assert [(r["step"], r["generation"]) for r in commits] == [(0, 1), (1, 1), (1, 2)]


def test_notes_become_records(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        r1 = ReplicaId("r1")
        world.driver.receive(Started(replica=r1, node=NODE, pid=7))
        world.driver.receive(Logged(replica=r1, step=3, values={"loss": 0.5, "z": math.nan}))
        planned = Planned(
            replica=r1, num_slots=4, total_steps=9, num_samples=64, global_batch=8, micro_batch=2
        )
        world.driver.receive(planned)

    world = play(tmp_path, scene)

    assert world.kinds() == ["worker", "metrics", "plan"]
    assert json.loads(world.metrics.read_text()) == {"step": 3, "loss": 0.5, "z": "nan"}


def test_only_workers_of_the_job_leave_files(tmp_path: Path) -> None:
    """Each has its bound; an agent could name others without end."""
    workers = [("r1", None), ("r1", 1), ("r9", None), ("r999999999999999", 1 << 50)]

    async def scene(world: World) -> None:
        await _prepared(world)
        for name, worker in workers:
            told = {"replica": ReplicaId(name), "worker": worker, "offset": 0}
            world.driver.receive(OutputGrown(**told, text="x\n"))  # type: ignore[arg-type]
            world.driver.receive(LedgerGrown(**told, part=0, lines="{}\n"))  # type: ignore[arg-type]
        assert world.driver.refused["agent"] == 6

    play(tmp_path, scene)

    found = {path.name for kind in ("logs", "ledger") for path in (tmp_path / kind).iterdir()}
    assert found == {"r1.log", "r1.jsonl"}


def test_logged_values_are_kept_in_parts_of_which_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.observe.parts.PART_BYTES", 100)
    monkeypatch.setattr("pliant.observe.parts.KEPT_PARTS", 2)

    async def scene(world: World) -> None:
        for step in range(40):
            world.driver.receive(Logged(replica=ReplicaId("r1"), step=step, values={"loss": 0.5}))

    world = play(tmp_path, scene)

    files = sorted(tmp_path.glob("metrics*.jsonl"))
    assert 2 <= len(files) <= 3
    kept = [json.loads(line)["step"] for path in files for line in path.read_text().splitlines()]
    assert kept == list(range(kept[0], 40))
    assert kept[0] > 20
    del world


def test_of_logged_values_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    notes = NoteLog(Journal(tmp_path / "events.jsonl", job="j"), path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    for step, room in ((0, soft), (1, 40), (2, soft)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))  # EFBIG, as a full disk ENOSPC
        try:
            notes.write_note(Logged(replica=ReplicaId("r1"), step=step, values={"loss": 0.5}))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 2]


def test_what_a_coordinator_before_has_logged_is_not_logged_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    (tmp_path / "events.jsonl").touch()

    def log(*steps: int, loss: float = 0.5) -> None:
        notes = NoteLog(Journal(tmp_path / "events.jsonl", job="j"), path)
        for step in steps:
            values = {"loss": loss, "z": math.nan}
            notes.write_note(Logged(replica=ReplicaId("r1"), step=step, values=values))

    log(0, 7, 14)
    log(7, 14, 21)
    log(21, loss=0.25)
    path.write_bytes(path.read_bytes() + b'{"step": 28, "lo')
    log(21, loss=0.25)

    lines = path.read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines[:5]] == [0, 7, 14, 21, 21]
    assert len(lines) == 6


def test_an_agent_that_cannot_start_workers_ends_the_job(tmp_path: Path) -> None:
    async def main() -> tuple[World, EndJob]:
        world = World(tmp_path)
        driving = asyncio.create_task(world.driver.run())
        world.driver.attach(world.joined, world.agent)
        await world.until(lambda: world.agent.sent)
        world.driver.receive(AgentFailed(node=NODE, reason="no torch"))
        end = await asyncio.wait_for(driving, DEADLINE_S)
        assert await world.driver.ask(Scaled(target=1)) is None
        world.log.close()
        return world, end

    world, end = asyncio.run(main())

    assert end == EndJob(exit_code=1, reason="no torch")
    assert world.agent.commands(EndJob) == [end]


def test_the_clock_stands_still_while_the_process_is_stopped() -> None:
    times = iter([0.0, 0.1, 0.2, 60.2, 60.3])
    clock = Clock(lambda: next(times))

    told = [clock.now_s() for _ in range(4)]

    assert told[:2] == [0.1, 0.2]
    assert told[2] - told[1] < PAUSE_S
    assert told[3] - told[2] == pytest.approx(0.1)


def test_what_a_coordinator_before_has_logged_is_known_and_not_logged_again(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        await world.until(lambda: world.log.incarnation)  # as it is before anybody is served
        world.driver.receive(_committed(0))

    async def second(world: World) -> None:
        await world.until(lambda: world.log.incarnation)
        for step in (0, 1):
            world.driver.receive(_committed(step))

    play(tmp_path, first)
    world = play(tmp_path, second)

    records = read(tmp_path / "events.jsonl")
    commits = [(r["step"], r["incarnation"]) for r in records if r["kind"] == "commit"]
    assert commits == [(0, 1), (1, 2)]
    assert world.driver.board.committed == 2


def test_a_coordinator_with_nothing_to_do_notices_that_another_has_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.coordinator.driver.LOOK_S", 0.05)

    async def main() -> None:
        older, newer = World(tmp_path), World(tmp_path)
        driving = asyncio.create_task(older.driver.run())
        await older.until(lambda: older.register.read())
        await newer.driver.begin()
        with pytest.raises(ConflictError, match=r"taken over this job: .* incarnation 2"):
            await asyncio.wait_for(driving, DEADLINE_S)
        older.log.close()
        newer.log.close()

    asyncio.run(main())


def _committed(step: int) -> Committed:
    return Committed(
        replica=ReplicaId("r1"),
        generation=Generation(1),
        step=step,
        mono_s=1.0 + step,
        loss=0.5,
        grad_norm=None,
        samples=8,
        step_s=0.1,
    )


def test_what_the_core_cannot_take_of_an_agent_is_refused_and_the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = controller.step

    def failing(job: Job, event: Event, **more: Any) -> tuple[Job, Ready]:
        if isinstance(event, Switched):
            raise TransitionError(phase="STEADY", event=event)
        return step(job, event, **more)

    monkeypatch.setattr(controller, "step", failing)

    async def scene(world: World) -> None:
        await _prepared(world)
        world.driver.receive(Switched(replica=ReplicaId("r1"), generation=Generation(9), step=0))
        ready = await world.driver.ask(Scaled(target=1))
        assert ready is not None
        assert world.driver.refused == {"agent": 1}

    play(tmp_path, scene)


def test_a_job_without_descriptors_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither looking at the register nor writing it needs one that is not kept for it.

    While it looks, what is kept for it is free for a moment: so it does not while all are taken.
    """
    monkeypatch.setattr(driver_module, "LOOK_S", 3600.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def send(agent: Agent, command: Command, incarnation: Incarnation) -> None:
        agent.sent.append((command, incarnation, -1))  # without opening the register

    monkeypatch.setattr(Agent, "send", send)

    async def scene(world: World) -> None:
        await _prepared(world)
        limit = max(int(one.name) for one in Path("/proc/self/fd").iterdir()) + 8
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))  # what is kept lies below it
        taken = []
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        try:
            for name in ("r1", "r2"):
                generation = Generation(1)
                world.driver.receive(Prepared(replica=ReplicaId(name), generation=generation))
            await world.until(lambda: world.agent.commands(Switch))
            looks: list[None] = []
            confirm = world.driver.register.confirm_if_changed

            async def look() -> None:
                await confirm()
                looks.append(None)

            monkeypatch.setattr(driver_module, "LOOK_S", 0.02)
            monkeypatch.setattr(world.driver.register, "confirm_if_changed", look)
            world.driver._look_at_s = 0.0
            await world.until(lambda: len(looks) > 1)
            assert await world.driver.ask(Scaled(target=1)) is not None
        finally:
            for fd in taken:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    play(tmp_path, scene)


def test_a_register_that_cannot_be_looked_at_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "LOOK_S", 0.02)

    async def scene(world: World) -> None:
        await _prepared(world)
        with monkeypatch.context() as patched:
            failed = []

            def fail(*_: object) -> None:
                failed.append(1)
                raise OSError(errno.EMFILE, "Too many open files")

            patched.setattr(RegisterFile, "confirm", fail)
            await world.until(lambda: len(failed) > 2)
        assert await world.driver.ask(Scaled(target=1)) is not None

    play(tmp_path, scene)


def test_who_is_refused_again_and_again_does_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(world: World) -> None:
        for _ in range(1000):
            world.driver.refuse("stranger", "a connection without the job's token")
        assert world.driver.refused == {"stranger": 1000}

    play(tmp_path, scene)

    assert len(caplog.records) == 10
    said = caplog.records[1].getMessage()
    assert said == "refused (stranger, 2 so far): a connection without the job's token"
