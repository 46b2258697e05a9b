"""How often something took how long, as a histogram in bounded memory.

Owns the counting.  Knows nothing of what was measured, nor of how it is shown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

JOB_BOUNDS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Of steps, pauses, saves and restores: from a small model on one host to a large one."""


@dataclass(slots=True)
class Durations:
    """Of one kind of thing, in seconds."""

    bounds_s: tuple[float, ...] = JOB_BOUNDS_S
    counts: list[int] = field(default_factory=list)
    """One for each bound, and one for what is beyond; empty: nothing was counted."""

    sum_s: float = 0.0

    def note(self, took_s: float) -> None:
        """Count one."""
        if not self.counts:
            self.counts = [0] * (len(self.bounds_s) + 1)
        self.counts[bisect_left(self.bounds_s, took_s)] += 1
        self.sum_s += took_s

    def buckets(self) -> list[tuple[str, float]]:
        """Return how many were at most as long as each bound, the last of which is ``+Inf``."""
        names = [*map(str, self.bounds_s), "+Inf"]
        counts = self.counts or [0] * len(names)
        return [(name, float(sum(counts[: i + 1]))) for i, name in enumerate(names)]


def durations_of(all_s: Iterable[float]) -> Durations:
    """Count all of these."""
    found = Durations()
    for one_s in all_s:
        found.note(one_s)
    return found
