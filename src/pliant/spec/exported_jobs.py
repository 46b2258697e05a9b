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

FEW = 0.1
"""An export with a smaller share of its jobs in a larger share of its time than this begins with
those that ran on from before; the others of that time had ended, and are not in it."""

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
    cut = _cut(kept)
    if earlier := sum(one is not other for one, other in zip(kept, cut, strict=True)):
        told.append(f"{earlier} jobs were submitted before the export begins, and arrive with it")
    if sparse := _sparse_beginning(cut):
        told.append(sparse)
    return Export(jobs=_jobs(cut), notes=tuple(told))


def _cut(kept: list[ExportedJob]) -> list[ExportedJob]:
    """Let nobody arrive before the beginning of a window, where several jobs begin at once.

    These ran already, and since when is not said; before it nothing is known of any other.
    """
    first_s = min(one.began_s for one in kept)
    if sum(one.began_s == first_s for one in kept) < 2:
        return kept
    return [
        one if one.submitted_s >= first_s else replace(one, submitted_s=first_s) for one in kept
    ]


def _sparse_beginning(kept: Sequence[ExportedJob]) -> str:
    """Say so if a long time at the beginning has hardly a job."""
    first_s = min(one.began_s for one in kept)
    first_end_s, last_s = (which(one.ended_s or 0.0 for one in kept) for which in (min, max))
    early = sum(one.began_s < first_end_s for one in kept)
    if first_end_s - first_s <= FEW * (last_s - first_s) or early >= FEW * len(kept):
        return ""
    hours, whole = (first_end_s - first_s) / 3600, (last_s - first_s) / 3600
    return (
        f"only {early} of {len(kept)} jobs began in the first {hours:.0f} of {whole:.0f} hours:"
        " others that had ended by then are missing, and what seems idle there was not; cut the"
        " export to a window (sacct -T)"
    )


def _jobs(kept: Sequence[ExportedJob]) -> list[WorkloadJob]:
    """Return them in the order of their arrival, each with a name of its own."""
    first_s = min(one.submitted_s for one in kept)
    times: Counter[str] = Counter()
    jobs = []
    for one in sorted(kept, key=lambda one: one.submitted_s):
        name = one.name.lstrip("/") or f"line {one.line}"  # a slash before it is for services
        times[name] += 1
        again = times[name]
        jobs.append(
            WorkloadJob(
                name=name if again == 1 else f"{name}#{again}",
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
            min_devices=max(1, job.devices // job.workers // 2) * job.workers,
            max_devices=2 * job.devices if 2 * job.devices <= MOST_DEVICES else job.devices,
            curve=_curve(job.devices, job.workers),
        )
        for job in jobs
    ]


def _curve(devices: int, workers: int) -> Curve:
    """Return speeds of which each doubling makes ``TWICE`` as much."""
    half = max(1, devices // workers // 2) * workers
    sizes = sorted({half, devices, 2 * devices})
    return tuple((size, TWICE ** math.log2(size / devices)) for size in sizes)
