"""The agents of one job, from the coordinator's side: their channels, and who runs which replica.

Owns to whom a command goes, for whom an agent may speak, and how long a node may be without a
connection.  Decides nothing: that a node is lost is an event for the core.

An agent has one connection at a time: a new one ends the one before, and what was not read of that
one is said again on this one.  A node has one agent at a time: while it speaks no other takes its
place, and then only one that was started later.  An agent that runs beside the coordinator is
taken first: if another had its name, or differed from it, the job would end with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from pliant.core import agreement
from pliant.core.agreement import NodeFacts
from pliant.core.commands import (
    Command,
    EndJob,
    EndReplica,
    Prepare,
    Reform,
    StartReplica,
    Switch,
)
from pliant.core.events import NodeJoined, Refused
from pliant.core.heartbeats import found_at_s
from pliant.core.job.state import JobSettings
from pliant.core.values import AgentLife, Generation, Incarnation, NodeId, ReplicaId
from pliant.machine.event_loop import within
from pliant.wire.codec import Message, encode
from pliant.wire.messages import CoordinatorNote, LedgerGrown, OutputGrown

AWAY_S, SILENT_S = JobSettings().node_s, JobSettings().silent_s

LOOK_S = 1.0
"""One look whether an agent speaks, in seconds: each says that it is alive once a second, among a
thousand every 2.5 (``core.heartbeats``)."""

OWN_S = 8.0
"""Longest wait for the agent beside the coordinator, in seconds; less than others stay silent."""

AGAIN_S = 2.0
"""So long an order that was sent on the same connection is not sent again, in seconds: its answer
is on its way, and of a thousand agents some say at each moment what they run."""

LOOKS = 5
"""Looks in a row that find nothing, after which another may take its place.  Looks, not seconds:
while this process is stopped none is made."""


_Told = tuple[type, Generation, float]
"""The kind and the generation of an order, and when it was sent."""


class NodeChannel(Protocol):
    """The coordinator's way to one agent."""

    def send_encoded(self, message: bytes) -> None:
        """Queue a message; never blocks, drops it if the agent is gone."""

    def hang_up(self) -> None:
        """End the connection: the agent has another one, or another agent has its name."""


@dataclass(slots=True)
class _Node:
    """One agent, and its channel while it is connected."""

    channel: NodeChannel | None
    life: AgentLife
    has_spoken: asyncio.Event
    told: _Told | None = None
    """The order that was sent last on this connection."""

    facts: NodeFacts = field(default_factory=NodeFacts)
    speaks: bool = True
    """It has said something since the last look."""

    devices: int = 0
    """For how many replicas it has said that it has room."""

    heard_s: float | None = 0.0
    """When a look has found that last; None: it was told that this agent is silent."""


