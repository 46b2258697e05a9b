"""The arithmetic of ``benchmarks.checkpoint``: from what workers hand in to figures.

Owns how the ranks of a side are combined and what a measure is called.  Pure; must not know how
anything was run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Figure

Record = Mapping[str, Any]

FIRST = "pliant"
"""The side that is compared with the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of one side, its ranks combined: the slowest for times, the sum for CPU time."""

    step_s: float
    """Median of the steps while nothing was written."""

    stalls_s: tuple[float, ...]
    """Time that the training thread was blocked, per save."""

    copies_s: tuple[float, ...]
    """Of that, the copy out of the parameters."""

    beyond_s: tuple[float, ...]
    """The rest of the stalls, of the rank where it is longest."""

    still_s: float
    """Snapshot to durable while nothing else ran."""

    moving_s: float | None
    """The same while steps went on, if they did."""

    cpu_s: float
    """CPU time of the still save."""

    slower_s: float
    """By how much the steps during the moving save were longer, summed."""

    slower_steps: int
    """How many steps that were: all that began before it was durable."""

    extra_bytes: int
    """Most memory of a replica beyond that of its steps before the first save."""


def turn_of(
    still: Sequence[Record],
    whole: Sequence[Record],
    *,
    durable_s: Mapping[int, float] | None = None,
) -> Turn:
    """Combine what the ranks of a side handed in for one turn.

    Args:
        still: at the rest after the first save, by rank.
        whole: at the end of the turn.
        durable_s: snapshot to durable by committed steps, where the side tells it itself.
    """
    laps = [
        (max(lap[0] for lap in ranks), any(lap[1] for lap in ranks))
        for ranks in zip(*(record["laps"] for record in whole), strict=True)
    ]
    step_s = statistics.median(seconds for seconds, is_writing in laps if not is_writing)
    during = [seconds for seconds, is_writing in laps if is_writing]
    saves = list(zip(*(record["saves"] for record in whole), strict=True))
    numbers = [ranks[0]["committed"] for ranks in saves]
    still_s, moving_s = max(record["wall_s"] for record in still), None
    if durable_s is not None:
        still_s, moving_s = durable_s[numbers[0]], durable_s[numbers[1]]
    return Turn(
        step_s=step_s,
        stalls_s=tuple(max(save["stall_s"] for save in ranks) for ranks in saves),
        copies_s=tuple(max(save["copy_s"] for save in ranks) for ranks in saves),
        beyond_s=tuple(max(save["stall_s"] - save["copy_s"] for save in ranks) for ranks in saves),
        still_s=still_s,
        moving_s=moving_s,
        cpu_s=sum(record["cpu_s"] for record in still),
        slower_s=sum(during) - len(during) * step_s,
        slower_steps=len(during),
        extra_bytes=max(record["extra_bytes"] for record in whole),
    )


def _each(turns: Iterable[Turn], values: Callable[[Turn], Iterable[float]]) -> tuple[float, ...]:
    return tuple(value for turn in turns for value in values(turn))


def figures_of(
    case: str,
    turns: Mapping[str, Sequence[Turn]],
    restores_s: Mapping[str, Sequence[float]],
    *,
    claim_bytes: float,
) -> Iterable[Figure]:
    """Yield the rows of one case.

    Args:
        case: what the rows begin with.
        turns: by side.
        restores_s: seconds by side.
        claim_bytes: what the documentation says that pliant needs in memory.
    """
    for side, done in turns.items():
        name, ours = f"{case}: {side}", side == FIRST
        yield _row(f"{name}: stall", "ms", _each(done, lambda t: (s * 1e3 for s in t.stalls_s)))
        if ours:
            copies = _each(done, lambda t: (s * 1e3 for s in t.copies_s))
            beyond = _each(done, lambda t: (100 * s / t.step_s for s in t.beyond_s))
            yield _row(f"{name}: copy in the stall", "ms", copies)
            yield _row(f"{name}: stall beyond the copy, of a step", "%", beyond, "< 5", "< 5")
        yield _row(f"{name}: save, nothing beside it", "s", (t.still_s for t in done))
        if ours:
            moving = (t.moving_s for t in done if t.moving_s is not None)
            yield _row(f"{name}: save, steps beside it", "s", moving)
        yield _row(f"{name}: CPU time of a save", "s", (t.cpu_s for t in done))
        yield _row(f"{name}: restore", "s", restores_s[side])
        if slowed := [turn for turn in done if turn.slower_steps]:
            over = (1 + t.slower_s / t.slower_steps / t.step_s for t in slowed)
            yield _row(f"{name}: step while a save is written, over a quiet one", "", over)
            lost = (t.slower_s for t in slowed)
            yield _row(f"{name}: training time lost to the writing of a save", "s", lost)
        extra, limit = (t.extra_bytes / 1e6 for t in done), f"<= {claim_bytes / 1e6:.0f}"
        yield _row(f"{name}: extra memory of a replica", "MB", extra, limit if ours else "")
        yield _row(f"{name}: quiet step", "s", (t.step_s for t in done))
    yield from ratios_of(case, turns, restores_s)


def ratios_of(
    case: str, turns: Mapping[str, Sequence[Turn]], restores_s: Mapping[str, Sequence[float]]
) -> Iterable[Figure]:
    """Yield pliant over each other side, block by block."""
    ours = turns.get(FIRST, ())
    for side in (side for side in turns if side != FIRST):
        pairs = list(zip(ours, turns[side], strict=True))
        name = f"{case}: pliant over {side}"
        stalls = [(statistics.median(a.stalls_s), statistics.median(b.stalls_s)) for a, b in pairs]
        restores = zip(restores_s.get(FIRST, ()), restores_s[side], strict=True)
        yield _row(f"{name}: stall", "", (a / b for a, b in stalls))
        yield _row(f"{name}: save", "", (a.still_s / b.still_s for a, b in pairs))
        yield _row(f"{name}: CPU time of a save", "", (a.cpu_s / b.cpu_s for a, b in pairs))
        yield _row(f"{name}: restore", "", (a / b for a, b in restores))


def _row(name: str, unit: str, raw: Iterable[float], target: str = "", goal: str = "") -> Figure:
    return Figure(name=name, unit=unit, raw=tuple(raw), target=target, goal=goal)
