"""Hosts that become one node are told so once, in time, with a secret that nobody else hears."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.drivers import driver_of

from pliant.coordinator.driver import JobDriver
from pliant.coordinator.host_groups import AGAIN_S, HostGroups
from pliant.coordinator.nodes import JobNodes
from pliant.core import host_groups
from pliant.core.agreement import NodeFacts
from pliant.core.commands import StartReplica
from pliant.core.errors import ConflictError
from pliant.core.events import NodeJoined
from pliant.core.host_groups import FIRST_PAUSE_S, SETTLE_S, GroupRule
from pliant.core.job.state import JobSettings
from pliant.core.policy.decide import Policy
from pliant.core.values import AgentLife, Incarnation, NodeId
from pliant.observe.log import EventLog, Record
from pliant.wire.codec import Envelope, decode
from pliant.wire.messages import HostAlone, JoinHosts

A, B, C, D = map(NodeId, "abcd")
TWO = GroupRule(hosts=2, workers=4, label="rack")
DEADLINE_S = 30.0


class Channel:
    """To one host: keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def send_encoded(self, message: bytes) -> None:
        received = decode(message)
        assert isinstance(received, Envelope)
        self.heard.append(received.message)

    def hang_up(self) -> None:
        pass

    @property
    def joins(self) -> list[JoinHosts]:
        return [one for one in self.heard if isinstance(one, JoinHosts)]


