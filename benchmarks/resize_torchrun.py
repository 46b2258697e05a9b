"""The baseline of ``benchmarks.resize``: join, kill and drain of an elastic torchrun job.

Owns the sequence of events and how they are recognised.  Must not know of pliant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks import events, harness, torchrun
from benchmarks.harness import Tail

LIMIT_S = 180.0
"""Longest wait for one event; 45 s are normal with default settings."""

SETTLE_STEPS = 12
"""Steps at the new size before the next event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """One event before it is priced."""

    kind: str
    asked_at: float
    first_at: float
    size_before: int
    size_after: int


@dataclass(slots=True, kw_only=True)
class Run:
    """One job: the steps its first rank finished, and what was done to it."""

    folder: Path
    raw: list[Raw] = field(default_factory=list)

    @property
    def tails(self) -> list[Tail]:
        """Steps so far, in order of time."""
        return harness.read_tails(self.folder / "tails")

    def wait_for(self, size: int, *, asked_at: float, what: str) -> Tail:
        """Wait until the job has settled at ``size`` again; return its first step there."""
        old = {tail.pid for tail in self.tails if tail.at <= asked_at}

        def settled() -> Tail | None:
            new = [t for t in self.tails if t.size == size and t.pid not in old]
            last = [t for t in new if t.pid == new[-1].pid]
            return last[0] if len(last) >= SETTLE_STEPS else None

        return harness.await_true(settled, timeout_s=LIMIT_S, what=what)

    def event(self, kind: str, act: Callable[[], object], *, before: int, after: int) -> None:
        """Do something to the job and wait until it has settled."""
        asked_at = time.monotonic()
        act()
        first = self.wait_for(after, asked_at=asked_at, what=f"torchrun: {kind}")
        self.raw.append(
            Raw(
                kind=kind,
                asked_at=asked_at,
                first_at=first.at,
                size_before=before,
                size_after=after,
            )
        )

    def costs(self, *, batch: int) -> Iterator[tuple[str, events.Cost]]:
        """Price every event."""
        tails = self.tails
        for raw in self.raw:
            yield (
                raw.kind,
                events.cost(
                    tails,
                    asked_at=raw.asked_at,
                    first_at=raw.first_at,
                    old_s=normal_s(tails, raw.size_before),
                    new_s=normal_s(tails, raw.size_after),
                    batch=batch,
                ),
            )


def normal_s(tails: Sequence[Tail], size: int) -> float:
    """Return the median step at one size, over all attempts of that size."""
    gaps = [b.at - a.at for a, b in pairwise(tails) if a.pid == b.pid and a.size == size]
    return sorted(gaps)[len(gaps) // 2]


def job_of(run: Run, *, settings: Sequence[str], slots: int, most: int) -> torchrun.Torchrun:
    """Describe the job; a checkpoint every ten steps."""
    script = [
        *("-m", "benchmarks.train_torchrun", "--steps", "1000000", "--slots", str(slots)),
        *("--tails", str(run.folder / "tails"), "--checkpoint", str(run.folder / "newest.pt")),
    ]
    return torchrun.Torchrun(folder=run.folder, script=script, most=most, settings=settings)


def several_agents(folder: Path, *, settings: Sequence[str], slots: int, cycles: int) -> Run:
    """Grow from 2 to 3, kill a worker, shrink to 2, ``cycles`` times; an agent per replica."""
    run = Run(folder=folder)
    job = job_of(run, settings=settings, slots=slots, most=4)
    with torchrun.running(job, replicas=2):
        run.wait_for(2, asked_at=0.0, what="torchrun: start")
        for _ in range(cycles):
            run.event("join", job.start_agent, before=2, after=3)
            newest = job.agents[-1]
            run.event("kill", partial(job.kill_worker, newest), before=3, after=3)
            run.event("drain", partial(job.drain, newest), before=3, after=2)
    return run


def one_agent(folder: Path, *, settings: Sequence[str], slots: int, cycles: int) -> Run:
    """Kill one of three workers of a single agent: torchrun's best case, no rendezvous of many."""
    run = Run(folder=folder)
    job = job_of(run, settings=settings, slots=slots, most=1)
    job.workers_per_agent = 3
    with torchrun.running(job, replicas=1):
        run.wait_for(3, asked_at=0.0, what="torchrun: start")
        for _ in range(cycles):
            run.event("kill", partial(job.kill_worker, job.agents[0]), before=3, after=3)
    return run
