"""How much of the wall time trained: goodput, downtime and where it went.

Owns the accounting.  Time is by the log's clock (``reading.LogClock``) and runs from the first
record of a job to its last one; the start is the time to the first commit, downtime the part of
every gap between commits that exceeds the median step of that size, where the gap crosses a change
of generation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pliant.observe.log import CONTINUED, Record, number
from pliant.observe.timeline import Commit, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Seconds are by the log's clock; ``goodput`` is committed samples per second of wall time."""

    wall_s: float
    start_s: float
    """From the start of the job to its first commit; the whole time if there is none."""

    downtime_s: float
    """Time in which no step progressed because of a resize, summed; without the start."""

    committed_steps: int
    committed_samples: int
    goodput: float
    """Committed samples per second of wall time."""

    productive: float
    """Share of the wall time that was neither start nor downtime, 0 to 1."""

    is_partial: bool = False
    """The log's first parts are gone: all this is of the time that is left, without the start."""


def goodput_of(records: Iterable[Record]) -> Goodput:
    """Account for a whole log, or for what is left of it, in memory that steps do not grow."""
    timeline, steps = Timeline(), _Steps()
    began: float | None = None
    first: float | None = None
    last: Commit | None = None
    until = 0.0
    gaps: list[tuple[float, int | None]] = []
    is_partial = False
    for at, record in enumerate(records):
        is_partial |= at == 0 and record.get("kind") == CONTINUED
        known = timeline.num_commits
        timeline.add(record)
        if number(record.get("mono")) is None or record.get("kind") == CONTINUED:
            continue
        now_s = timeline.clock.moment_s(record)
        began, until = min(now_s, now_s if began is None else began), max(now_s, until)
        if timeline.num_commits == known:
            continue
        commit = timeline.commits[-1]
        if last is None:
            first = commit.mono
        elif last.generation != commit.generation:
            size = len(timeline.members.get(commit.generation, ())) or None
            gaps.append((commit.mono - last.mono, size))
        last = commit
        steps.add(commit.step, commit.samples)
    wall_s = until - began if began is not None else 0.0
    start_s = wall_s if began is None or first is None else 0.0 if is_partial else first - began
    downtime_s = sum(max(gap - (timeline.median_step_s(size) or 0.0), 0.0) for gap, size in gaps)
    samples = steps.samples()
    return Goodput(
        wall_s=wall_s,
        start_s=start_s,
        downtime_s=downtime_s,
        committed_steps=steps.number(),
        committed_samples=samples,
        goodput=samples / wall_s if wall_s > 0 else 0.0,
        productive=max(wall_s - start_s - downtime_s, 0.0) / wall_s if wall_s > 0 else 0.0,
        is_partial=is_partial,
    )


class _Steps:
    """Which steps are committed, and with how many samples: as runs of equal ones."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, int]] = []

    def add(self, step: int, samples: int) -> None:
        """Take in the next commit; one of an earlier step begins a new history there."""
        while self._runs and self._runs[-1][1] >= step:
            first, _, each = self._runs.pop()
            if first < step:
                self._runs.append((first, step - 1, each))
        if self._runs and self._runs[-1][1:] == (step - 1, samples):
            self._runs[-1] = self._runs[-1][0], step, samples
        else:
            self._runs.append((step, step, samples))

    def number(self) -> int:
        return sum(last - first + 1 for first, last, _ in self._runs)

    def samples(self) -> int:
        return sum((last - first + 1) * each for first, last, each in self._runs)
