"""Hosts of a job that become one node, where a replica does not fit on one of them.

Owns what each host has said last of whom it is one with, and that hosts are told to be one: with a
secret that is drawn then, goes to them alone and is kept nowhere.  Who is one with whom is for
``core.host_groups`` to say.  Knows nothing of what a node runs: its head speaks for it.

    HostAlone --> alone --choice--> told (JoinHosts) --NodeFacts: head, parts--> one node
                    ^                    |                                          |
                    +----- HostAlone ----+------------------------------------------+

A host's own word counts for it: one that says that it is alone is so, whoever may claim it as a
part.  On a new connection it says so again; one that does not is about to be one with others, or
has become so.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pliant.coordinator.nodes import JobNodes
from pliant.core import host_groups
from pliant.core.agreement import NodeFacts
from pliant.core.events import NodeJoined
from pliant.core.host_groups import GroupRule, LoneHost, NodeHosts, Pair, PairTry
from pliant.core.values import AgentLife, Incarnation, Labels, NodeId
from pliant.observe.log import EventLog
from pliant.wire.messages import HostAlone, JoinHosts

SECRET_BYTES = 32

MOST_LETTERS = 200
"""Of what a host says of its obstacle."""

ENDPOINT = re.compile(r"[A-Za-z0-9._:%\[\]-]{1,300}:[0-9]{1,5}")
"""Where a host says that others reach it: they are told, and write it into their logs."""

AGAIN_S = 1.0
"""Pause before the register is looked at again where that failed, in seconds."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Host:
    """What one host has said."""

    life: AgentLife
    labels: Labels = ()
    endpoint: str = ""
    alone: LoneHost | None = None
    """None: it has not said so on this connection, or was told with whom it is one since."""

    obstacle: str = ""
    """Why it can be one with nobody now."""

    head: str = ""
    parts: tuple[NodeId, ...] = ()
    """Of which node it is, as it has said on this connection: see ``NodeFacts``."""