class JobNodes:
    """The nodes that have joined and are not lost."""

    def __init__(
        self, away_s: float = AWAY_S, silent_s: float = SILENT_S, *, are_joint: bool = False
    ) -> None:
        """``away_s``: how long a node may be without a connection before it counts as lost;
        ``silent_s``: how long its agent, which has one, may say nothing before that is told;
        ``are_joint``: a node may be several hosts.
        """
        self._are_joint = are_joint
        self._away_s = away_s
        self._silent_s = silent_s
        self._look_at_s = 0.0
        self._nodes: dict[NodeId, _Node] = {}
        self._away: dict[NodeId, float] = {}
        """Those without a connection, with when they count as lost."""

        self._homes: dict[ReplicaId, NodeId] = {}
        self._hung_up = asyncio.Event()
        self._own: AgentLife | None = None
        self._own_came = asyncio.Event()

    def expect(self, own: AgentLife) -> None:
        """Note which agent runs beside the coordinator: with it the others are compared."""
        self._own = own

    async def may_come(self, joined: NodeJoined) -> None:
        """Let the coordinator's own agent be the first; who runs replicas waits for nobody."""
        if self._own not in (None, joined.life) and not joined.replicas:
            await within(self._own_came.wait(), OWN_S)

    def life_of(self, node: NodeId) -> AgentLife | None:
        """Return the life of a node's agent that has joined last; None if none has."""
        return self._nodes[node].life if node in self._nodes else None

    def is_known(self, joined: NodeJoined) -> bool:
        """Whether a node's agent has said before that it lives, and has just this room."""
        known = self._nodes.get(joined.node)
        return known is not None and (known.life, known.devices) == (joined.life, joined.devices)

    def is_connected(self, node: NodeId) -> bool:
        """Whether a node's agent has a connection."""
        return node in self._nodes and self._nodes[node].channel is not None

    def attach(self, joined: NodeJoined, channel: NodeChannel) -> None:
        """Note that an agent is connected."""
        before = self._nodes.get(joined.node)
        if before is not None and before.channel is not None:
            before.channel.hang_up()
        has_spoken = asyncio.Event() if before is None else before.has_spoken
        self._nodes[joined.node] = _Node(channel, joined.life, has_spoken, devices=joined.devices)
        self._away.pop(joined.node, None)
        self.note_speech(joined.node)
        if joined.life == self._own:
            self._own_came.set()
        self._homes.update(dict.fromkeys(self.own(joined.node, joined.replicas), joined.node))

    def note_speech(self, node: NodeId) -> None:
        """Note that a node's agent has said something."""
        if node in self._nodes:  # not its last word
            self._nodes[node].has_spoken.set()
            self._nodes[node].speaks = True

    async def speaks(self, node: NodeId) -> bool:
        """Whether a node's agent says something from now on: a dead host's connection may live."""
        known = self._nodes.get(node)
        if known is None or known.channel is None:
            return False
        known.has_spoken.clear()
        for _ in range(LOOKS):
            if await within(known.has_spoken.wait(), LOOK_S):
                return True
        return False

    async def taken_by(self, joined: NodeJoined) -> str | None:
        """Say which other agent is this node; None: it may be this one."""
        life = self.life_of(joined.node)
        if life is None or life == joined.life:
            return None
        if life.follows(joined.life):
            how = "was started later"
        elif await self.speaks(joined.node):
            how = "takes part already"
        else:
            return None
        return (
            f"another agent {how} as node {joined.node}; leave this one out, or name it with --node"
        )

    def has_others(self, node: NodeId) -> bool:
        """Whether agents of other nodes are connected."""
        return any(known.channel is not None for name, known in self._nodes.items() if name != node)

    def learn(self, node: NodeId, facts: NodeFacts) -> None:
        """Note what a node is like that has joined."""
        self._nodes[node].facts = facts

    def addresses(self) -> dict[NodeId, str]:
        """Return where the workers of each node are reached that has said so."""
        said = {name: known.facts.address for name, known in self._nodes.items()}
        return {name: address for name, address in said.items() if address}

    def disagreement(self, node: NodeId, facts: NodeFacts) -> str | None:
        """Say in what a node differs from those that are here; None if it may join them."""
        others = {name: known.facts for name, known in self._nodes.items() if name != node}
        return agreement.disagreement(node, facts, others)

    def is_on(self, replica: ReplicaId, boot: int) -> bool:
        """Whether a replica runs on the machine of this boot, and so by its monotonic clock."""
        node = self._homes.get(replica)
        life = None if node is None else self.life_of(node)
        return life is not None and life.boot == boot != 0

    def is_current(self, node: NodeId, channel: NodeChannel) -> bool:
        """Whether this is the connection of the node's agent."""
        return node in self._nodes and self._nodes[node].channel is channel

    def own(self, node: NodeId, replicas: Iterable[ReplicaId]) -> tuple[ReplicaId, ...]:
        """Return those of the replicas that no other node that is here runs."""
        return tuple(name for name in replicas if self._is_own(node, name))

    def may_say(self, node: NodeId, message: Message) -> bool:
        """Whether a message is about the sender's own replicas, or about itself.

        A host that was one with others and has lost them tells itself what its workers, which are
        never the first of a replica, have written and nobody else has seen.
        """
        if self._are_joint and isinstance(message, LedgerGrown | OutputGrown) and message.worker:
            return True
        about = getattr(message, "replicas", ())
        if hasattr(message, "replica") and not (isinstance(message, Refused) and message.joiner):
            about = (message.replica,)  # a joiner another member may refuse
        return getattr(message, "node", node) == node and self.own(node, about) == about

    def _is_own(self, node: NodeId, replica: ReplicaId) -> bool:
        home = self._homes.get(replica, node)
        return home == node or home not in self._nodes

    def detach(self, node: NodeId, channel: NodeChannel, *, now_s: float) -> None:
        """Note that a connection ended."""
        if self.is_current(node, channel):
            self._nodes[node].channel = None
            self._away[node] = now_s + self._away_s
        if len(self._away) == len(self._nodes):
            self._hung_up.set()

    def forget(self, node: NodeId) -> NodeId:
        """Forget a node whose agent has left, and return its name."""
        known = self._nodes.pop(node, None)
        self._away.pop(node, None)
        if known is not None and known.channel is not None:
            known.channel.hang_up()
        if len(self._away) == len(self._nodes):
            self._hung_up.set()
        return node

    async def hung_up(self, limit_s: float) -> None:
        """Wait until every agent has closed its connection, for so long at most."""
        if len(self._away) < len(self._nodes):
            self._hung_up.clear()
            await within(self._hung_up.wait(), limit_s)

    def forget_silent(self, now_s: float) -> list[NodeId]:
        """Forget the nodes that have been without a connection for too long, if there are such.

        Those that went at one moment are forgotten at one, however long it took to notice each.
        """
        if found_at_s(self._away.values()) >= now_s:
            return []
        silent = [node for node, until_s in self._away.items() if until_s < now_s]
        for node in silent:
            del self._nodes[node], self._away[node]
        return silent

    def fallen_silent(self, now_s: float) -> list[NodeId]:
        """Return the nodes whose agents have just been silent for too long; each once.

        What was said is seen at the next look, so that a coordinator that was stopped reads what
        has come for it before it looks again.
        """
        if now_s < self._look_at_s:
            return []
        self._look_at_s, found = now_s + LOOK_S, []
        for node, known in self._nodes.items():
            if known.speaks or known.channel is None:
                known.speaks, known.heard_s = False, now_s
            elif known.heard_s is not None and now_s - known.heard_s >= self._silent_s:
                known.heard_s = None
                found.append(node)
        return found

    def send(self, command: Command, incarnation: Incarnation) -> None:
        """Send a command to the agents whom it concerns."""
        known = [self._nodes[node] for node in self._addressees(command) if node in self._nodes]
        there = [(one, one.channel) for one in known if one.channel is not None]
        encoded = encode(command, incarnation) if there else b""
        told = _order_in(command)
        for one, channel in there:
            channel.send_encoded(encoded)
            one.told = told or one.told

    def send_to(
        self, node: NodeId, command: Command | CoordinatorNote, incarnation: Incarnation
    ) -> None:
        """Send a command, or what goes with them, to one agent, if it is connected."""
        known = self._nodes.get(node)
        if known is not None and known.channel is not None:
            known.channel.send_encoded(encode(command, incarnation))
            known.told = _order_in(command) or known.told

    def was_just_told(self, node: NodeId, command: Command) -> bool:
        """Whether an agent was sent this order on its connection a moment ago, the last of all."""
        told, known = _order_in(command), self._nodes.get(node)
        if known is None or told is None or known.told is None:
            return False
        return known.told[:2] == told[:2] and told[2] < known.told[2] + AGAIN_S

    def _addressees(self, command: Command) -> Iterable[NodeId]:
        match command:
            case StartReplica(replica=replica, node=node):
                self._homes[replica] = node
                return {node}
            case EndReplica(replica=replica):
                return {self._homes[replica]} if replica in self._homes else ()
            case EndJob():
                return self._nodes
            case _:
                return {self._homes[name] for name in command.to if name in self._homes}


def _order_in(command: Command | CoordinatorNote) -> _Told | None:
    """Return which order a command is, told now; None if it is none."""
    if isinstance(command, Prepare | Switch | Reform):
        return type(command), command.order.generation, time.monotonic()
    return None
