"""What a process holds while others come and go: memory of its own, descriptors, threads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import psutil

WARMING_UP = 0.2
"""Share of the samples that are left out: caches fill."""

GROWTH = 1.1
SLACK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one process."""

    memory_bytes: int
    descriptors: int
    threads: int
    at_s: float


@dataclass(slots=True)
class Footprint:
    """What one process held at each look."""

    pid: int
    samples: list[Sample] = field(default_factory=list)

    @classmethod
    def of_all(cls, lives: Iterable[Self], *, settling: int) -> Self:
        """Return what processes that do the same held, one after the other and beside each other.

        The first ``settling`` looks at each do not count.
        """
        samples = [sample for one in lives for sample in one.samples[settling:]]
        return cls(0, sorted(samples, key=lambda sample: sample.at_s))

    def look(self, *, has_children: bool = False) -> None:
        """Add a sample; memory that would be free if the process ended.

        Of what it shares with children that it has forked nothing would be: all of it counts.
        """
        process = psutil.Process(self.pid)
        memory = process.memory_full_info()
        memory_bytes = memory.rss if has_children else memory.uss
        self.samples.append(
            Sample(memory_bytes, process.num_fds(), process.num_threads(), time.monotonic())
        )

    def growth(self, *, few: int = 1) -> list[str]:
        """Say what is more at the end than it was at the beginning, in thirds of the looks.

        So ``few`` descriptors or threads more are none.
        """
        settled = self.samples[int(len(self.samples) * WARMING_UP) :]
        third = len(settled) // 3
        early, late = settled[:third], settled[-third:]
        found = []
        before, after = (
            statistics.median(each.memory_bytes for each in part) for part in (early, late)
        )
        if after > GROWTH * before + SLACK_BYTES:
            found.append(f"memory from {before / 1e6:.0f} MB to {after / 1e6:.0f} MB")
        for what in ("descriptors", "threads"):
            before, many = (
                statistics.median(getattr(each, what) for each in part) for part in (early, late)
            )
            if many > before + few:
                found.append(f"{what} from {before:.0f} to {many:.0f}")
        return found

    @property
    def lasted_s(self) -> float:
        """Return how long it was looked at."""
        return self.samples[-1].at_s - self.samples[0].at_s

    def slopes(self) -> str:
        """Say what it takes more of in an hour: the straight lines through the looks."""
        times = [each.at_s / 3600 for each in self.samples]
        memory, descriptors, threads = (
            statistics.linear_regression(
                times, [float(getattr(each, what)) for each in self.samples]
            ).slope
            for what in ("memory_bytes", "descriptors", "threads")
        )
        return (
            f"per hour {memory / 1e6:+.1f} MB, {descriptors:+.1f} descriptors, "
            f"{threads:+.1f} threads"
        )

    def __str__(self) -> str:
        first, last = self.samples[0], self.samples[-1]
        return (
            f"{first.memory_bytes / 1e6:.0f} -> {last.memory_bytes / 1e6:.0f} MB, "
            f"{first.descriptors} -> {last.descriptors} descriptors, "
            f"{first.threads} -> {last.threads} threads"
        )
