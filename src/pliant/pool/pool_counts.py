"""What a pool has done since it was started, counted from its log.

Owns which kinds of records are counted.  Knows nothing of who asks for the numbers.
"""

from __future__ import annotations

from collections import Counter

from pliant.observe.log import Record

COUNTED = {
    "grant": "grants",
    "shrink": "shrinks",
    "suspend": "suspensions",
    "refuse": "refusals",
    "ended": "ended_devices",
    "not_ended": "kept_devices",
}
"""Kinds of records that are counted, and what their numbers are called."""


class PoolCounts:
    """Counts what a pool does, from its log; a listener of it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))

    def __call__(self, record: Record) -> None:
        """Count a record."""
        kind = str(record.get("kind"))
        if kind in COUNTED:
            self.counts[kind] += 1
