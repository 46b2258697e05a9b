"""A sweep recommends one value, and says by what evidence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.simulate.worlds import cluster, job, simulated

from pliant.core.errors import ConfigError
from pliant.simulate.measures import Measures, measured
from pliant.simulate.sweep import read_sweep, recommended


def column(way: str, completion_s: float, resizes: int, **more: object) -> Measures:
    known = measured(simulated([job("one", 10.0)], cluster(1)))
    changed = {"elastic_completion_mean_s": completion_s, "completion_mean_s": completion_s}
    return replace(known, way=way, resizes=resizes, **{**changed, **more})  # type: ignore[arg-type]


def test_a_sweep_is_a_field_and_its_values() -> None:
    assert read_sweep("backoff.factor=1, 2,3") == ("backoff.factor", ["1", "2", "3"])


@pytest.mark.parametrize("text", ["x", "x=", "x=1", "x=1,1", "=1,2"])
def test_a_sweep_without_two_values_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="two values or more"):
        read_sweep(text)


def test_the_soonest_is_recommended_with_what_the_others_take() -> None:
    said = recommended([column("a", 7200.0, 4), column("b", 3600.0 * 3, 1)])

    assert said == (
        "Recommended: a. With it the elastic jobs take 2.0 h from arrival to end in the mean, with"
        " 4 resizes; b: 3.0 h (+50.0%), 1 resizes. This is what one world has shown, not a law."
    )


def test_of_those_that_are_as_soon_the_quietest_is_recommended() -> None:
    said = recommended([column("a", 7200.0, 40), column("b", 7210.0, 10)])

    assert said.startswith("Recommended: b.")
    assert "it hardly matters here" in said


def test_where_jobs_do_not_end_a_value_is_not_recommended_for_its_speed() -> None:
    said = recommended([column("a", 60.0, 0, unfinished=3), column("b", 7200.0, 9)])

    assert said.startswith("Recommended: b.")
    assert "a: 60 s (-99.2%), 0 resizes, 3 jobs not finished" in said


@pytest.mark.parametrize("completion_s", [math.nan, 7200.0])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_value_that_finishes_less_is_not_called_as_good(
    completion_s: float, is_first: bool
) -> None:
    columns = [column("a", completion_s, 0, unfinished=1), column("b", 7200.0, 2)]

    said = recommended(columns if is_first else columns[::-1])

    assert said.startswith("Recommended: b.")
    assert "nan" not in said
    assert "hardly matters" not in said
    assert "1 jobs not finished" in said


def test_values_are_compared_by_the_same_jobs() -> None:
    no_elastic = column("a", math.nan, 2, completion_mean_s=3600.0, unfinished=1)
    all_kinds = column("b", 3600.0, 2, completion_mean_s=7200.0, unfinished=1)

    said = recommended([no_elastic, all_kinds])

    assert said.startswith("Recommended: a. With it all jobs take 60.0 min")
    assert "b: 2.0 h (+100.0%)" in said


def test_where_nothing_ended_nothing_is_recommended() -> None:
    said = recommended([column("a", math.nan, 0), column("b", math.nan, 0)])

    assert said == "No job has ended, so that nothing can be recommended."
