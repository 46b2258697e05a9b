"""What an export says has happened is added up as a person would."""

from __future__ import annotations

import math
from typing import Any

from tests.simulate.worlds import changes, cluster, job, simulated

from pliant.simulate.measures import measured
from pliant.simulate.recorded import Recorded, recorded, three_questions
from pliant.simulate.resize_costs import IN_PLACE, STATIC
from pliant.simulate.simulation import SimulatedWorld
from pliant.spec.workload import WorkloadJob

JOBS = [
    job("a", 3600.0, 3, began_s=0.0),
    job("b", 3600.0, 3, arrival_s=0.0, began_s=3600.0, min_devices=1, max_devices=4),
]
"""On 4 devices the second waits for the first, with one of them idle all the time."""


def found_in(
    jobs: list[WorkloadJob],
    devices: int = 4,
    *,
    fields: dict[str, Any] | None = None,
    until_s: float = math.inf,
    **world: Any,
) -> Recorded:
    spec = cluster(devices, **(fields or {}))
    found = recorded(SimulatedWorld(cluster=spec, jobs=jobs, **world), until_s=until_s)
    assert found is not None
    return found


def test_hours_and_waits_are_those_of_the_export() -> None:
    found = found_in(JOBS)

    assert (found.queue_mean_s, found.queue_p99_s, found.most) == (1800.0, 3600.0, 3)
    assert (found.there_h, found.used_h, found.utilisation) == (8.0, 6.0, 0.75)
    assert (found.idle_h, found.idle_while_waiting_h) == (2.0, 1.0)
    assert (found.elastic_jobs, found.elastic_h) == (1, 3.0)


def test_a_workload_that_does_not_say_when_jobs_began_tells_nothing() -> None:
    spec = cluster(4)

    assert recorded(SimulatedWorld(cluster=spec, jobs=[*JOBS, job("c", 60.0)])) is None
    assert recorded(SimulatedWorld(cluster=spec, jobs=[])) is None


def test_what_was_not_there_was_not_idle() -> None:
    nodes = [{"name": "a", "count": 2, "devices": 2, "capacity": "x"}, {"name": "b", "count": 3}]
    trace = {"a": changes((0.0, 2), (1800.0, 1), (5400.0, 9), (9000.0, 0))}

    found = found_in(JOBS, fields={"nodes": nodes}, capacity=trace)

    assert (found.devices, found.most) == (7, 3)
    assert (found.there_h, found.idle_h, found.utilisation) == (12.0, 6.0, 0.5)


def test_what_comes_after_the_end_of_the_simulation_does_not_count() -> None:
    late = job("c", 3600.0, 1, arrival_s=9000.0, began_s=9000.0)

    half = found_in([*JOBS, late], until_s=5400.0)
    early = found_in([*JOBS, late], until_s=1800.0)

    assert (half.jobs, half.there_h, half.used_h, half.idle_h) == (2, 6.0, 4.5, 1.5)
    assert (half.queue_mean_s, half.elastic_h) == (1800.0, 1.5)
    assert (early.queue_mean_s, early.utilisation) == (0.0, 0.75)


def test_the_answers_compare_with_fixed_sizes_and_say_what_is_missing() -> None:
    columns = [measured(simulated(JOBS, cluster(4), way)) for way in (IN_PLACE, STATIC)]
    found = found_in(JOBS)

    same, elastic, idle = three_questions(found, columns)

    assert "jobs waited 30.0 min in the mean (p99 60.0 min), and 75.0% was in use" in same
    assert "simulated with fixed sizes they wait 30.1 min (p99 60.2 min)" in same
    assert "1 of 2 jobs, with 50.0% of the accelerator-hours" in elastic
    assert "2.0 of 8.0 accelerator-hours were idle, 1.0 of them while a job waited" in idle
    assert "add static to --way" in three_questions(found, columns[:1])[0]
    few = found_in(JOBS, 2)
    assert "No: 3 accelerators were in use at one moment" in three_questions(few, columns)[0]
    assert "and the cluster's file has 2." in three_questions(few, columns)[0]


def test_without_an_elastic_job_it_says_how_to_name_some() -> None:
    found = found_in(JOBS[:1])

    assert "--elastic N" in three_questions(found, [])[1]
    assert not math.isnan(found.utilisation)
