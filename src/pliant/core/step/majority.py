"""Majority: which of several values that ought to be equal are wrong.

Owns the vote over digests of a state.  Must not know what was digested, nor what follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence


def minority(values: Sequence[Hashable]) -> tuple[int, ...] | None:
    """Return the places of the values that differ from what more than half are.

    Empty if all are equal; None if no value is that of more than half: with two that differ nobody
    can say which is right.
    """
    common, count = Counter(values).most_common(1)[0]
    if 2 * count <= len(values):
        return None
    return tuple(place for place, value in enumerate(values) if value != common)
