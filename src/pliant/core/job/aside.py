"""Nodes that are set aside: what was to start there met a cause of the host.

Owns the memory of it: how often in a row, until when nothing is started there, and why.  Such a
cause (an expired certificate, no descriptor left) says nothing of the script, so it costs no
restart; it may pass by itself or by somebody's hand, so it is tried again, later and later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pliant.core.table import Table
from pliant.core.values import NodeId

FIRST_S = 1.0
"""From the first such start until the next.  Doubles with each in a row."""

LONGEST_S = 60.0
"""The longest pause: a cause that is mended is noticed at most so much later."""

DUE = 0.0
"""A moment that has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """What is remembered of one node."""

    times: int
    since_s: float
    """When the first of these starts failed."""

    again_at_s: float
    """Before this nothing is started there; then one replica."""

    why: str


AsideNodes = Table[NodeId, Aside]


def set_aside(known: AsideNodes, node: NodeId, why: str, now_s: float) -> AsideNodes:
    """Return the memory once a start on a node has failed; those of one moment count once."""
    old = known.get(node)
    if old is not None and old.again_at_s > now_s:
        return known
    times = 1 if old is None else old.times + 1
    again_at_s = now_s + min(LONGEST_S, FIRST_S * 2 ** min(times - 1, 16))
    since_s = now_s if old is None else old.since_s
    return known.put(node, Aside(times=times, since_s=since_s, again_at_s=again_at_s, why=why))


def passed(known: AsideNodes, now_s: float) -> AsideNodes:
    """Return the memory in which what is due says no more since when."""
    for node, one in known.items():
        if DUE < one.again_at_s <= now_s:
            known = known.put(node, replace(one, again_at_s=DUE))
    return known


def lasting(known: AsideNodes, free: Iterable[NodeId], before_s: float) -> Aside | None:
    """Return why nothing starts on any node with room, on each since before a moment; or None."""
    found = [known.get(node) for node in free]
    if not found or any(one is None or one.since_s > before_s for one in found):
        return None
    return found[-1]
