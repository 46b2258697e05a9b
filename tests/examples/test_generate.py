"""What is generated is a matter of the seed alone, and has the figures that it is asked for."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise
from typing import Any

import pytest
from examples.simulations import generate

from pliant.spec.workload import WorkloadJob, parse_workload


def mix(**given: Any) -> list[WorkloadJob]:
    """Return the jobs as `pliant simulate` reads them."""
    return parse_workload(generate.csv_of(generate.mix(**given)), source="mix")


def test_a_mix_has_the_published_figures() -> None:
    jobs = mix(jobs=40000, seed=3)

    sizes = [job.devices for job in jobs]
    times = [job.work_s for job in jobs]
    assert sum(size == 1 for size in sizes) / len(jobs) == pytest.approx(0.93, abs=0.005)
    assert sum(size >= 8 for size in sizes) / len(jobs) == pytest.approx(0.023, abs=0.003)
    assert statistics.median(times) == pytest.approx(1144, rel=0.05)
    assert statistics.mean(times) == pytest.approx(13_136, rel=0.12)
    assert sum(job.is_elastic for job in jobs) / len(jobs) == pytest.approx(0.1, abs=0.01)
    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)


def test_the_mean_of_capped_times_is_the_one_asked_for() -> None:
    median_s, longest_s, sigma = generate.MEDIAN_S, generate.LONGEST_S, generate.SPREAD
    normal = statistics.NormalDist().cdf
    apart = math.log(longest_s / median_s) / sigma
    below = median_s * math.exp(sigma**2 / 2) * normal(apart - sigma)

    assert below + longest_s * (1 - normal(apart)) == pytest.approx(generate.MEAN_S)


def test_the_same_words_give_the_same_and_another_seed_something_else() -> None:
    assert mix(jobs=50, seed=1) == mix(jobs=50, seed=1)
    assert mix(jobs=50, seed=1) != mix(jobs=50, seed=2)
    assert generate.spot(seed=1) == generate.spot(seed=1)


def test_another_share_of_elastic_jobs_leaves_the_jobs_as_they_are() -> None:
    few, many = (mix(jobs=200, seed=1, elastic=share) for share in (0.1, 0.9))

    told = [[(job.arrival_s, job.work_s, job.devices) for job in jobs] for jobs in (few, many)]
    assert told[0] == told[1]
    assert {job.name for job in few if job.is_elastic} < {j.name for j in many if j.is_elastic}


def test_nodes_are_lost_in_bursts_and_come_back() -> None:
    changes = generate.spot(nodes=50, days=20, losses_per_hour=2, burst=4, away_s=600)

    numbers = [nodes for _, nodes in changes]
    falls = [before - after for before, after in pairwise(numbers)]
    losses = [fall for fall in falls if fall > 0]
    assert numbers[0] == 50
    assert 0 <= min(numbers) <= max(numbers) == 50
    assert len(losses) == pytest.approx(20 * 24 * 2, rel=0.15)
    assert statistics.mean(losses) == pytest.approx(4, rel=0.15)
    assert all(fall >= -1 for fall in falls)
