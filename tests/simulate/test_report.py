"""A table leaves out what means nothing; JSON has every measure."""

from __future__ import annotations

import csv
import io
import json

from tests.simulate.worlds import cluster, job, simulated

from pliant.simulate import report
from pliant.simulate.measures import measured
from pliant.simulate.resize_costs import IN_PLACE, STATIC


def test_a_table_has_a_column_for_each_way_and_no_row_that_means_nothing() -> None:
    worlds = [simulated([job("one", 3590.0)], cluster(2), way) for way in (IN_PLACE, STATIC)]

    rows = {row[0].strip(): row[1:] for row in report.table([measured(one) for one in worlds])}

    assert rows[""] == ("in-place", "static")
    assert rows["utilisation"] == ("50.0%", "50.0%")
    assert rows["completion time, mean"] == ("60.0 min", "60.0 min")
    assert not {"deadlines met", "cost", "time to the target loss"} & rows.keys()


def test_json_has_every_measure() -> None:
    columns = [measured(simulated([job("one", 3590.0, deadline_s=7200.0)], cluster(2)))]

    (values,) = json.loads(report.as_json(columns, is_whole=True))["simulations"]

    assert values["utilisation"] == 0.5
    assert (values["deadlines_met"], values["target_mean_s"]) == (1.0, None)


def test_a_file_of_jobs_has_a_line_for_each() -> None:
    run = simulated([job("one", 100.0, target_s=50.0), job("two", 10.0)], cluster(1))

    one, two = csv.DictReader(io.StringIO(report.jobs_csv(run.records)))

    assert (one["began_s"], one["ended_s"], one["target_at_s"]) == ("0", "110", "60")
    assert (two["began_s"], two["target_at_s"]) == ("110", "")


def test_durations_are_said_in_one_unit() -> None:
    text_of = next(row[2] for row in report.ROWS if row[0] == "queue_mean_s")
    said = [text_of(seconds) for seconds in (0.0, 59.94, 150.0, 9000.0, 300_000.0)]

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
