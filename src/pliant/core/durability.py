"""When a run's state is made durable: intervals, what a loss costs, and trying again.

Owns the arithmetic of the interval between checkpoints.  Knows nothing of storage or state: who
writes says when it did and what that cost.

    every="500steps"    after each 500 committed steps
    every="10min"       at the first boundary after 10 minutes (s, min, h)
    every="auto"        sqrt(2 * cost of a save * time between losses), J. W. Young 1974; see
                        ``auto_interval_s`` for what is measured and within which bounds
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from pliant.core.errors import ConfigError
from pliant.core.text import seconds_of

AUTO_MIN_S, AUTO_MAX_S = 15.0, 3600.0
"""Bounds of an automatic interval, in seconds: more often, and its own measurements disturb each
other; more rarely, and a loss costs more than an hour whatever the formula says."""

ASSUMED_LOSS_S = 24 * 3600.0
"""What counts beside the losses seen: one loss a day, so that a run without any has an interval."""

LEAVE_S = 60.0
"""How long a worker asks for leave to publish one checkpoint, in seconds; as long the coordinator
counts on a worker that has asked."""

ASSUMED_COST_S = 1.0
"""What a save is taken to cost before the first was measured, in seconds."""

RETRY_S, MAX_RETRY_S = 1.0, 60.0
"""Wait after the first failure, and the longest; doubled from one to the next, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """How often to save: exactly one of the two, or neither for ``auto``."""

    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the writer of checkpoints knows that bears on the next one; a plain value."""

    began_s: float
    """When it began to count, in monotonic seconds."""

    kept: int = 0
    """Committed steps of the newest durable checkpoint, or of the start."""

    kept_at_s: float
    """When its snapshot was taken."""

    cost_s: float = ASSUMED_COST_S
    """What a save cost the training: the time it was blocked and that by which it was slower."""

    losses: int = 0
    """Members lost since ``began_s``."""

    failures: int = 0
    """Saves that failed since the last that did not."""

    retry_at_s: float = -math.inf
    """Not before this moment."""

    is_owed: bool = False
    """A save was given up for no fault of the storage's: take the next boundary."""


def parse_interval(text: str) -> Interval:
    """Read ``500steps``, ``10min``, ``90s``, ``2h`` or ``auto``.

    Raises:
        ConfigError: it is none of these, or not above 0.
    """
    if text == "auto":
        return Interval()
    if found := re.fullmatch(r"([1-9]\d*)\s*steps?", text.strip()):
        return Interval(steps=int(found[1]))
    if seconds := seconds_of(text):
        return Interval(seconds=seconds)
    raise ConfigError(
        f"every={text!r} is no interval; write a number and a unit, as in '10min', '90s', '2h' or "
        "'500steps', or 'auto'"
    )


def is_due(
    interval: Interval, progress: Progress, committed: int, *, now_s: float, asked_after: int = -1
) -> bool:
    """Whether the state after ``committed`` steps is to be saved.  Pure.

    ``asked_after``: someone wants a checkpoint of more steps than this; -1: nobody does.
    """
    if committed <= progress.kept or now_s < progress.retry_at_s:
        return False
    if progress.is_owed or progress.failures or progress.kept <= asked_after < committed:
        return True
    if interval.steps is not None:
        return committed // interval.steps > progress.kept // interval.steps
    wait_s = interval.seconds
    if wait_s is None:
        wait_s = auto_interval_s(progress, now_s=now_s)
    return now_s - progress.kept_at_s >= wait_s


def loss_interval_s(progress: Progress, *, now_s: float) -> float:
    """Return the expected time between losses: those seen, and one a day beside them."""
    return (now_s - progress.began_s + ASSUMED_LOSS_S) / (progress.losses + 1)


def auto_interval_s(progress: Progress, *, now_s: float) -> float:
    """Return the interval at which saving and repeating steps together cost least.

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval",
    Communications of the ACM 17 (1974).  Daly's higher orders differ by less than a save costs.
    """
    best_s = math.sqrt(2 * progress.cost_s * loss_interval_s(progress, now_s=now_s))
    return min(max(best_s, AUTO_MIN_S), AUTO_MAX_S)


def explain(interval: Interval, progress: Progress, *, now_s: float) -> str:
    """Say in one sentence how often there will be a checkpoint, and why."""
    if interval.steps is not None:
        return f"a checkpoint every {interval.steps} steps, as asked"
    if interval.seconds is not None:
        return f"a checkpoint every {interval.seconds:g} s, as asked"
    wait_s = auto_interval_s(progress, now_s=now_s)
    between_h = loss_interval_s(progress, now_s=now_s) / 3600
    losses = "1 loss" if progress.losses == 1 else f"{progress.losses} losses"
    return (
        f"a checkpoint every {wait_s:.0f} s: a save costs {progress.cost_s:.2g} s of training, and "
        f"with {losses} in {(now_s - progress.began_s) / 60:.0f} min, and one a day assumed beside "
        f"them, one is expected every {between_h:.3g} h"
    )


def nothing_to_do(committed: int) -> str:
    """Say that a run whose checkpoint is of its last step has trained nothing, and what to do."""
    return (
        f"already finished ({committed} steps), and the script runs what stands behind its loop "
        "again; to train longer, raise the step count; to begin anew, take --from-checkpoint never "
        "or another place"
    )


def kept(progress: Progress, committed: int, *, at_s: float) -> Progress:
    """Take note of a checkpoint that is durable; ``at_s``: when its snapshot was taken."""
    return replace(
        progress,
        kept=max(committed, progress.kept),
        kept_at_s=at_s,
        failures=0,
        retry_at_s=-math.inf,
        is_owed=False,
    )


def failed(progress: Progress, *, now_s: float) -> tuple[Progress, float]:
    """Take note of a save that the storage refused; return how long to wait as well."""
    wait_s = min(RETRY_S * 2**progress.failures, MAX_RETRY_S)
    return replace(progress, failures=progress.failures + 1, retry_at_s=now_s + wait_s), wait_s


def lost(progress: Progress, *, was_saving: bool) -> Progress:
    """Take note that a member was lost; a save that was under way is owed."""
    return replace(progress, losses=progress.losses + 1, is_owed=progress.is_owed or was_saving)


def unprotected_s(progress: Progress, *, now_s: float) -> float:
    """Return for how long nothing of what was trained has become durable, if saves fail."""
    return now_s - progress.kept_at_s if progress.failures else 0.0
