"""How much of the wall time trained: goodput, downtime and where it went.

Owns the accounting.  Time is by the log's clock (``reading.LogClock``) and runs from the first
record of a job to its last one; the start is the time to the first commit, downtime the part of
every gap between commits that exceeds the median step of that size, where the gap crosses a change
of generation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class StepRuns:
    """Which steps are committed, and with how many samples: as runs of equal ones."""

    runs: list[tuple[int, int, int]] = field(default_factory=list)
    """First step, last step, samples of each."""

    def add(self, step: int, samples: int) -> None:
        """Take in the next commit; one of an earlier step begins a new history there."""
        while self.runs and self.runs[-1][1] >= step:
            first, _, each = self.runs.pop()
            if first < step:
                self.runs.append((first, step - 1, each))
        if self.runs and self.runs[-1][1:] == (step - 1, samples):
            self.runs[-1] = self.runs[-1][0], step, samples
        else:
            self.runs.append((step, step, samples))

    def number(self) -> int:
        """Return how many there are."""
        return sum(last - first + 1 for first, last, _ in self.runs)

    def samples(self) -> int:
        """Return how many samples all of them have."""
        return sum((last - first + 1) * each for first, last, each in self.runs)


@dataclass(slots=True)
class Account:
    """Eats records in file order, each behind the timeline, in memory that steps do not grow."""

    began_s: float | None = None
    until_s: float = 0.0
    first_s: float | None = None
    """When the first step was committed."""

    last: Commit | None = None
    gaps: list[tuple[float, int | None]] = field(default_factory=list)
    """Between two commits across a change of generation, and its new size."""

    is_partial: bool = False
    steps: StepRuns = field(default_factory=StepRuns)
    _num_commits: int = 0

    def add(self, record: Record, timeline: Timeline) -> None:
        """Take in one record, that ``timeline`` has taken in."""
        is_continued = record.get("kind") == CONTINUED
        self.is_partial |= is_continued and self.began_s is None
        if number(record.get("mono")) is None or is_continued:
            return
        now_s = timeline.clock.now_s
        if self.began_s is None or now_s < self.began_s:
            self.began_s = now_s
        if now_s > self.until_s:
            self.until_s = now_s
        if timeline.num_commits == self._num_commits:
            return
        self._num_commits, commit = timeline.num_commits, timeline.commits[-1]
        if self.last is None:
            self.first_s = commit.mono
        elif self.last.generation != commit.generation:
            size = len(timeline.members.get(commit.generation, ())) or None
            self.gaps.append((commit.mono - self.last.mono, size))
        self.last = commit
        self.steps.add(commit.step, commit.samples)

    def goodput(self, timeline: Timeline) -> Goodput:
        """Return what it comes to so far."""
        wall_s = 0.0 if self.began_s is None else self.until_s - self.began_s
        start_s = wall_s
        if self.began_s is not None and self.first_s is not None:
            start_s = 0.0 if self.is_partial else self.first_s - self.began_s
        normal_s = {size: timeline.median_step_s(size) or 0.0 for _, size in self.gaps}
        downtime_s = sum(max(gap_s - normal_s[size], 0.0) for gap_s, size in self.gaps)
        samples = self.steps.samples()
        return Goodput(
            wall_s=wall_s,
            start_s=start_s,
            downtime_s=downtime_s,
            committed_steps=self.steps.number(),
            committed_samples=samples,
            goodput=samples / wall_s if wall_s > 0 else 0.0,
            productive=max(wall_s - start_s - downtime_s, 0.0) / wall_s if wall_s > 0 else 0.0,
            is_partial=self.is_partial,
        )


def goodput_of(records: Iterable[Record]) -> Goodput:
    """Account for a whole log, or for what is left of it, in memory that steps do not grow."""
    timeline, account = Timeline(), Account()
    for record in records:
        timeline.add(record)
        account.add(record, timeline)
    return account.goodput(timeline)
