"""What an export says has happened is added up as a person would."""

from __future__ import annotations

import math

from tests.simulate.worlds import cluster, job, simulated

from pliant.simulate.measures import measured
from pliant.simulate.recorded import recorded, three_questions
from pliant.simulate.resize_costs import IN_PLACE, STATIC

JOBS = [
    job("a", 3600.0, 3, began_s=0.0),
    job("b", 3600.0, 3, arrival_s=0.0, began_s=3600.0, min_devices=1, max_devices=4),
]
"""On 4 devices the second waits for the first, with one of them idle all the time."""


def test_hours_and_waits_are_those_of_the_export() -> None:
    found = recorded(JOBS, devices=4)

    assert found is not None
    assert (found.queue_mean_s, found.queue_p99_s, found.most) == (1800.0, 3600.0, 3)
    assert (found.there_h, found.used_h, found.utilisation) == (8.0, 6.0, 0.75)
    assert (found.idle_h, found.idle_while_waiting_h) == (2.0, 1.0)
    assert (found.elastic_jobs, found.elastic_h) == (1, 3.0)


def test_a_workload_that_does_not_say_when_jobs_began_tells_nothing() -> None:
    assert recorded([*JOBS, job("c", 60.0)], devices=4) is None
    assert recorded([], devices=4) is None


def test_the_answers_compare_with_fixed_sizes_and_say_what_is_missing() -> None:
    columns = [measured(simulated(JOBS, cluster(4), way)) for way in (IN_PLACE, STATIC)]
    found = recorded(JOBS, devices=4)
    assert found is not None

    same, elastic, idle = three_questions(found, columns, devices=4)

    assert "jobs waited 30.0 min in the mean (p99 60.0 min), and 75.0% was in use" in same
    assert "simulated with fixed sizes they wait 30.1 min (p99 60.2 min)" in same
    assert "1 of 2 jobs, with 50.0% of the accelerator-hours" in elastic
    assert "2.0 of 8.0 accelerator-hours were idle, 1.0 of them while a job waited" in idle
    assert "add static to --way" in three_questions(found, columns[:1], devices=4)[0]
    assert "No: 3 accelerators were in use" in three_questions(found, columns, devices=2)[0]


def test_without_an_elastic_job_it_says_how_to_name_some() -> None:
    found = recorded(JOBS[:1], devices=4)
    assert found is not None

    assert "--elastic N" in three_questions(found, [], devices=4)[1]
    assert not math.isnan(found.utilisation)
