"""Which nodes could not reach which, and when that is tried again (R19).

Owns the memory of it: of each pair of nodes how often it was found apart, and until when nothing is
started across it.  Must not know why anything is started, nor what a failure costs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from pliant.core.table import Table
from pliant.core.values import NodeId

FIRST_S = 30.0
"""From when two nodes were found apart until one replica tries again.  Doubles with each in a row;
as long as a group waits for who does not answer."""

LONGEST_S = 600.0
"""The longest pause: a link that is mended is of use again at most so much later."""

DUE = 0.0
"""A moment that has come."""

Pair = tuple[NodeId, NodeId]
"""Two nodes, in the order of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """What is remembered of two nodes that could not reach each other."""

    times: int
    """How often in a row."""

    again_at_s: float
    """Before this nothing is started on one of them to train with the other; then one replica."""


Apartness = Table[Pair, Apart]


def pair(one: NodeId, other: NodeId) -> Pair:
    """Return two nodes in order."""
    return (min(one, other), max(one, other))


def found(known: Apartness, pairs: Iterable[Pair], now_s: float) -> Apartness:
    """Return the memory once these pairs were found apart; those of one attempt count once."""
    for one in sorted(set(pairs)):
        times = known[one].times + 1 if one in known else 1
        pause_s = min(LONGEST_S, FIRST_S * 2 ** min(times - 1, 16))
        known = known.put(one, Apart(times=times, again_at_s=now_s + pause_s))
    return known


def met(known: Apartness, nodes: frozenset[NodeId]) -> Apartness:
    """Return the memory once replicas of these nodes have formed a generation together."""
    return known.drop(*(one for one in known if nodes.issuperset(one)))


def without(known: Apartness, node: NodeId) -> Apartness:
    """Return the memory once a node is gone: it may come back with another network."""
    return known.drop(*(one for one in known if node in one))


def passed(known: Apartness, now_s: float) -> Apartness:
    """Return the memory in which what is due says no more since when."""
    for one, apart in known.items():
        if DUE < apart.again_at_s <= now_s:
            known = known.put(one, replace(apart, again_at_s=DUE))
    return known


def again_at_s(known: Apartness, company: Container[NodeId]) -> dict[NodeId, float]:
    """Return when each node may be tried with this company that something is against.

    By the pairs that are known, which are few: a thousand nodes have half a million.
    """
    moments: dict[NodeId, float] = {}
    for (one, other), apart in known.items():
        for node, met_there in ((one, other), (other, one)):
            if met_there in company:
                moments[node] = max(moments.get(node, DUE), apart.again_at_s)
    return moments


def pauses(known: Apartness, now_s: float) -> list[tuple[Pair, int, float | None]]:
    """Return each pair, how often it was found apart, and in how many seconds it may be tried."""
    return [
        (one, known[one].times, known[one].again_at_s - now_s if known[one].again_at_s else None)
        for one in sorted(known)
    ]
