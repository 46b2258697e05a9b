"""Nodes on which nothing is started for a while: apart from others, or set aside.

Owns two memories: which nodes could not reach which (R19), and where a start met a cause of the
host.  Both are tried again, later and later.  Such a cause (an expired certificate, no descriptor
left) says nothing of the script, so it costs no restart; it may pass by itself or by somebody's
hand.  Must not know why anything is started, nor what a failure costs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from pliant.core.table import Table
from pliant.core.values import NodeId

APART_FIRST_S = 30.0
"""From when two nodes were found apart until one replica tries again.  Doubles with each in a row;
as long as a group waits for who does not answer."""

APART_LONGEST_S = 600.0
"""The longest pause: a link that is mended is of use again at most so much later."""

ASIDE_FIRST_S = 1.0
"""From the first start that fails on a node until the next.  Doubles with each in a row."""

ASIDE_LONGEST_S = 60.0
"""The longest pause: a cause that is mended is noticed at most so much later."""

DUE = 0.0
"""A moment that has come."""

Pair = tuple[NodeId, NodeId]
"""Two nodes, in the order of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """What is remembered of a node, or of two that could not reach each other."""

    times: int
    """How often in a row."""

    since_s: float
    """When it failed first."""

    again_at_s: float
    """Before this nothing is started there, or on one to train with the other; then one replica."""

    why: str = ""


Apartness = Table[Pair, Pause]
AsideNodes = Table[NodeId, Pause]

Where = TypeVar("Where", NodeId, Pair)


def passed(known: Table[Where, Pause], now_s: float) -> Table[Where, Pause]:
    """Return the memory in which what is due says no more since when."""
    for where, one in known.items():
        if DUE < one.again_at_s <= now_s:
            known = known.put(where, replace(one, again_at_s=DUE))
    return known


def _longer(
    old: Pause | None, now_s: float, first_s: float, longest_s: float, why: str = ""
) -> Pause:
    """Return the pause after another failure."""
    times = 1 if old is None else old.times + 1
    pause_s = min(longest_s, first_s * (1 << min(times - 1, 16)))
    since_s = now_s if old is None else old.since_s
    return Pause(times=times, since_s=since_s, again_at_s=now_s + pause_s, why=why)


# --- nodes that are apart


def pair(one: NodeId, other: NodeId) -> Pair:
    """Return two nodes in order."""
    return (min(one, other), max(one, other))


def found_apart(known: Apartness, pairs: Iterable[Pair], now_s: float) -> Apartness:
    """Return the memory once these pairs were found apart; those of one attempt count once."""
    for one in sorted(set(pairs)):
        longer = _longer(known.get(one), now_s, APART_FIRST_S, APART_LONGEST_S)
        known = known.put(one, longer)
    return known


def met(known: Apartness, nodes: frozenset[NodeId]) -> Apartness:
    """Return the memory once replicas of these nodes have formed a generation together."""
    return known.drop(*(one for one in known if nodes.issuperset(one)))


def without(known: Apartness, node: NodeId) -> Apartness:
    """Return the memory once a node is gone: it may come back with another network."""
    return known.drop(*(one for one in known if node in one))


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


# --- nodes that are set aside


def set_aside(known: AsideNodes, node: NodeId, why: str, now_s: float) -> AsideNodes:
    """Return the memory once a start on a node has failed; those of one moment count once."""
    old = known.get(node)
    if old is not None and old.again_at_s > now_s:
        return known
    return known.put(node, _longer(old, now_s, ASIDE_FIRST_S, ASIDE_LONGEST_S, why))


def lasting(known: AsideNodes, free: Iterable[NodeId], before_s: float) -> Pause | None:
    """Return why nothing starts on any node with room, on each since before a moment; or None."""
    found = [known.get(node) for node in free]
    if not found or any(one is None or one.since_s > before_s for one in found):
        return None
    return found[-1]
