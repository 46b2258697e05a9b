"""Jobs that a scheduler has exported, and the workload that they make.

Owns what is common to all exports: moments become seconds since the first job was submitted, and
what cannot be simulated is left out and counted.  How an export is read is for ``sacct`` and
``kubernetes_jobs``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pliant.core.errors import ConfigError
from pliant.spec.pool import MOST_DEVICES
from pliant.spec.workload import Curve, WorkloadJob

TWICE = 1.8
"""How much faster an elastic job is with twice the devices, where nothing better is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedJob:
    """One job as its scheduler tells it; moments are Unix seconds."""

    name: str
    submitted_s: float
    began_s: float
    ended_s: float | None
    """None: it still ran when it was exported."""

    devices: int
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What an export becomes."""

    jobs: list[WorkloadJob]
    notes: tuple[str, ...]
    """What was left out, and what was assumed, with how many."""


def unix_s(text: str) -> float | None:
    """Read ``2026-10-01T08:00:00``, in UTC unless it says where; None: it is no time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def workload_of(
    found: Sequence[ExportedJob], left_out: Mapping[str, int], *, source: str
) -> Export:
    """Make a workload of the jobs of an export.

    Raises:
        ConfigError: there is nothing to simulate.
    """
    exported_s = max((one.ended_s or one.began_s for one in found), default=0.0)
    notes = Counter(left_out)
    kept = []
    for one in found:
        ended_s = exported_s if one.ended_s is None else one.ended_s
        if ended_s <= one.began_s:
            notes["jobs that took no time"] += 1
        else:
            kept.append(replace(one, ended_s=ended_s))
    told = [f"left out: {number} {what}" for what, number in notes.items() if number]
    if not kept:
        beside = f" ({'; '.join(told)})" if told else ""
        raise ConfigError(f"{source} has no job that trained on accelerators{beside}")
    running = sum(one.ended_s is None for one in found)
    if running:
        told.append(f"{running} jobs that still ran end with the export")
    return Export(jobs=_jobs(kept), notes=tuple(told))


def _jobs(kept: Sequence[ExportedJob]) -> list[WorkloadJob]:
    """Return them in the order of their arrival, each with a name of its own."""
    first_s = min(one.submitted_s for one in kept)
    times: Counter[str] = Counter()
    jobs = []
    for one in sorted(kept, key=lambda one: one.submitted_s):
        times[one.name] += 1
        again = times[one.name]
        jobs.append(
            WorkloadJob(
                name=one.name if again == 1 else f"{one.name}#{again}",
                arrival_s=one.submitted_s - first_s,
                began_s=one.began_s - first_s,
                work_s=(one.ended_s or math.nan) - one.began_s,
                devices=one.devices,
                min_devices=one.devices,
                max_devices=one.devices,
                line=one.line,
            )
        )
    return jobs


def made_elastic(jobs: Sequence[WorkloadJob], *, least: int) -> list[WorkloadJob]:
    """Let jobs of at least so many devices have from half to twice as many."""
    return [
        job
        if job.is_elastic or job.devices < least
        else replace(
            job,
            min_devices=max(1, job.devices // 2),
            max_devices=min(MOST_DEVICES, 2 * job.devices),
            curve=_curve(job.devices),
        )
        for job in jobs
    ]


def _curve(devices: int) -> Curve:
    """Return speeds of which each doubling makes ``TWICE`` as much."""
    sizes = sorted({max(1, devices // 2), devices, 2 * devices})
    return tuple((size, TWICE ** math.log2(size / devices)) for size in sizes)
