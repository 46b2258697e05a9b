"""Positions: where each slot of a replica stands in its sums.

Owns the order in which slots are computed and merged, of the tree alone.  Must not know gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.core.step.batching import Node, merge_plan


@dataclass(slots=True, eq=False)
class Position:
    """Where one slot stands in this replica's sums; computed from the tree."""

    slot: int
    merges: int
    part: int
    is_last_of_part: bool
    is_last: bool = False


def positions(nodes: Sequence[Node]) -> list[Position]:
    """Return the slots of these maximal subtrees in the order in which to compute them."""
    found: list[Position] = []
    for part, node in enumerate(nodes):
        visits = merge_plan(node)
        found += [
            Position(visit.slot, visit.merges, part, number == len(visits))
            for number, visit in enumerate(visits, start=1)
        ]
    found[-1].is_last = True
    return found
