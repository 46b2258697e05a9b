"""What an event cost, from the moments at which steps were finished.

Owns the arithmetic: pause, steps lost, samples behind, normal steps.  Pure; knows nothing of
processes, files or of which system is measured.

    tails:  |    |    |    |   asked  |     |  |          |    |    |    |    |
                             ^last_before    ^last_old    ^first             ^five after
                                                |<-gap--->|  minus a normal step = pause
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.harness import Tail

STEPS_AFTER = 5
"""An event is over five steps after the job has its new size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One event, as seen by one survivor."""

    pause_s: float
    """Gap that ends with the first step at the new size, minus a normal step there."""

    longest_s: float
    """Longest gap from the request to five steps after, minus the longer normal step."""

    wait_s: float
    """Request to the end of the first step at the new size, minus a normal step there."""

    steps_lost: int
    """Steps that were done again."""

    samples_behind: float
    """Samples not committed, from the request to five steps after, at the normal pace."""

    pause_steps: float
    """The pause in normal steps."""


def normal_s(tails: Sequence[Tail]) -> float:
    """Return the median gap between consecutive steps of one survivor."""
    return statistics.median(later.at - earlier.at for earlier, later in pairwise(tails))


def cost(
    tails: Sequence[Tail],
    *,
    asked_at: float,
    first_at: float,
    old_s: float,
    new_s: float,
    batch: int,
) -> Cost:
    """Price one event.

    Args:
        tails: of one survivor, or of the job's first rank, in order of time.
        asked_at: the request, or the kill.
        first_at: end of the first step at the new size.
        old_s: normal step before.
        new_s: normal step after.
        batch: samples per step.
    """
    begin = max(i for i, tail in enumerate(tails) if tail.at <= asked_at)
    first = next(i for i, tail in enumerate(tails) if tail.at >= first_at)
    over = min(first + STEPS_AFTER, len(tails) - 1)
    last_old = tails[first - 1]
    pause_s = tails[first].at - last_old.at - new_s
    gaps = [b.at - a.at for a, b in pairwise(tails[begin : over + 1])]
    expected = (last_old.at - tails[begin].at) / old_s + (tails[over].at - last_old.at) / new_s
    done = max(t.step for t in tails[: over + 1]) - max(t.step for t in tails[: begin + 1])
    return Cost(
        pause_s=pause_s,
        longest_s=max(gaps) - max(old_s, new_s),
        wait_s=tails[first].at - asked_at - new_s,
        steps_lost=max(0, last_old.step + 1 - tails[first].step),
        samples_behind=batch * (expected - done),
        pause_steps=pause_s / new_s,
    )
