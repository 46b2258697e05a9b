"""Replicas that take far longer than the others: how much, and since when.

Owns the memory of it, and from when on it is worth telling.  Replicas find it out themselves, of
the times that they tell each other (``core.step.balance``).  Must not know how, nor what follows.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from pliant.core.table import Table
from pliant.core.values import ReplicaId


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """What is remembered of one that is slow."""

    tenths: int
    """How many times as long it takes as the others, in tenths."""

    since_s: float

    is_told: bool = False
    """It has been slow for so long that people hear of it."""


Slowness = Table[ReplicaId, Slow]


def heard(known: Slowness, name: ReplicaId, tenths: int, now_s: float) -> Slowness:
    """Return the memory once a replica has said how slow it is; 0: not markedly."""
    before = known.get(name)
    if not tenths:
        return known if before is None else known.drop(name)
    if before is None:
        return known.put(name, Slow(tenths=tenths, since_s=now_s))
    return known if before.tenths == tenths else known.put(name, replace(before, tenths=tenths))


def among(known: Slowness, present: Container[ReplicaId]) -> Slowness:
    """Return the memory without those that are gone."""
    return known.drop(*(name for name in known if name not in present))


def told(known: Slowness, now_s: float, after_s: float) -> tuple[Slowness, list[ReplicaId]]:
    """Return the memory in which all are told that are slow for so long, and who is new of them."""
    new = [
        name for name, slow in known.items() if not slow.is_told and slow.since_s + after_s <= now_s
    ]
    for name in new:
        known = known.put(name, replace(known[name], is_told=True))
    return known, new


def times(known: Slowness, now_s: float) -> list[tuple[ReplicaId, float, float]]:
    """Return of whom people hear: who, how many times as long, and for how many seconds so far."""
    return [
        (name, slow.tenths / 10, now_s - slow.since_s)
        for name, slow in sorted(known.items())
        if slow.is_told
    ]
