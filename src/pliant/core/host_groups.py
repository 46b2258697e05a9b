"""Which hosts become one node, where a replica does not fit on one of them.

Owns who is joined with whom, and when those are tried again that did not reach each other.  Values
in, values out; must not know how a host says that it is alone, nor how it is told with whom it
is joined.  Docs: decision 19.

Hosts that come at the same moment are looked at together, so that those of one rack find each
other.  A pair that has failed is left alone for a while that doubles, and never for good: links are
mended, and whoever was late may be in time the next time.  Of each two of a node the later one
connects to the earlier, and the head is the first; who has failed is the other one the next time,
as a firewall may let connections through one way only.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pliant.core.placement import HOST, Placement, PlacementRule, increment_of
from pliant.core.values import Labels, NodeId

SETTLE_S = 1.0
"""So long nobody else must have come before hosts are joined, in seconds: agents that are started
together come within a few tenths."""

MOST_SETTLE_S = 5.0
"""So long hosts wait at most while others go on coming, in seconds."""

FIRST_PAUSE_S, MOST_PAUSE_S = 5.0, 300.0
"""How long two are not joined that failed once, and at most, in seconds."""

STEADY_S = MOST_PAUSE_S
"""After so long as one node, in seconds, what failed before does not count any more."""


MOST_TRIED = 1_000
"""Sets of hosts that are tried for one host at most, where many pairs are apart."""


class NodeHosts(NamedTuple):
    """Hosts that are to be one node."""

    head: NodeId
    parts: tuple[NodeId, ...]

    @property
    def hosts(self) -> tuple[NodeId, ...]:
        """All of them."""
        return (self.head, *self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoneHost:
    """A host that is part of no node."""

    node: NodeId
    devices: int
    since_s: float
    labels: Labels = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRule:
    """What a job needs."""

    hosts: int
    """Of one node."""

    workers: int
    """Of one replica, divided evenly over the hosts of its node."""

    label: str | None = None
    """By which hosts are near each other, as ``rack``; None: all are alike."""

    @classmethod
    def of(cls, placement: PlacementRule, *, hosts: int, workers: int) -> GroupRule:
        """Return the rule of a job: what its replicas are spread or packed by is what is near."""
        is_by_host = placement.how is Placement.FREE or placement.label == HOST
        return cls(hosts=hosts, workers=workers, label=None if is_by_host else placement.label)

    def room(self, devices: int) -> int:
        """Return of how many replicas a host with so many devices takes its part."""
        return devices // (self.workers // self.hosts)


@dataclass(frozen=True, slots=True)
class PairTry:
    """How often in a row two hosts were to be of one node, and were not."""

    times: int = 0
    until_s: float = -math.inf
    """Before that they are not joined."""

    is_open: bool = False
    """They were told to be one, and it is not heard that they are not."""

    awaits: NodeId | None = None
    """Which of them was to be reached by the other one then."""

    joined_s: float | None = None
    """Since when they are one."""


Pair = frozenset[NodeId]
PairTries = Mapping[Pair, PairTry]


def opened(
    tries: PairTries, joint: NodeHosts, *, joined_s: float | None = None
) -> dict[Pair, PairTry]:
    """Return what is known of pairs once these hosts are told to be one, or are (``joined_s``).

    Of each two the earlier awaits the later.
    """
    found = dict(tries)
    for one, other in itertools.combinations(joint.hosts, 2):
        known = tries.get(pair := frozenset((one, other)), PairTry())
        found[pair] = replace(known, is_open=True, awaits=one, joined_s=joined_s)
    return found


def failed(
    tries: PairTries, node: NodeId, missed: Iterable[NodeId], *, now_s: float
) -> dict[Pair, PairTry]:
    """Return what is known of pairs once a host has said with whom it is not one.

    Both say so of one attempt, and again on each new connection: the first time counts.
    """
    found = dict(tries)
    for pair in (frozenset((node, other)) for other in missed if other != node):
        known = found.get(pair, PairTry(is_open=True))  # told by a coordinator before
        if known.is_open:
            is_steady = known.joined_s is not None and now_s - known.joined_s >= STEADY_S
            times = 0 if is_steady else known.times
            pause_s = min(FIRST_PAUSE_S * 2.0 ** min(times, 30), MOST_PAUSE_S)
            found[pair] = PairTry(times + 1, now_s + pause_s, awaits=known.awaits)
    return found


def without(tries: PairTries, host: NodeId) -> dict[Pair, PairTry]:
    """Return what is known of pairs but for those of a host that is gone, or has begun anew."""
    return {pair: one for pair, one in tries.items() if host not in pair}


def next_look_s(lone: Iterable[LoneHost], tries: PairTries, *, looked_s: float) -> float:
    """Return when hosts may be joined that were not when it was looked last."""
    known = {one.node: one.since_s for one in lone}
    new = [since_s for since_s in known.values() if since_s >= looked_s]
    settled_s = [min(max(new) + SETTLE_S, min(new) + MOST_SETTLE_S)] if new else []
    lapses = [one.until_s for pair, one in tries.items() if pair <= known.keys()]
    return min([*settled_s, *(at_s for at_s in lapses if at_s > looked_s)], default=math.inf)


def host_groups(
    lone: Iterable[LoneHost], tries: PairTries, rule: GroupRule, *, now_s: float
) -> tuple[NodeHosts, ...]:
    """Choose which hosts become one node now: those of one site first, then any, by name; never of
    two increments.

    What a host has more than the others of its node lies idle.  A host without room for its part
    of one replica is left out.
    """
    left = [one for one in lone if rule.room(one.devices) > 0]
    apart = {pair for pair, one in tries.items() if now_s < one.until_s}
    found: list[NodeHosts] = []
    for is_by_site in (True, False):
        groups: dict[tuple[str, int], list[NodeId]] = {}
        for one in left:
            site = _site(one, rule) if is_by_site else ""
            groups.setdefault((site, increment_of(one.labels)), []).append(one.node)
        for nodes in groups.values():
            found += [_headed(hosts, tries) for hosts in _sets_of(nodes, rule.hosts, apart)]
        taken = {node for joint in found for node in joint.hosts}
        left = [one for one in left if one.node not in taken]
    return tuple(sorted(found))


def _site(one: LoneHost, rule: GroupRule) -> str:
    return dict(one.labels).get(rule.label, one.node) if rule.label else ""


def _sets_of(nodes: Iterable[NodeId], count: int, apart: set[Pair]) -> Iterator[list[NodeId]]:
    """Iterate over disjoint sets of so many hosts, no two of one set apart."""
    left = sorted(nodes)
    while len(left) >= count:
        first, *others = left
        tried = itertools.islice(itertools.combinations(others, count - 1), MOST_TRIED)
        sets = ([first, *chosen] for chosen in tried)
        found = next((hosts for hosts in sets if not _has_pair_of(hosts, apart)), None)
        if found is not None:
            yield found
        left = [node for node in others if found is None or node not in found]


def _has_pair_of(hosts: Sequence[NodeId], apart: set[Pair]) -> bool:
    return any(frozenset(pair) in apart for pair in itertools.combinations(hosts, 2))


def _headed(hosts: Iterable[NodeId], tries: PairTries) -> NodeHosts:
    """Make a node of hosts: those who were to be reached when they failed are to reach others."""
    named = set(hosts)
    tried = Counter(one.awaits for pair, one in tries.items() if one.times and pair <= named)
    head, *parts = sorted(named, key=lambda node: (tried[node], node))
    return NodeHosts(head, tuple(parts))
