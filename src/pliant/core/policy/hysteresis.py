"""When a voluntary change may be made: what keeps a job from following every whim of its capacity.

Owns what is remembered of past changes and of the capacity that came and went, and each wait that
follows from it.  Every wait ends at a moment that can be named at once.  Must not know which size
is wanted nor why; reclaims, losses and wishes do not come here at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from pliant.core.policy.costs import Costs, stay_that_pays_s
from pliant.core.policy.fields import Policy
from pliant.core.text import counted

HOUR_S = 3600.0

STAYS = 5
"""How often capacity must have come and gone to be forgotten: the median of so many counts."""

FALLS = 32
"""Falls of capacity that are kept: more than ``STAYS``, as not each of them concerns each size."""

RISES = 16
"""Levels of capacity whose age is kept; more would only tell apart what came at nearly one time."""

Rise = tuple[int, float]
"""A number of replicas, and since when there was room for as many all the time."""

Fall = tuple[tuple[int, float], ...]
"""One fall of capacity: above how many replicas room went that had lasted how long.  Both ascend
and descend, in this order; the first number is what was left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the policy remembers; moments are monotonic seconds."""

    settled: int | None = None
    """The size that was decided on: a replacement may come at once up to it.  None: not yet."""

    changed_at: tuple[float, ...] = ()
    """Voluntary changes that still matter, oldest first."""

    backoff_level: int = 0
    """Voluntary changes that followed each other."""

    restarted_at: float | None = None
    """When this coordinator, or the job from a checkpoint, began in the middle of a run."""

    lost_at: float | None = None
    """When a loss took capacity that was in use, if the job still waits for a replacement."""

    rises: tuple[Rise, ...] = ()
    """Since when there was room for how many, both ascending."""

    falls: tuple[Fall, ...] = ()
    """How long capacity had stayed whenever some of it went, newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Until when a change is held back, and why; the words do not change while it lasts."""

    until_s: float
    why: str


def restarted(*, now_s: float, num_changes: int = 0, backoff_level: int = 0) -> Pace:
    """Return what is safe to assume after a restart: all that had been done was done just now."""
    changed_at = (now_s,) * num_changes
    return Pace(restarted_at=now_s, changed_at=changed_at, backoff_level=backoff_level)


def lost(pace: Pace, now_s: float) -> Pace:
    """Take note that a loss took capacity."""
    return pace if pace.lost_at is not None else replace(pace, lost_at=now_s)


def watched(pace: Pace, capacity: int, now_s: float) -> Pace:
    """Take note of the capacity there is now."""
    rises = pace.rises
    if not rises or capacity > rises[-1][0]:
        return replace(pace, rises=(*rises, (capacity, now_s))[-RISES:])
    if capacity == rises[-1][0]:
        return pace
    gone = [rise for rise in rises if rise[0] > capacity]
    kept = tuple(rise for rise in rises if rise[0] <= capacity)
    if not kept or kept[-1][0] < capacity:
        kept = (*kept, (capacity, gone[0][1]))
    left = (capacity, *(level for level, _ in gone))
    fall = tuple((above, now_s - since_s) for above, (_, since_s) in zip(left, gone, strict=False))
    return replace(pace, rises=kept, falls=(*pace.falls, fall)[-FALLS:])


def changed(pace: Pace, policy: Policy, now_s: float) -> Pace:
    """Take note of a voluntary change."""
    last_s = pace.changed_at[-1] if pace.changed_at else None
    reset_s = policy.backoff.reset_after_s if policy.backoff else HOUR_S
    is_first = last_s is None or now_s - last_s >= reset_s
    recent = tuple(moment for moment in pace.changed_at if moment > now_s - HOUR_S)
    kept = policy.max_scale_events_per_hour or 1
    return replace(
        pace,
        changed_at=(*recent, now_s)[-kept:],
        backoff_level=1 if is_first else pace.backoff_level + 1,
    )


def rest(pace: Pace, policy: Policy) -> Iterator[Wait]:
    """Yield what any voluntary change must wait for, over or not."""
    if pace.changed_at:
        last_s = pace.changed_at[-1]
        if policy.min_stability_period_s:
            period_s = policy.min_stability_period_s
            why = f"the last change is not {period_s:g} s ago (minStabilityPeriodInSeconds)"
            yield Wait(until_s=last_s + period_s, why=why)
        if policy.backoff is not None:
            wait_s = policy.backoff.wait_s(pace.backoff_level)
            changes = counted(pace.backoff_level, "change")
            why = f"after {changes} in a row the next waits {wait_s:g} s (backoff)"
            yield Wait(until_s=last_s + wait_s, why=why)
    limit = policy.max_scale_events_per_hour
    if limit is not None and len(pace.changed_at) >= limit:
        changes = f"{counted(limit, 'change')} {'was' if limit == 1 else 'were'}"
        why = f"{changes} made within {HOUR_S:g} s (maxScaleEventsPerHour)"
        yield Wait(until_s=pace.changed_at[-limit] + HOUR_S, why=why)


def before_growth(pace: Pace, policy: Policy, size: int) -> Iterator[Wait]:
    """Yield what growth must wait for, of which this is the smallest allowed size."""
    yield from rest(pace, policy)
    if policy.scaling_timeout_s:
        timeout_s = policy.scaling_timeout_s
        why = f"more may come within {timeout_s:g} s of the first (scalingTimeoutInSeconds)"
        yield Wait(until_s=_since_s(pace, size) + timeout_s, why=why)
    if policy.scale_up_snooze_time_s and pace.restarted_at is not None:
        snooze_s = policy.scale_up_snooze_time_s
        why = f"the restart is not {snooze_s:g} s ago (scaleUpSnoozeTimeInSeconds)"
        yield Wait(until_s=pace.restarted_at + snooze_s, why=why)


def until_it_pays(
    pace: Pace, costs: Costs, base: int, size: int, num_slots: int | None, *, now_s: float
) -> Wait | None:
    """Return the wait until growth to this size is expected to pay; None if it is already.

    Room for this size is expected to stay as long as it did of late, and what has been there for
    longer than that as long again as it has been.
    """
    stays = _stays(pace, size)
    if not stays:
        return None
    usual_s, since_s = median(stays), _since_s(pace, size)
    needed_s = stay_that_pays_s(costs, base, size, num_slots)
    if now_s - since_s < usual_s - needed_s:
        return None
    why = (
        f"a start takes {costs.start_time_s:.3g} s and a change {costs.pause_time_s:.3g} s, and "
        f"room for {size} stayed for {usual_s:.3g} s of late: it must have been there for "
        f"{needed_s:.3g} s (amortization)"
    )
    return Wait(until_s=since_s + needed_s, why=why)


def _since_s(pace: Pace, level: int) -> float:
    """Return since when there was room for so many."""
    return next((since_s for room, since_s in pace.rises if room >= level), 0.0)


def _stays(pace: Pace, size: int) -> list[float]:
    """Return how long there was room for this size before each of the last falls below it.

    Where there was not even room for it, how long there was for the most: it would not have stayed
    for longer.  What goes above it while it stays says nothing about it.
    """
    below = [fall for fall in pace.falls if fall[0][0] < size][-STAYS:]
    return [next(stay_s for above, stay_s in reversed(fall) if above < size) for fall in below]
