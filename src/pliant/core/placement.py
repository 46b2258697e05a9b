"""Where the next replica starts, and which one leaves where one too many is as good as another.

Owns what ``spread`` and ``pack`` mean.  Values in, a choice with its reason out.  Must not know
what a job is, nor how many replicas there should be.

A *site* is what replicas are spread over: all nodes whose label has one value.  A node without that
label is a site of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pliant.core.errors import ConfigError
from pliant.core.values import Labels, NodeId

HOST = "host"
"""The label that every node has: its host's name, unless it says otherwise."""


INCREMENT = "increment"
"""The label that says with which increment of the job's capacity a node came: ``base``, ``x1``,
``x2``...  The outside gives and takes whole ones, the highest first, so that is how they are left;
no replica is of two."""


class Placement(StrEnum):
    """Where replicas go."""

    FREE = "free"
    """Where most devices are free; the newest leaves."""

    SPREAD = "spread"
    """Over as many sites as there are, evenly: the loss of one costs as little as may be."""

    PACK = "pack"
    """On as few sites as may be: little travels between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRule:
    """What a job wants; written ``spread`` or, by another label than the host, ``spread:rack``."""

    how: Placement = Placement.FREE
    label: str = HOST
    """By what nodes are of one site."""

    @classmethod
    def of(cls, text: str) -> PlacementRule:
        """Read one.

        Raises:
            ConfigError: it is none.
        """
        how, colon, label = text.partition(":")
        if how not in set(Placement) or bool(colon) != bool(label):
            raise ConfigError(
                f"{text!a:.40} must be one of {', '.join(Placement)}, the last two with the label "
                "to go by if that is not the host, such as spread:rack"
            )
        return cls(how=Placement(how), label=label or HOST)

    def __str__(self) -> str:
        return self.how.value + (f":{self.label}" if self.label != HOST else "")


class Choice(NamedTuple):
    """A node, and why it."""

    node: NodeId
    reason: str
    """Empty: nothing special decided."""


def site_of(node: NodeId, labels: Mapping[NodeId, Labels], label: str) -> str:
    """Return the site that a node is of."""
    return dict(labels.get(node, ())).get(label, node)


def increment_of(labels: Labels) -> int:
    """Return the number of an increment; 0: the base, or no label says."""
    kind, number = (text := dict(labels).get(INCREMENT, ""))[:1], text[1:]
    return int(number) if kind == "x" and number.isdecimal() else 0


def _counts(
    rule: PlacementRule, homes: Iterable[NodeId], labels: Mapping[NodeId, Labels]
) -> tuple[Counter[NodeId], Counter[str]]:
    """Count the replicas of each node, and of each site."""
    here, sites = Counter(homes), Counter[str]()
    for node, count in here.items():
        sites[site_of(node, labels, rule.label)] += count
    return here, sites


def next_home(
    rule: PlacementRule,
    free: Mapping[NodeId, int],
    homes: Iterable[NodeId],
    labels: Mapping[NodeId, Labels],
) -> Choice:
    """Choose where the next replica starts: in the lowest increment that has room.

    Args:
        rule: what is wanted.
        free: nodes on which one can start, with how many; not empty.
        homes: where each replica is that stays.
        labels: of the nodes.
    """
    lowest = min(increment_of(labels.get(node, ())) for node in free)
    free = {node: n for node, n in free.items() if increment_of(labels.get(node, ())) == lowest}
    if rule.how is Placement.FREE:
        return Choice(max(sorted(free), key=lambda node: free[node]), "")
    here, sites = _counts(rule, homes, labels)
    at = {node: site_of(node, labels, rule.label) for node in free}
    room = Counter[str]()
    for node, count in free.items():
        room[at[node]] += count

    def cost(node: NodeId) -> tuple[int, int, int, int]:
        site = at[node]
        if rule.how is Placement.SPREAD:
            return sites[site], here[node], -room[site], -free[node]
        return -sites[site], -room[site], -here[node], -free[node]

    node = min(sorted(free), key=cost)
    extreme = "fewest" if rule.how is Placement.SPREAD else "most"
    is_labelled = rule.label in dict(labels.get(node, ()))
    name = f"{rule.label} {at[node]}" if is_labelled else f"node {node}, without a {rule.label},"
    return Choice(node, f"{name} has {extreme} of those with room")


def next_leaver(
    rule: PlacementRule,
    candidates: Sequence[NodeId],
    homes: Iterable[NodeId],
    labels: Mapping[NodeId, Labels],
) -> int:
    """Choose which of several replicas leaves, the job caring for none of them more; its index.

    Args:
        rule: what is wanted.
        candidates: where each of them is, the newest first.
        homes: where each replica is that has not left yet, these included.
        labels: of the nodes.
    """
    if rule.how is Placement.FREE:
        return 0
    sign = -1 if rule.how is Placement.SPREAD else 1
    here, sites = _counts(rule, homes, labels)

    def cost(index: int) -> tuple[int, int, int]:
        node = candidates[index]
        return sign * sites[site_of(node, labels, rule.label)], sign * here[node], index

    return min(range(len(candidates)), key=cost)


def next_mover(
    rule: PlacementRule,
    candidates: Sequence[NodeId],
    homes: Iterable[NodeId],
    free: Mapping[NodeId, int],
    labels: Mapping[NodeId, Labels],
) -> int | None:
    """Choose which of several replicas, none of which has begun, is to start anew elsewhere.

    Returns its index; None: all are as well where they are.  Arguments as of the others.
    """
    if rule.how is not Placement.SPREAD or not candidates or not free:
        return None
    homes = tuple(homes)
    index = next_leaver(rule, candidates, homes, labels)
    before, (here, sites) = candidates[index], _counts(rule, homes, labels)
    after = next_home(rule, free, homes, labels).node
    out, into = (site_of(node, labels, rule.label) for node in (before, after))
    gains = sites[out] > sites[into] + 1 if out != into else here[before] > here[after] + 1
    return index if gains else None
