"""What a process holds while others come and go: memory of its own, descriptors, threads."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Footprint:
    """What one process held at each look."""

    pid: int
    samples: list[Sample] = field(default_factory=list)

    def look(self) -> None:
        """Add a sample; ``uss``: memory that would be free if the process ended."""
        process = psutil.Process(self.pid)
        memory_bytes = process.memory_full_info().uss
        self.samples.append(Sample(memory_bytes, process.num_fds(), process.num_threads()))

    def growth(self) -> list[str]:
        """Say what is more at the end than it was at the beginning, in thirds of the looks."""
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
            few, many = (
                statistics.median(getattr(each, what) for each in part) for part in (early, late)
            )
            if many > few + 1:
                found.append(f"{what} from {few:.0f} to {many:.0f}")
        return found

    def __str__(self) -> str:
        first, last = self.samples[0], self.samples[-1]
        return (
            f"{first.memory_bytes / 1e6:.0f} -> {last.memory_bytes / 1e6:.0f} MB, "
            f"{first.descriptors} -> {last.descriptors} descriptors, "
            f"{first.threads} -> {last.threads} threads"
        )
