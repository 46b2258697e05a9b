"""What a scheduler's export says has happened, beside what is simulated of the same jobs.

Owns the three questions that come before any saving: is it the same cluster, which jobs could be
elastic at all, and how much stood idle.  An answer that is not known is said to be missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from pliant.simulate.measures import HOUR_S, Measures, quantile
from pliant.simulate.report import duration
from pliant.simulate.resize_costs import STATIC
from pliant.simulate.simulation import SimulatedWorld
from pliant.spec.trace import Change
from pliant.spec.workload import WorkloadJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What happened, of jobs that an export tells of; hours of accelerators."""

    jobs: int
    queue_mean_s: float
    queue_p99_s: float
    most: int
    """Accelerators in use at one moment, at most."""

    devices: int
    """Of the cluster's file, when every node is there."""

    there_h: float
    """All accelerators while they were there, from the first arrival to the last end."""

    used_h: float
    """By jobs."""

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


def recorded(world: SimulatedWorld, *, until_s: float = math.inf) -> Recorded | None:
    """Sum up what happened on the accelerators of a world; None: its workload does not tell.

    ``until_s``: the moment at which the simulation ends that it stands beside.
    """
    jobs = [job for job in world.jobs if job.arrival_s < until_s]
    if not jobs or any(job.began_s is None for job in world.jobs):
        return None
    waits = [_began_s(job) - job.arrival_s for job in jobs if _began_s(job) < until_s]
    elastic = [job for job in jobs if job.is_elastic]
    spent = _spent(world, jobs, until_s)
    return Recorded(
        jobs=len(jobs),
        queue_mean_s=fmean(waits) if waits else math.nan,
        queue_p99_s=quantile(waits, 0.99),
        most=spent.most,
        devices=world.cluster.devices,
        there_h=spent.there_s / HOUR_S,
        used_h=_used_h(jobs, until_s),
        idle_h=spent.idle_s / HOUR_S,
        idle_while_waiting_h=spent.waiting_s / HOUR_S,
        elastic_jobs=len(elastic),
        elastic_h=_used_h(elastic, until_s),
    )


@dataclass(slots=True)
class _Spent:
    """Device-seconds."""

    there_s: float = 0.0
    idle_s: float = 0.0
    waiting_s: float = 0.0
    """Idle ones while a job waited."""

    most: int = 0
    """Accelerators that jobs used at one moment."""


@dataclass(frozen=True, slots=True, order=True)
class _Move:
    """At a moment so many accelerators more or less."""

    at_s: float
    taken: int = 0
    """By jobs; what is given back comes first."""

    waiting: int = 0
    """Jobs."""

    there: int = 0


def _spent(world: SimulatedWorld, jobs: Sequence[WorkloadJob], until_s: float) -> _Spent:
    """Add up from the first arrival to the last end."""
    first_s = min(job.arrival_s for job in jobs)
    last_s = min(until_s, max(map(_ended_s, jobs)))
    moves = [*_moves_of_jobs(jobs), *_moves_of_nodes(world)]
    spent = _Spent()
    used = waiting = there = 0
    since_s = first_s
    for move in sorted([*moves, _Move(last_s)]):
        if move.at_s > last_s:
            break
        passed_s = move.at_s - since_s
        if passed_s > 0.0:
            idle_s = max(0, there - used) * passed_s
            spent.there_s += there * passed_s
            spent.idle_s += idle_s
            spent.waiting_s += idle_s if waiting else 0.0
            since_s = move.at_s
        used, waiting = used + move.taken, waiting + move.waiting
        there += move.there
        spent.most = max(spent.most, used)
    return spent


def _moves_of_jobs(jobs: Sequence[WorkloadJob]) -> Iterator[_Move]:
    for job in jobs:
        yield _Move(job.arrival_s, waiting=1)
        yield _Move(_began_s(job), taken=job.devices, waiting=-1)
        yield _Move(_ended_s(job), taken=-job.devices)


def _moves_of_nodes(world: SimulatedWorld) -> Iterator[_Move]:
    for entry in world.cluster.nodes:
        before = 0
        for change in world.capacity.get(entry.name) or [Change(at_s=0.0, devices=entry.count)]:
            there = min(change.devices, entry.count) * entry.devices
            yield _Move(change.at_s, there=there - before)
            before = there


def three_questions(found: Recorded, columns: Sequence[Measures]) -> list[str]:
    """Answer what must be answered before a saving is believed."""
    return [
        f"1. Is it your cluster? {_same(found, columns)}",
        f"2. What could be elastic? {_elastic(found)}",
        f"3. What is there to save? {_idle_told(found)}",
    ]


def _same(found: Recorded, columns: Sequence[Measures]) -> str:
    if found.most > found.devices:
        return (
            f"No: {found.most} accelerators were in use at one moment, and the cluster's file has"
            f" {found.devices}."
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


def _used_h(jobs: Sequence[WorkloadJob], until_s: float) -> float:
    took_s = [job.devices * max(0.0, min(until_s, _ended_s(job)) - _began_s(job)) for job in jobs]
    return math.fsum(took_s) / HOUR_S
