"""What is served is what the table says, with old names beside the new ones for one release."""

from __future__ import annotations

import math
import re

from prometheus_client import generate_latest
from tests.observe.story import eventful

from pliant.coordinator.metrics import BoardCollector
from pliant.http.app import registry_of
from pliant.http.exposition import families
from pliant.observe.metric_table import JOB, TABLES, Row
from pliant.observe.status import board_of


def page() -> str:
    story = eventful()
    board = board_of(story.records)
    return generate_latest(registry_of(BoardCollector(lambda: board, {}, lambda: (4, 5)))).decode()


def test_every_metric_of_a_job_has_its_name_as_the_label_run() -> None:
    new = [line for line in page().splitlines() if not line.startswith("#")]
    old = tuple(row.old for row in JOB if row.old)

    assert [line for line in new if 'run="gpt"' not in line and not line.startswith(old)] == []


def test_old_names_tell_the_same_for_one_release() -> None:
    lines = dict(re.findall(r"^(\w+)(?:\{run=\"gpt\"\})? (\S+)$", page(), re.MULTILINE))
    renamed = {r.old: r.name + "_sum" * (r.kind == "histogram") for r in JOB if r.old}

    assert {old: lines.get(old) for old in renamed} == {
        old: lines.get(new) for old, new in renamed.items()
    }
    assert sum(old in lines for old in renamed) >= 3


def test_a_loss_beyond_all_floats_is_infinite_and_what_is_not_known_is_left_out() -> None:
    rows = (Row("a", "gauge", "A."), Row("b", "gauge", "B."))

    (found,) = families(rows, {"a": 10**400, "b": None}, {})

    assert found.samples[0].value == math.inf


def test_no_label_is_a_replica_or_a_user_and_no_name_is_given_twice() -> None:
    rows = [row for table in TABLES.values() for row in table]
    names = [*(row.name for row in rows), *(row.old for row in rows if row.old)]

    assert len(names) == len(set(names))
    assert {label for row in rows for label in row.labels}.isdisjoint(
        {"replica", "worker", "user", "claim", "node", "run", "job"}
    )
