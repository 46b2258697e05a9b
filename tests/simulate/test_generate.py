"""What is generated is a matter of the seed alone, and has the figures that it is asked for."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest

from pliant.core.errors import ConfigError
from pliant.simulate import generate


def test_a_mix_has_the_published_figures() -> None:
    jobs = generate.mix("mix:jobs=40000,seed=3")

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
    assert generate.mix("mix:jobs=50,seed=1") == generate.mix("mix:seed=1,jobs=50")
    assert generate.mix("mix:jobs=50,seed=1") != generate.mix("mix:jobs=50,seed=2")
    assert generate.spot("spot:seed=1") == generate.spot("spot:seed=1")


def test_another_share_of_elastic_jobs_leaves_the_jobs_as_they_are() -> None:
    few, many = (generate.mix(f"mix:jobs=200,seed=1,elastic={share}") for share in (0.1, 0.9))

    told = [[(job.arrival_s, job.work_s, job.devices) for job in jobs] for jobs in (few, many)]
    assert told[0] == told[1]
    assert {job.name for job in few if job.is_elastic} < {j.name for j in many if j.is_elastic}


def test_nodes_are_lost_in_bursts_and_come_back() -> None:
    changes = generate.spot("spot:nodes=50,days=20,lossesPerHour=2,burst=4,awayInSeconds=600")

    numbers = [change.devices for change in changes]
    falls = [before - after for before, after in pairwise(numbers)]
    losses = [fall for fall in falls if fall > 0]
    assert numbers[0] == 50
    assert 0 <= min(numbers) <= max(numbers) == 50
    assert len(losses) == pytest.approx(20 * 24 * 2, rel=0.15)
    assert statistics.mean(losses) == pytest.approx(4, rel=0.15)
    assert all(fall >= -1 for fall in falls)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mix:cows=3", "mix takes no 'cows'; it takes jobs, days, elastic, seed"),
        ("mix:jobs=0", "mix: jobs=0 is not a whole number from 1 to 1e+06"),
        ("mix:jobs=2.5", "mix: jobs=2.5 is not a whole number from 1 to 1e+06"),
        ("mix:elastic=2", "mix: elastic=2 is not a number from 0 to 1"),
        ("mix:days=nan", "mix: days=nan is not a number from 0.001 to 10000"),
    ],
)
def test_a_number_that_cannot_be_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        generate.mix(text)
    assert str(caught.value) == sentence