class HostGroups:
    """The hosts of one job."""

    def __init__(self, rule: GroupRule, nodes: JobNodes, log: EventLog) -> None:
        self._rule = rule
        self._nodes = nodes
        self._log = log
        self._hosts: dict[NodeId, _Host] = {}
        self._joint: dict[NodeId, NodeHosts] = {}
        """By the heads, which have said so."""

        self._tries: dict[Pair, PairTry] = {}
        self._looked_s = -math.inf
        self._due_s: float | None = math.inf
        """When it is looked who can be joined; None: something has changed since that was known."""

        self._said: tuple[object, ...] = ((), (), ())
        """What the log tells last: who is one, who is alone, and who can be one with nobody."""

        self._joined: list[NodeHosts] = []
        self._missed: list[tuple[NodeId, tuple[NodeId, ...]]] = []

    def greet(self, joined: NodeJoined, facts: NodeFacts, *, now_s: float) -> None:
        """Take note of what a host says on a new connection."""
        node, known = joined.node, self._hosts.get(joined.node)
        if self._rule.hosts == 1:
            return
        if known is not None and known.life != joined.life:
            self._forget(node)
            known = None
        if known is None:
            known = self._hosts[node] = _Host(joined.life)
        known.labels, known.alone, self._due_s = joined.labels, None, None
        known.obstacle = ""
        known.head, known.parts = facts.head, tuple(map(NodeId, facts.parts))
        if facts.head:
            self._believe(NodeId(facts.head), now_s)
        else:
            self._lose(node, now_s)

    def _believe(self, head: NodeId, now_s: float) -> None:
        """Take hosts for a node if its head has said so, and none of them anything else."""
        known = self._hosts.get(head)
        if known is None or known.head != head:
            return
        if not all(self._may_be(part, head) for part in known.parts):
            return
        joint = NodeHosts(head, known.parts)
        if self._joint.get(head) != joint:
            self._tries = host_groups.opened(self._tries, joint, joined_s=now_s)
            self._joined.append(joint)
        self._joint[head] = joint

    def _may_be(self, part: NodeId, head: NodeId) -> bool:
        host = self._hosts.get(part)
        return host is None or (host.alone is None and host.head in ("", head))

    def head_of(self, host: NodeId) -> NodeId:
        """Return the node that a host is one with others of, by its head; itself: of none."""
        known = self._hosts.get(host)
        return NodeId(known.head) if known is not None and known.head else host

    def hear_alone(self, said: HostAlone, *, now_s: float) -> str | None:
        """Take note that a host is alone; say what is wrong with that, None: nothing."""
        known = self._hosts.get(said.node)
        if self._rule.hosts == 1:
            return f"{said.node} is alone, and a replica of this job is on one host"
        if known is None:  # its agent has left
            return None
        if not said.obstacle and not ENDPOINT.fullmatch(said.endpoint):
            return f"{said.node} has no place at which others reach it: {said.endpoint!a:.40}"
        missed = tuple(other for other in dict.fromkeys(said.missed) if other in self._hosts)
        tries = host_groups.failed(self._tries, said.node, missed, now_s=now_s)
        if tries != self._tries:
            self._missed.append((said.node, missed))
        self._tries = tries
        self._lose(said.node, now_s)
        known.endpoint, self._due_s = said.endpoint, None
        known.head, known.parts = "", ()
        known.obstacle = said.obstacle[:MOST_LETTERS]
        if known.obstacle:
            known.alone = None
            return None
        since_s = now_s if known.alone is None else known.alone.since_s
        known.alone = LoneHost(
            node=said.node, devices=said.devices, since_s=since_s, labels=known.labels
        )
        return None

    async def join_due(
        self, now_s: float, confirm: Callable[[], Awaitable[None]], incarnation: Incarnation
    ) -> None:
        """Tell hosts that they are one, if any can be by now.

        ``confirm`` shows that this coordinator still counts: hosts that two coordinators told
        different things would wait for each other in vain.

        Raises:
            ConflictError: it counts no more.
        """
        if self._due_s is None:
            self._forget_gone()
            self._due_s = host_groups.next_look_s(
                self._alone(), self._tries, looked_s=self._looked_s
            )
        if now_s >= self._due_s:
            try:
                await self._join(now_s, confirm, incarnation)
            except OSError as error:
                _log.warning("the register could not be read: %s", error)
                self._due_s = now_s + AGAIN_S
                return
            self._looked_s, self._due_s = now_s, None
            self._write()
        elif self._joined or self._missed or self._unable() != self._said[-1]:
            self._write()

    async def _join(
        self, now_s: float, confirm: Callable[[], Awaitable[None]], incarnation: Incarnation
    ) -> None:
        chosen = host_groups.host_groups(self._alone(), self._tries, self._rule, now_s=now_s)
        if chosen:
            await confirm()
        alone = {one.node for one in self._alone()}  # one may have gone meanwhile
        for joint in chosen:
            if alone.issuperset(joint.hosts):
                self._tell(joint, incarnation)

    def _tell(self, joint: NodeHosts, incarnation: Incarnation) -> None:
        order = JoinHosts(
            head=joint.head,
            parts=joint.parts,
            endpoint=self._hosts[joint.head].endpoint,
            secret=secrets.token_hex(SECRET_BYTES),
        )
        self._tries = host_groups.opened(self._tries, joint)
        for node in joint.hosts:
            self._hosts[node].alone = None
            self._nodes.send_to(node, order, incarnation)

    def _alone(self) -> list[LoneHost]:
        """Return the hosts that can be told to be one with others."""
        return [
            host.alone
            for node, host in self._hosts.items()
            if host.alone is not None and self._nodes.is_connected(node)
        ]

    def _unable(self) -> tuple[tuple[NodeId, str], ...]:
        """Return the hosts that can be one with nobody, and why."""
        known = ((node, host.obstacle) for node, host in self._hosts.items() if host.obstacle)
        return tuple(sorted(known))

    def _lose(self, node: NodeId, now_s: float) -> None:
        """Take note that a host is of no node any more; two that were one have lost each other."""
        for joint in self._joint.values():
            if node in joint.hosts and len(joint.parts) == 1:
                self._tries = host_groups.failed(self._tries, joint.head, joint.parts, now_s=now_s)
        self._part(node)

    def _part(self, node: NodeId) -> None:
        """Know of no node any more that this host is of: it is alone, or gone."""
        self._joint = {
            head: joint for head, joint in self._joint.items() if node not in joint.hosts
        }

    def _forget(self, node: NodeId) -> None:
        """Know nothing of a host: it is gone, or its agent is another one."""
        self._hosts.pop(node, None)
        self._tries = host_groups.without(self._tries, node)
        self._part(node)

    def _forget_gone(self) -> None:
        for node in [node for node in self._hosts if self._nodes.life_of(node) is None]:
            self._forget(node)

    def _write(self) -> None:
        """Log who is one with whom, who waits, and what has changed."""
        nodes = sorted(joint.hosts for joint in self._joint.values())
        alone = sorted(one.node for one in self._alone())
        unable = self._unable()
        said = (tuple(nodes), tuple(alone), unable)
        if said != self._said or self._joined or self._missed:
            self._log.write(
                "joint_nodes",
                nodes=nodes,
                alone=alone,
                joined=[joint.hosts for joint in self._joined],
                missed=self._missed,
                unable=unable,
                hosts=self._rule.hosts,
            )
        self._said, self._joined, self._missed = said, [], []
