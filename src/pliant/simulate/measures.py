"""What a simulation has shown, in numbers: one value for each column of a report.

Owns what each number means.  Reads a simulation at its end, or where it was cut short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pliant.simulate.simulation import Simulation
from pliant.simulate.training_run import TrainingRun

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """One simulation; hours of accelerators unless something else is said."""

    way: str
    """The way of resizing."""

    jobs: int
    """Jobs that have arrived."""

    unfinished: int
    """Of these, those that have not ended when the simulation did."""

    waiting: int
    """Of these, those that have not even begun; their waits are in no queue time."""

    makespan_h: float
    """Hours from the first arrival to the last end, or to the end of the simulation."""

    there_h: float
    """All accelerators while they were there."""

    used_h: float
    """Held by jobs."""

    idle_h: float
    """Nobody's."""

    useful_h: float
    """Training that counts."""

    lost_h: float
    """Training that was lost with the state of a job."""

    paused_h: float
    """Stopped by a change of size."""

    starting_h: float
    """Processes that start."""

    unused_h: float
    """Held, and neither training nor starting."""

    utilisation: float
    """Share of the accelerators there that somebody held."""

    goodput: float
    """Share of the accelerators there that trained what counts."""

    work_h: float
    """What was trained, as hours of the accelerators that each job asks for: where more of them
    are less than so many times as fast, ``useful_h`` is more for the same work."""

    queue_mean_s: float
    """From arrival to the first accelerators; of jobs that have begun."""

    queue_p50_s: float
    queue_p99_s: float
    completion_mean_s: float
    """From arrival to end; of jobs that have ended."""

    completion_p50_s: float
    completion_p99_s: float
    target_mean_s: float
    """From arrival to the target loss; of jobs that have one and reached it."""

    elastic_completion_mean_s: float
    """From arrival to end, of the elastic jobs of the workload alone."""

    deadlines_met: float
    """Share of the jobs with a deadline that met it; nan: there are none."""

    stopped_share: float
    """Time without progress between beginning and end, as a share; mean over the jobs."""

    preemption_cost_h: float
    """What was lost, and what stood still for changes: ``lost_h + paused_h``."""

    preemptions: int
    """How often a job lost all it had."""

    resizes: int
    interventions: int
    """How often a person had to see to a job."""

    cost: float
    """Of the accelerators while they were there."""

    cost_per_useful_h: float


def measured(simulation: Simulation) -> Measures:
    """Sum up a simulation."""
    pool, records = simulation.pool, simulation.records
    spent: dict[str, Any] = {n: seconds / HOUR_S for n, seconds in pool.accounts.spent.items()}
    there_h = sum(group.there_device_s for group in simulation.groups) / HOUR_S
    ended = [one for one in records if one.ended_s is not None]
    queue = [one.began_s - one.arrival_s for one in records if one.began_s is not None]
    took = [one.ended_s - one.arrival_s for one in ended if one.ended_s is not None]
    first_s = min((one.arrival_s for one in records), default=0.0)
    last_s = max((one.ended_s or 0.0 for one in ended), default=pool.now_s)
    if len(ended) < len(records):
        last_s = pool.now_s
    elastic = {job.name for job in simulation.world.jobs if job.is_elastic}
    cost = sum(
        group.there_device_s / HOUR_S * group.entry.price_per_device_hour
        for group in simulation.groups
    )
    used_h = there_h - spent["idle"]
    runs = (one for one in pool.claimants.values() if isinstance(one, TrainingRun))
    work_s = math.fsum(
        [
            *(one.work_s * one.devices for one in ended),
            *(one.done_s * one.job.devices for one in runs),
        ]
    )
    return Measures(
        way=simulation.costs.name,
        jobs=len(records),
        unfinished=len(records) - len(ended),
        waiting=sum(one.began_s is None for one in records),
        makespan_h=(last_s - first_s) / HOUR_S,
        there_h=there_h,
        used_h=used_h,
        **{f"{name}_h": hours for name, hours in spent.items()},
        utilisation=_ratio(used_h, there_h),
        goodput=_ratio(spent["useful"], there_h),
        work_h=work_s / HOUR_S,
        queue_mean_s=_mean(queue),
        queue_p50_s=quantile(queue, 0.5),
        queue_p99_s=quantile(queue, 0.99),
        completion_mean_s=_mean(took),
        completion_p50_s=quantile(took, 0.5),
        completion_p99_s=quantile(took, 0.99),
        target_mean_s=_mean(
            [one.target_at_s - one.arrival_s for one in records if one.target_at_s is not None]
        ),
        elastic_completion_mean_s=_mean(
            [
                one.ended_s - one.arrival_s
                for one in ended
                if one.ended_s is not None and one.name in elastic
            ]
        ),
        deadlines_met=_mean(
            [
                float(one.ended_s is not None and one.ended_s <= one.arrival_s + one.deadline_s)
                for one in records
                if one.deadline_s is not None
            ]
        ),
        stopped_share=_mean(
            [
                one.stopped_s / ((one.ended_s or pool.now_s) - one.began_s)
                for one in records
                if one.began_s is not None and (one.ended_s or pool.now_s) > one.began_s
            ]
        ),
        preemption_cost_h=spent["lost"] + spent["paused"],
        preemptions=sum(one.preemptions for one in records),
        resizes=sum(one.resizes for one in records),
        interventions=sum(one.interventions for one in records),
        cost=cost,
        cost_per_useful_h=_ratio(cost, spent["useful"]),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of them does not exceed; nan if there is none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