class World:
    """The hosts of one job, and a clock that nobody winds but the test."""

    def __init__(self, directory: Path, rule: GroupRule = TWO) -> None:
        self.path = directory / "events.jsonl"
        self.log = EventLog(self.path, job="j")
        self.records: list[Record] = []
        self.log.subscribe(self.records.append)
        self.nodes = JobNodes()
        self.now_s = 100.0
        self.channels: dict[NodeId, Channel] = {}
        self.failure: Exception | None = None
        self.joint = HostGroups(rule, self.nodes, self.log)

    def come(
        self, node: NodeId, *, life: int = 1, rack: str = "x", facts: NodeFacts | None = None
    ) -> Channel:
        """Let an agent connect, or connect again."""
        said = NodeJoined(
            node=node, devices=0, life=AgentLife(uptime=life, boot=1), labels=(("rack", rack),)
        )
        self.channels[node] = Channel()
        self.nodes.attach(said, self.channels[node])
        self.nodes.learn(node, facts or NodeFacts())
        self.joint.greet(said, facts or NodeFacts(), now_s=self.now_s)
        return self.channels[node]

    def say_alone(self, node: NodeId, *missed: NodeId) -> None:
        said = HostAlone(node=node, endpoint=f"{node}:7", devices=2, missed=missed)
        assert self.joint.hear_alone(said, now_s=self.now_s) is None

    def come_alone(self, *nodes: NodeId, rack: str = "x") -> None:
        for node in nodes:
            self.come(node, rack=rack)
            self.say_alone(node)

    def leave(self, node: NodeId) -> None:
        self.nodes.detach(node, self.channels[node], now_s=self.now_s)

    def wait(self, seconds: float) -> None:
        """Let time pass, a tenth of a second at a time as for a driver."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.1
            asyncio.run(self.joint.join_due(self.now_s, self.confirm, Incarnation(3)))

    async def confirm(self) -> None:
        if self.failure is not None:
            raise self.failure

    def joins(self) -> dict[NodeId, list[tuple[NodeId, ...]]]:
        """Return who was told to be one with whom, head first."""
        told = {node: channel.joins for node, channel in self.channels.items()}
        return {node: [(one.head, *one.parts) for one in ones] for node, ones in told.items()}

    def told(self) -> list[Record]:
        found = [record for record in self.records if record["kind"] == "joint_nodes"]
        return [{key: one[key] for key in ("nodes", "alone", "joined", "missed")} for one in found]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def joined_as(head: NodeId, *parts: NodeId) -> NodeFacts:
    return NodeFacts(head=head, parts=parts)


def test_hosts_that_come_together_are_one_by_their_racks(world: World) -> None:
    world.come_alone(A, rack="x")
    world.come_alone(B, rack="y")
    world.wait(SETTLE_S / 2)
    world.come_alone(C, rack="x")
    world.come_alone(D, rack="y")

    world.wait(2 * SETTLE_S)

    assert world.joins() == {A: [(A, C)], C: [(A, C)], B: [(B, D)], D: [(B, D)]}


def test_those_of_one_node_hear_one_secret_and_nobody_else_does(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world.come_alone(A, B, C, D)

    world.wait(2 * SETTLE_S)

    orders = {node: channel.joins[0] for node, channel in world.channels.items()}
    assert orders[A] == orders[B] != orders[C] == orders[D]
    assert orders[A].endpoint == "a:7"
    found = {one.secret for one in orders.values()}
    assert sorted(map(len, found)) == [64, 64]
    said = world.path.read_text() + caplog.text + "".join(map(repr, orders.values()))
    assert not any(secret in said for secret in found)


def test_each_attempt_has_a_secret_of_its_own(world: World) -> None:
    world.come_alone(A, B)
    world.wait(2 * SETTLE_S)
    world.say_alone(A, B)
    world.say_alone(B, A)

    world.wait(FIRST_PAUSE_S + 2 * SETTLE_S)

    one, other = world.channels[A].joins
    assert one.secret != other.secret
    assert (one.head, other.head) == (A, B)


def test_those_who_failed_are_told_again_in_their_time(world: World) -> None:
    world.come_alone(A, B)
    world.wait(2 * SETTLE_S)
    world.say_alone(A, B)

    world.wait(FIRST_PAUSE_S - 0.5)
    assert len(world.channels[A].joins) == 1
    world.say_alone(B, A)  # it was slower to say so
    world.wait(1.5 + SETTLE_S)

    assert world.joins() == {A: [(A, B), (B, A)], B: [(A, B), (B, A)]}


def test_one_whose_partner_failed_is_one_with_who_comes_later(world: World) -> None:
    world.come_alone(A, B)
    world.wait(2 * SETTLE_S)
    world.leave(B)  # before it has said anything
    world.say_alone(A, B)

    world.come_alone(C)
    world.wait(2 * SETTLE_S)

    assert world.joins()[C] == [(A, C)]
    assert world.channels[B].joins == [world.channels[A].joins[0]]


def test_who_has_no_connection_is_not_told_until_it_says_that_it_is_alone_again(
    world: World,
) -> None:
    world.come_alone(A, B)
    world.leave(B)
    world.wait(3 * SETTLE_S)
    assert world.joins() == {A: [], B: []}

    world.come(B)
    world.wait(3 * SETTLE_S)
    assert world.joins() == {A: [], B: []}

    world.say_alone(B)
    world.wait(2 * SETTLE_S)
    assert world.joins() == {A: [(A, B)], B: [(A, B)]}


def test_who_has_no_connection_takes_nobodys_place(world: World) -> None:
    world.come_alone(A, B, C)
    world.leave(B)

    world.wait(2 * SETTLE_S)

    assert world.joins() == {A: [(A, C)], B: [], C: [(A, C)]}


def test_the_word_of_an_agent_before_does_not_count(world: World) -> None:
    world.come_alone(A, B)
    world.wait(2 * SETTLE_S)
    world.say_alone(A, B)
    world.come(B, life=2)
    world.wait(3 * SETTLE_S)
    assert world.joins() == {A: [(A, B)], B: []}

    world.say_alone(B)  # with the one before A had failed, not with this one
    world.wait(2 * SETTLE_S)

    assert world.joins() == {A: [(A, B), (A, B)], B: [(A, B)]}


def test_hosts_that_are_one_stay_so_when_another_coordinator_comes(world: World) -> None:
    world.come(A, facts=joined_as(A, B))
    world.come_alone(C)
    world.come(B, facts=joined_as(A))
    world.come_alone(D)

    world.wait(2 * SETTLE_S)

    assert world.joins() == {A: [], B: [], C: [(C, D)], D: [(C, D)]}
    assert world.told() == [
        {"nodes": [["a", "b"]], "alone": ["c", "d"], "joined": [["a", "b"]], "missed": []},
        {"nodes": [["a", "b"]], "alone": [], "joined": [], "missed": []},
    ]


def test_a_part_that_says_it_is_alone_is_so_whatever_a_head_says_late(world: World) -> None:
    world.come_alone(A, B, C)
    world.wait(2 * SETTLE_S)
    world.come(A, facts=joined_as(A, B))
    world.say_alone(B, A)

    world.come(A, facts=joined_as(A, B))  # it has not noticed yet
    world.wait(2 * SETTLE_S)

    assert world.joins()[B] == [(A, B), (B, C)]
    assert world.told()[-1]["nodes"] == []


def test_a_head_that_was_not_believed_is_once_its_part_says_the_same(world: World) -> None:
    world.come_alone(A, B)
    world.come(A, facts=joined_as(A, B))
    world.wait(2 * SETTLE_S)
    assert world.told()[-1]["nodes"] == []

    world.come(B, facts=joined_as(A))
    world.wait(0.2)

    assert world.told()[-1]["nodes"] == [["a", "b"]]


def test_a_head_that_claims_a_part_of_another_one_is_not_believed(world: World) -> None:
    world.come(B, facts=joined_as(C))
    world.come(C, facts=joined_as(C, B))
    world.come(A, facts=joined_as(A, B))
    world.wait(0.2)

    assert world.told()[-1]["nodes"] == [["c", "b"]]


def test_two_that_lose_each_other_are_left_alone_for_a_while(world: World) -> None:
    """Each time costs what runs on them; a partner that comes anew is another one."""
    world.come(A, facts=joined_as(A, B))
    world.come(B, facts=joined_as(A))
    world.wait(SETTLE_S)

    world.come_alone(A, B)
    world.wait(FIRST_PAUSE_S - 0.5)
    assert world.joins() == {A: [], B: []}
    world.come(B, life=2)
    world.say_alone(B)
    world.wait(2 * SETTLE_S)

    assert world.joins() == {A: [(A, B)], B: [(A, B)]}


def test_people_hear_who_is_one_and_who_waits(world: World) -> None:
    world.come_alone(A, B, C)
    world.wait(2 * SETTLE_S)
    world.come(A, facts=joined_as(A, B))
    world.wait(0.2)
    world.come(A, facts=joined_as(A, B))  # a connection that was broken is no news
    world.wait(2 * SETTLE_S)
    world.say_alone(B, A)
    world.wait(0.2)

    whole = {"nodes": [["a", "b"]], "alone": ["c"]}
    assert world.told() == [
        {"nodes": [], "alone": ["c"], "joined": [], "missed": []},
        whole | {"joined": [["a", "b"]], "missed": []},
        {"nodes": [], "alone": ["b", "c"], "joined": [], "missed": [["b", ["a"]]]},
    ]


def test_a_coordinator_that_counts_no_more_tells_nobody(world: World) -> None:
    world.come_alone(A, B)
    world.failure = ConflictError("another has taken over")

    with pytest.raises(ConflictError):
        world.wait(2 * SETTLE_S)

    assert world.joins() == {A: [], B: []}


def test_while_the_register_cannot_be_seen_nobody_is_told(world: World) -> None:
    world.come_alone(A, B)
    world.failure = OSError("no such host")
    world.wait(3 * SETTLE_S)
    assert world.joins() == {A: [], B: []}

    world.failure = None
    world.wait(AGAIN_S + 0.2)

    assert world.joins() == {A: [(A, B)], B: [(A, B)]}


def test_who_goes_while_the_register_is_looked_at_is_not_told(world: World) -> None:
    world.come_alone(A, B, C, D)

    async def confirm() -> None:
        world.leave(D)

    world.confirm = confirm  # type: ignore[method-assign]
    world.wait(2 * SETTLE_S)

    assert world.joins() == {A: [(A, B)], B: [(A, B)], C: [], D: []}


def test_no_more_is_known_of_hosts_than_are_there(world: World) -> None:
    for number in range(50):
        node = NodeId(f"n{number}")
        world.come_alone(node)
        world.say_alone(node, NodeId(f"n{number - 1}"), NodeId("nowhere"))
        world.nodes.forget(node)

    world.come_alone(A)
    world.wait(2 * SETTLE_S)

    assert list(world.joint._hosts) == [A]
    assert not world.joint._tries


def test_in_a_job_of_replicas_on_one_host_nobody_is_alone(tmp_path: Path) -> None:
    world = World(tmp_path, GroupRule(hosts=1, workers=1))
    world.come(A)

    said = world.joint.hear_alone(HostAlone(node=A, endpoint="a:7", devices=2), now_s=world.now_s)

    assert said == "a is alone, and a replica of this job is on one host"


Scene = Callable[[JobDriver, EventLog], Awaitable[None]]


def drive(directory: Path, scene: Scene) -> None:
    """Run a scene beside a coordinator whose replicas have four workers on two hosts."""

    async def main() -> None:
        log = EventLog(directory / "events.jsonl", job="j")
        driver = driver_of(
            log,
            JobSettings(policy=Policy(max_replicas=3)),
            workers_per_replica=4,
            hosts_per_replica=2,
        )
        driving = asyncio.create_task(driver.run())
        try:
            await scene(driver, log)
        finally:
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            log.close()

    asyncio.run(main())


def attach(
    driver: JobDriver, node: NodeId, devices: int = 0, facts: NodeFacts | None = None
) -> Channel:
    channel = Channel()
    joined = NodeJoined(node=node, devices=devices, life=AgentLife(boot=1))
    driver.attach(joined, channel)
    driver.learn(joined, facts or NodeFacts())
    return channel


async def until(what: Callable[[], Any]) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        while not (answer := what()):
            await asyncio.sleep(0.01)
        return answer


def starts(channel: Channel) -> list[str]:
    return [f"{one.replica} {one.node}" for one in channel.heard if isinstance(one, StartReplica)]


def test_replicas_start_on_hosts_that_have_become_one_node_and_on_no_other(tmp_path: Path) -> None:
    async def scene(driver: JobDriver, log: EventLog) -> None:
        channels = {node: attach(driver, node) for node in (A, B, C)}
        for node in channels:
            driver.receive(HostAlone(node=node, endpoint=f"{node}:7", devices=4))
        (order,) = await until(lambda: channels[A].joins)
        assert channels[B].joins == [order]
        assert not any(map(starts, channels.values()))

        head = attach(driver, A, 8, joined_as(A, B))
        await until(lambda: len(starts(head)) == 2)

        assert starts(head) == ["r1 a", "r2 a"]
        assert not starts(channels[B]) + starts(channels[C])
        assert order.secret not in json.dumps(driver.board.as_json())

    drive(tmp_path, scene)


def test_the_core_hears_of_devices_that_an_agent_has_again_and_has_not_any_more(
    tmp_path: Path,
) -> None:
    """Of the same agent, which says the same on each connection otherwise."""
    joined: list[Record] = []

    async def scene(driver: JobDriver, log: EventLog) -> None:
        log.subscribe(lambda record: joined.append(record) if "devices" in record else None)
        for devices in (0, 0, 8, 8, 0):
            attach(driver, A, devices)
        await until(lambda: len(joined) >= 3)

    drive(tmp_path, scene)

    assert [record["devices"] for record in joined] == [0, 2, 0]


def test_what_the_coordinator_waits_for_is_no_more_than_a_moment() -> None:
    """A host that comes alone, long after the others, is not to wait for long."""
    assert host_groups.SETTLE_S <= 1.0
    assert host_groups.MOST_SETTLE_S <= 5.0


def test_a_host_that_lacks_something_is_joined_with_nobody_until_it_has_it(world: World) -> None:
    world.come_alone(A)
    world.come(B)
    lacks = HostAlone(node=B, endpoint="", devices=0, obstacle="x" * 1000)
    assert world.joint.hear_alone(lacks, now_s=world.now_s) is None
    world.wait(2 * SETTLE_S)

    assert world.joins() == {A: [], B: []}
    (written,) = [one for one in world.records if one["kind"] == "joint_nodes"]
    assert (written["alone"], written["unable"]) == (["a"], [["b", "x" * 200]])

    world.say_alone(B)
    world.wait(2 * SETTLE_S)

    assert world.joins() == {A: [(A, B)], B: [(A, B)]}
    assert [one["unable"] for one in world.records if one["kind"] == "joint_nodes"][-1] == []


def test_what_a_host_says_of_others_is_written_once(world: World) -> None:
    world.come_alone(A, B)
    world.wait(2 * SETTLE_S)

    world.say_alone(A, *[B] * 1000)
    world.wait(0.2)

    assert world.told()[-1]["missed"] == [["a", ["b"]]]


@pytest.mark.parametrize("endpoint", ["", "b", "b:7\x1b[2J", "b:7 ", "b" * 1000 + ":7"])
def test_a_host_that_is_nowhere_is_joined_with_nobody(world: World, endpoint: str) -> None:
    world.come_alone(A)
    world.come(B)

    said = HostAlone(node=B, endpoint=endpoint, devices=2)
    wrong = world.joint.hear_alone(said, now_s=world.now_s)
    world.wait(2 * SETTLE_S)

    assert wrong is not None
    assert wrong.isprintable()
    assert wrong.startswith("b has no place at which others reach it: ")
    assert world.joins() == {A: [], B: []}


@pytest.mark.parametrize("endpoint", ["10.0.0.1:7", "[fe80::1%eth0]:65535", "gpu-1.rack_2.local:1"])
def test_a_host_may_be_reached_at_whatever_address_it_has(world: World, endpoint: str) -> None:
    world.come_alone(A)
    world.come(B)

    said = HostAlone(node=B, endpoint=endpoint, devices=2)
    assert world.joint.hear_alone(said, now_s=world.now_s) is None
    world.wait(2 * SETTLE_S)

    assert world.joins() == {A: [(A, B)], B: [(A, B)]}
