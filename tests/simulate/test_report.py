"""Tables, CSV and JSON say the same, with what means nothing left out."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from tests.simulate.worlds import cluster, job, simulated

from pliant.core.errors import ConfigError
from pliant.simulate import report
from pliant.simulate.measures import Measures, measured
from pliant.simulate.report import read_sweep, recommended
from pliant.simulate.resize_costs import IN_PLACE, STATIC


def test_a_table_has_a_column_for_each_way_and_no_row_that_means_nothing() -> None:
    worlds = [simulated([job("one", 3590.0)], cluster(2), way) for way in (IN_PLACE, STATIC)]

    rows = {row[0].strip(): row[1:] for row in report.table([measured(one) for one in worlds])}

    assert rows[""] == ("in-place", "static")
    assert rows["utilisation"] == ("50.0%", "50.0%")
    assert rows["completion time, mean"] == ("60.0 min", "60.0 min")
    assert not {"deadlines met", "cost", "time to the target loss", "inference"} & rows.keys()


def test_csv_and_json_have_every_measure() -> None:
    columns = [measured(simulated([job("one", 3590.0, deadline_s=7200.0)], cluster(2)))]

    (line,) = csv.DictReader(io.StringIO(report.as_csv(columns)))
    (values,) = json.loads(report.as_json(columns, is_whole=True))["simulations"]

    assert line.keys() == values.keys()
    assert float(line["utilisation"]) == values["utilisation"] == 0.5
    assert (values["deadlines_met"], values["target_mean_s"]) == (1.0, None)
    assert line["target_mean_s"] == ""


def test_a_file_of_jobs_has_a_line_for_each() -> None:
    run = simulated([job("one", 100.0, target_s=50.0), job("two", 10.0)], cluster(1))

    one, two = csv.DictReader(io.StringIO(report.jobs_csv(run.records)))

    assert (one["began_s"], one["ended_s"], one["target_at_s"]) == ("0", "110", "60")
    assert (two["began_s"], two["target_at_s"]) == ("110", "")


def test_durations_are_said_in_one_unit() -> None:
    said = [report.duration(seconds) for seconds in (0.0, 59.94, 150.0, 9000.0, 300_000.0)]

    assert said == ["0 s", "59.9 s", "2.5 min", "2.5 h", "3.5 d"]


def test_a_few_minutes_are_not_printed_as_no_hours() -> None:
    label, text_of = next((row[1], row[2]) for row in report.ROWS if row[0] == "paused_h")

    assert label == "    paused by changes"
    assert [text_of(hours) for hours in (0.0, 0.0083, 0.1, 2304.0)] == [
        "0.0",
        "0.0083",
        "0.1",
        "2,304.0",
    ]


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
