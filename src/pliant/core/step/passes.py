"""Passes: which slots the workers of one replica compute at the same time.

Owns how the slots of a replica are cut into passes of one slot per shard, and which worker has
which.  Must not know what a slot holds, or what the workers tell each other after a pass.

    7 slots, the sixth behind the end of a short batch, 2 shards

    order    0  1 | 2  3 | 4  5  6
    shard 0  0      2      4
    shard 1     1      3         6        5 is nobody's: absent, added in its turn
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A part of the order of slots; each number in it is a place in that order."""

    places: range
    """In this order their sums are added."""

    computed: tuple[int, ...]
    """Those that hold samples: of the first shard, of the second, ...; at most one per shard."""

    def of_shard(self, shard: int) -> int | None:
        """Return the place that a shard computes; None if nothing in this pass is for it."""
        return self.computed[shard] if shard < len(self.computed) else None


def passes(holds: Sequence[bool], num_shards: int) -> tuple[Pass, ...]:
    """Cut the order of slots into passes; all of them together are the order.

    Args:
        holds: of each place whether its slot holds samples.
        num_shards: slots that are computed at the same time.
    """
    found = []
    start = 0
    computed: list[int] = []
    for place, is_full in enumerate(holds):
        if is_full and len(computed) == num_shards:
            found.append(Pass(places=range(start, place), computed=tuple(computed)))
            start, computed = place, []
        if is_full:
            computed.append(place)
    if start < len(holds):
        found.append(Pass(places=range(start, len(holds)), computed=tuple(computed)))
    return tuple(found)
