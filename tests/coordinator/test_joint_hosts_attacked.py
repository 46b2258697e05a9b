"""Whatever happens to hosts, links and coordinators: no host is told to be in two nodes, and in the
end all are joined who can be.

Hosts behave as agents do: see decision 19.  What is on its way is lost with its connection, and
comes late otherwise.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.coordinator.joint_hosts import JointHosts
from pliant.coordinator.nodes import JobNodes
from pliant.core.agreement import NodeFacts
from pliant.core.commands import Command
from pliant.core.events import NodeJoined
from pliant.core.joint_nodes import MOST_PAUSE_S, JointRule
from pliant.core.values import AgentLife, Incarnation, NodeId
from pliant.observe.log import EventLog
from pliant.wire.codec import Envelope, decode, encode
from pliant.wire.messages import HostAlone, JoinHosts

JOIN_S, SILENT_S, AWAY_S, TICK_S = 10.0, 5.0, 10.0, 0.5


class Host:
    """One agent, and its connection."""

    def __init__(self, name: str) -> None:
        self.node = NodeId(name)
        self.life = 1
        self.told: JoinHosts | None = None
        self.until_s = 0.0
        self.is_joint = False
        self.missed: tuple[NodeId, ...] = ()
        self.silent_s = 0.0
        self.up: deque[tuple[float, Any]] = deque()
        self.down: deque[tuple[float, JoinHosts]] = deque()
        self.connection: Connection | None = None

    @property
    def hosts(self) -> tuple[NodeId, ...]:
        return () if self.told is None else (self.told.head, *self.told.parts)


class Connection:
    """What the coordinator has of it."""

    def __init__(self, world: World, host: Host) -> None:
        self.world, self.host = world, host

    def send(self, command: Command, incarnation: Incarnation) -> None:
        self.send_encoded(encode(command, incarnation))

    def send_encoded(self, message: bytes) -> None:
        received = decode(message)
        assert isinstance(received, Envelope)
        assert isinstance(received.message, JoinHosts)
        self.world.on_told(self.host, received.message)
        self.host.down.append((self.world.late_s(), received.message))

    def hang_up(self) -> None:
        pass


class World:
    """The hosts, their links and the newest coordinator."""

    def __init__(self, log: EventLog, count: int, rule: JointRule, draw: random.Random) -> None:
        self.log, self.rule, self.draw = log, rule, draw
        self.now_s = 0.0
        self.hosts = {host.node: host for host in (Host(f"n{i}") for i in range(count))}
        self.cut: dict[frozenset[NodeId], float] = {}
        self.word: dict[NodeId, str] = {}
        """What the coordinator knows last of each: alone, told, or of a node."""

        self.begin()

    def begin(self) -> None:
        """Let another coordinator begin."""
        self.nodes = JobNodes(AWAY_S)
        self.joint = JointHosts(self.rule, self.nodes, self.log)
        self.word = {}
        for host in self.hosts.values():
            self.connect(host)

    def late_s(self) -> float:
        return self.now_s + self.draw.choice([0.0, 0.0, 0.5, 2.0])

    def on_told(self, host: Host, told: JoinHosts) -> None:
        assert self.word[host.node] == "alone", f"{host.node} is told and {self.word[host.node]}"
        assert len({told.head, *told.parts}) == self.rule.hosts
        self.word[host.node] = "told"

    # --- what hosts do ------------------------------------------------------------------

    def connect(self, host: Host) -> None:
        if host.connection is not None:
            self.nodes.detach(host.node, host.connection, now_s=self.now_s)
        host.up.clear()
        host.down.clear()
        host.connection = None
        self.say(host, "greet")
        if host.told is None:
            self.say_alone(host)

    def say_alone(self, host: Host) -> None:
        said = HostAlone(node=host.node, endpoint="h:1", devices=2, missed=host.missed)
        self.say(host, said)

    def say(self, host: Host, what: Any) -> None:
        at_s = max(self.late_s(), host.up[-1][0] if host.up else 0.0)
        host.up.append((at_s, what))

    def hear(self, host: Host) -> None:
        """Let the coordinator hear what has come, and the host what it was told."""
        while host.up and host.up[0][0] <= self.now_s:
            _, said = host.up.popleft()
            if said == "greet":
                self.greet(host)
            else:
                self.word[host.node] = "alone"
                self.joint.hear_alone(said, now_s=self.now_s)
        while host.down and host.down[0][0] <= self.now_s:
            _, told = host.down.popleft()
            if host.told is None:
                host.told, host.until_s, host.is_joint = told, self.now_s + JOIN_S, False
                host.missed = ()

    def greet(self, host: Host) -> None:
        parts = host.told.parts if host.told is not None and host.told.head == host.node else ()
        facts = NodeFacts()
        if host.is_joint and host.told is not None:
            facts = NodeFacts(head=host.told.head, parts=parts)
        joined = NodeJoined(node=host.node, devices=0, life=AgentLife(boot=1, uptime=host.life))
        host.connection = Connection(self, host)
        self.nodes.attach(joined, host.connection)
        self.nodes.learn(host.node, facts)
        self.joint.greet(joined, facts, now_s=self.now_s)
        self.word[host.node] = "of a node" if host.is_joint else "greeted"

    def is_whole(self, host: Host) -> bool:
        """Whether a host is one with others, and they are with it."""
        others = [self.hosts[node] for node in host.hosts]
        return bool(others) and all(one.is_joint and one.told == host.told for one in others)

    def reaches(self, one: NodeId, other: NodeId) -> bool:
        return self.now_s >= self.cut.get(frozenset((one, other)), 0.0)

    def go_on(self, host: Host) -> None:
        """Become one with others, lose them, or give it up."""
        if host.told is None:
            return
        others = [self.hosts[node] for node in host.hosts if node != host.node]
        head = self.hosts[host.told.head]
        at_it = [one for one in others if one.told == host.told]
        if host.is_joint:
            if any(one not in at_it or not self.reaches(host.node, one.node) for one in others):
                host.silent_s += TICK_S
                if host.silent_s >= SILENT_S:
                    cut = [one.node for one in at_it if not self.reaches(host.node, one.node)]
                    self.part(host, tuple(cut))
            else:
                host.silent_s = 0.0
        elif host is head:
            there = [one for one in at_it if self.reaches(host.node, one.node)]
            if len(there) == len(others) and not any(self.apart(one) for one in there):
                for one in (host, *there):
                    one.is_joint, one.silent_s = True, 0.0
                    self.connect(one)
            elif self.now_s >= host.until_s:
                gone = tuple(one.node for one in others if one not in there)
                self.part(host, gone)
        elif self.now_s >= host.until_s:
            is_there = head.told == host.told and self.reaches(host.node, head.node)
            self.part(host, self.apart(host) if is_there else (head.node,))

    def apart(self, part: Host) -> tuple[NodeId, ...]:
        """Return the other parts that one does not reach."""
        others = () if part.told is None else part.told.parts
        return tuple(one for one in others if one != part.node and not self.reaches(part.node, one))

    def part(self, host: Host, missed: tuple[NodeId, ...]) -> None:
        was_joint, host.told, host.is_joint, host.missed = host.is_joint, None, False, missed
        if was_joint:
            self.connect(host)
        else:
            self.say_alone(host)

    def restart(self, host: Host) -> None:
        host.life += 1
        host.told, host.is_joint, host.missed = None, False, ()
        self.connect(host)

    # --- time ---------------------------------------------------------------------------

    def tick(self) -> None:
        self.now_s += TICK_S
        for host in self.draw.sample(list(self.hosts.values()), len(self.hosts)):
            self.hear(host)
            self.go_on(host)
        at_once(self.joint.join_due(self.now_s, self.confirm, Incarnation(1)))

    async def confirm(self) -> None:
        pass

    def harm(self) -> None:
        """Let something happen."""
        host = self.draw.choice(list(self.hosts.values()))
        pairs = list(itertools.combinations(self.hosts, 2))
        match self.draw.randrange(8):
            case 0 | 1:
                self.connect(host)
            case 2:
                self.restart(host)
            case 3 | 4 if pairs:
                pair = frozenset(self.draw.choice(pairs))
                self.cut[pair] = self.now_s + self.draw.choice([2.0, 20.0, 100.0])
            case 5:
                self.begin()
            case 6 if not host.told and host.connection is not None:
                self.say_alone(host)  # repeated
            case _:
                pass


def at_once(work: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(StopIteration):
        work.send(None)


@settings(max_examples=60)
@given(
    count=st.integers(1, 9),
    hosts=st.integers(2, 4),
    seed=st.integers(0, 1 << 30),
    harm=st.floats(0.0, 0.6),
)
def test_all_are_joined_in_the_end_and_none_is_told_twice(
    tmp_path_factory: pytest.TempPathFactory, count: int, hosts: int, seed: int, harm: float
) -> None:
    draw = random.Random(seed)
    log = EventLog(tmp_path_factory.mktemp("run") / "events.jsonl", job="j")
    world = World(log, count, JointRule(hosts=hosts, workers=2 * hosts), draw)
    for _ in range(150):
        if draw.random() < harm:
            world.harm()
        world.tick()

    for _ in range(int(3 * MOST_PAUSE_S / TICK_S)):
        world.tick()
        left = [host for host in world.hosts.values() if not world.is_whole(host)]
        if len(left) < hosts and not any(host.up for host in world.hosts.values()):
            break
    log.close()

    assert len(left) < hosts, [(host.node, host.told, world.word) for host in left]
    found = {frozenset(one.hosts) for one in world.joint._joint.values()}
    assert found == {frozenset(one.hosts) for one in world.hosts.values() if world.is_whole(one)}
