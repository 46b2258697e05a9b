"""What a scheduler's export says has happened, beside what is simulated of the same jobs.

Owns the three questions that come before any saving: is it the same cluster, which jobs could be
elastic at all, and how much stood idle.  An answer that is not known is said to be missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pliant.simulate.measures import HOUR_S, Measures, quantile
from pliant.simulate.report import duration
from pliant.simulate.resize_costs import STATIC
from pliant.spec.workload import WorkloadJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What happened, of jobs that an export tells of; hours of accelerators."""

    jobs: int
    queue_mean_s: float
    queue_p50_s: float
    queue_p99_s: float
    most: int
    """Accelerators in use at one moment, at most."""

    there_h: float
    """All accelerators, from the first arrival to the last end."""

    used_h: float
    idle_h: float
    idle_while_waiting_h: float
    """Of the idle ones, those while a job waited."""

    elastic_jobs: int
    elastic_h: float
    """Used by jobs that are elastic in the simulation."""

    @property
    def utilisation(self) -> float:
        """Share of the accelerators in use."""
        return self.used_h / self.there_h if self.there_h else math.nan


def recorded(jobs: Sequence[WorkloadJob], *, devices: int) -> Recorded | None:
    """Sum up what happened on so many accelerators; None: the workload does not tell."""
    if not jobs or any(job.began_s is None for job in jobs):
        return None
    waits = [_began_s(job) - job.arrival_s for job in jobs]
    elastic = [job for job in jobs if job.is_elastic]
    idle_h, waiting_h, most = _idle(jobs, devices)
    first_s, last_s = min(job.arrival_s for job in jobs), max(map(_ended_s, jobs))
    return Recorded(
        jobs=len(jobs),
        queue_mean_s=fmean(waits),
        queue_p50_s=quantile(waits, 0.5),
        queue_p99_s=quantile(waits, 0.99),
        most=most,
        there_h=devices * (last_s - first_s) / HOUR_S,
        used_h=_used_h(jobs),
        idle_h=idle_h,
        idle_while_waiting_h=waiting_h,
        elastic_jobs=len(elastic),
        elastic_h=_used_h(elastic),
    )


def _idle(jobs: Sequence[WorkloadJob], devices: int) -> tuple[float, float, int]:
    """Return idle hours, those of them while somebody waited, and most devices in use at once."""
    events: list[tuple[float, int, int]] = []  # moment, devices taken, jobs that begin to wait
    for job in jobs:
        began_s = _began_s(job)
        events += [(job.arrival_s, 0, 1), (began_s, job.devices, -1)]
        events.append((_ended_s(job), -job.devices, 0))
    events.sort()
    used = waiting = most = 0
    idle_s = waited_s = 0.0
    since_s = events[0][0]
    for at_s, taken, began_to_wait in events:
        idle = max(0, devices - used) * (at_s - since_s)
        idle_s += idle
        waited_s += idle if waiting else 0.0
        used, waiting, since_s = used + taken, waiting + began_to_wait, at_s
        most = max(most, used)
    return idle_s / HOUR_S, waited_s / HOUR_S, most


def three_questions(found: Recorded, columns: Sequence[Measures], *, devices: int) -> list[str]:
    """Answer what must be answered before a saving is believed."""
    return [
        f"1. Is it your cluster? {_same(found, columns, devices)}",
        f"2. What could be elastic? {_elastic(found)}",
        f"3. What is there to save? {_idle_told(found)}",
    ]


def _same(found: Recorded, columns: Sequence[Measures], devices: int) -> str:
    if found.most > devices:
        return (
            f"No: {found.most} accelerators were in use at one moment, and the cluster's file has"
            f" {devices}."
        )
    told = (
        f"By the export jobs waited {duration(found.queue_mean_s)} in the mean"
        f" (p99 {duration(found.queue_p99_s)}), and {found.utilisation:.1%} was in use"
    )
    static = next((one for one in columns if one.way == STATIC.name), None)
    if static is None:
        return f"{told}; add static to --way to compare."
    return (
        f"{told}; simulated with fixed sizes they wait {duration(static.queue_mean_s)}"
        f" (p99 {duration(static.queue_p99_s)}), and {static.utilisation:.1%} is in use. What is"
        " saved is the difference to that, as far as the two agree."
    )


def _elastic(found: Recorded) -> str:
    if not found.elastic_jobs:
        return "No job is; say which with --elastic N, or with min and max in the workload."
    share = found.elastic_h / found.used_h
    return (
        f"{found.elastic_jobs:,} of {found.jobs:,} jobs, with {share:.1%} of the accelerator-hours"
        " that were used. Whether they really can is for their owners to say."
    )


def _idle_told(found: Recorded) -> str:
    return (
        f"{found.idle_h:,.1f} of {found.there_h:,.1f} accelerator-hours were idle,"
        f" {found.idle_while_waiting_h:,.1f} of them while a job waited. No more than the idle ones"
        " can be used in addition."
    )


def _began_s(job: WorkloadJob) -> float:
    return job.arrival_s if job.began_s is None else job.began_s


def _ended_s(job: WorkloadJob) -> float:
    return _began_s(job) + job.work_s


def _used_h(jobs: Sequence[WorkloadJob]) -> float:
    return math.fsum(job.devices * job.work_s for job in jobs) / HOUR_S
