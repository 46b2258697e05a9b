"""What changing the size of a job has cost so far, and what each size is worth.

Owns the measurements and what follows from them: the time of a step at a size nobody has tried,
what a further replica adds, how long capacity must stay so that growing pays.  What was not
measured costs nothing and scales perfectly, so that everything is tried once.  Must not know why
anybody asks, nor the wall clock: moments come in as ``now_s``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median

from pliant.core.table import Table

KEPT = 9
"""Newest measurements of each kind that count: enough for a median that one odd step in two does
not move, few enough to follow a run that gets slower."""

RIPE = 5
"""Steps at a size after which its time is trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measurements in seconds, newest last."""

    step_s: Table[int, tuple[float, ...]] = field(default_factory=Table)
    """Time of a step by number of replicas."""

    pause_s: tuple[float, ...] = ()
    """How much longer the step across a planned change took."""

    start_s: tuple[float, ...] = ()
    """From starting a replica until it could join."""

    usual_step_s: float = 0.0
    """Time of a step at the slowest of the sizes that are known well enough."""

    size: int = 0
    """Replicas that committed the newest step; 0: it says nothing about the next."""

    committed_at: float = 0.0
    """When that was."""

    is_crossing: bool = False
    """A planned change was switched to since."""

    def step_time_s(self, size: int) -> float | None:
        """Return how long a step takes at this size; None until that is known well enough."""
        known = self.step_s.get(size, ())
        return median(known) if len(known) >= RIPE else None

    @property
    def pause_time_s(self) -> float:
        """Return what one change costs those who train."""
        return median(self.pause_s) if self.pause_s else 0.0

    @property
    def start_time_s(self) -> float:
        """Return how long a new replica is no use yet."""
        return median(self.start_s) if self.start_s else 0.0


def committed(costs: Costs, *, size: int, num_steps: int, now_s: float) -> Costs:
    """Take note that so many replicas have committed so many more steps.

    A ``size`` of 0 is of nobody knows how many, and measures nothing.
    """
    spent_s = now_s - costs.committed_at
    after = replace(costs, size=size, committed_at=now_s, is_crossing=False)
    if costs.is_crossing and costs.size and num_steps == 1:
        normal_s = costs.step_time_s(size) or costs.step_time_s(costs.size)
        if normal_s is not None:
            return replace(after, pause_s=_with(costs.pause_s, max(0.0, spent_s - normal_s)))
    elif size and size == costs.size and not costs.is_crossing and num_steps > 0:
        known = _with(costs.step_s.get(size, ()), spent_s / num_steps)
        after = replace(after, step_s=costs.step_s.put(size, known))
        usual_s = max(after.step_time_s(one) or 0.0 for one in after.step_s)
        return replace(after, usual_step_s=usual_s)
    return after


def crossed(costs: Costs) -> Costs:
    """Take note of a planned change: the next step tells what it cost."""
    return replace(costs, is_crossing=True)


def interrupted(costs: Costs) -> Costs:
    """Take note that what comes next is no normal step, nor a planned change."""
    return costs if not costs.size else replace(costs, size=0, is_crossing=False)


def started(costs: Costs, took_s: float) -> Costs:
    """Take note of how long a replica took until it could join."""
    return replace(costs, start_s=_with(costs.start_s, took_s))


def predicted_step_s(costs: Costs, size: int, num_slots: int | None) -> float:
    """Return how long a step takes or would take at this size, from the nearest size known.

    In units of its own where nothing is known: only ratios mean something then.
    """
    if known_s := costs.step_time_s(size):
        return known_s
    ripe = {other: time_s for other in costs.step_s if (time_s := costs.step_time_s(other))}
    if not ripe:
        return share(size, num_slots)
    nearest = min(ripe, key=lambda other: (abs(other - size), other))
    return ripe[nearest] * share(size, num_slots) / share(nearest, num_slots)


def share(size: int, num_slots: int | None) -> float:
    """Return the part of a step that the busiest of so many replicas computes."""
    return 1 / size if num_slots is None else math.ceil(num_slots / size) / num_slots


def is_faster(costs: Costs, now: int, size: int, num_slots: int | None) -> bool:
    """Whether a step would take less time at this size."""
    return predicted_step_s(costs, size, num_slots) < predicted_step_s(costs, now, num_slots)


def marginal_efficiency(costs: Costs, small: int, large: int, num_slots: int | None) -> float:
    """Return what each replica from ``small`` to ``large`` adds, as a share of one of the small."""
    faster = predicted_step_s(costs, small, num_slots) / predicted_step_s(costs, large, num_slots)
    return (faster - 1) / (large / small - 1)


def worthwhile(costs: Costs, sizes: Iterable[int], least: float, num_slots: int | None) -> int:
    """Return the largest of these ascending sizes to which every step up is worth it."""
    best = 0
    for size in sizes:
        if not best or marginal_efficiency(costs, best, size, num_slots) >= least:
            best = size
    return best


def stay_that_pays_s(costs: Costs, now: int, size: int, num_slots: int | None) -> float:
    """Return for how long a growth must last to bring in what it costs; 0 if nothing is known.

    The survivors pause when the new ones join and when they leave, and until a new one is ready
    its device does nothing.  A size that is no faster is taken for the copy of the state that it
    holds, not for speed, and has nothing to bring in.
    """
    if now < 1 or not is_faster(costs, now, size, num_slots):
        return 0.0
    faster = predicted_step_s(costs, now, num_slots) / predicted_step_s(costs, size, num_slots)
    return costs.start_time_s + 2 * costs.pause_time_s / (faster - 1)


def _with(known: tuple[float, ...], value: float) -> tuple[float, ...]:
    return (*known, value)[-KEPT:]
