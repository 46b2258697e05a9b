"""A log that is read from its snapshot tells what it tells from its beginning."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe.story import Story, eventful

from pliant.observe.history import (
    SUFFIX,
    Carried,
    History,
    read_history,
    snapshot_of,
    write_snapshot,
)
from pliant.observe.log import Record
from pliant.observe.reading import LogClock
from pliant.observe.status import RECENT_COMMITS, board_of
from pliant.observe.timeline import KEPT_COMMITS, KEPT_GAPS


def full() -> Story:
    """Everything that a history keeps, and more commits than some of it keeps."""
    story = eventful().steps(RECENT_COMMITS + 5, 0.4).commit(loss="nan").saved("step-1")
    story.write("interval_chosen", replica="r1", reason="every 90 s")
    story.write("save_failed", replica="r1", committed=3, reason="full", retry_s=1.0)
    place = {"pool": "p", "team": "t", "priority": "high", "admission": "running", "devices": [1]}
    story.write("pool", **place, offered=1, wanted=1, reason="", is_suspended=False, silence="")
    story.write("note", replica="r1", text="an older coordinator", incarnation=1)
    story.write("decision", target_replicas=1, reason="the newer one", incarnation=2)
    story.restore("r6", "r7", checkpoint="step-1", committed=3).steps(5)
    story.write("decision", target_replicas=9, reason="of the older one", incarnation=1)
    return story


def write(path: Path, records: list[Record]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def told(history: History) -> str:
    """All that a history knows, but for where its snapshot is; NaN is not equal to itself."""
    history.snapshot_at = 0
    return repr(history)


LINES = [json.dumps(record) + "\n" for record in full().records]


@given(cut=st.integers(0, len(LINES)))
def test_a_snapshot_anywhere_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    log = tmp_path_factory.mktemp("run") / "events.jsonl"
    log.write_text("".join(LINES[:cut]))
    write_snapshot(snapshot_of(read_history(log), log), log)
    log.write_text("".join(LINES))

    found = read_history(log)

    log.with_suffix(SUFFIX).unlink()
    assert told(found) == told(read_history(log))
    assert found.explained.decisions[-1].reason == "the newer one"


def test_what_is_bounded_stays_so(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    write(log, full().records)
    write_snapshot(snapshot_of(read_history(log), log), log)

    history = read_history(log)

    assert history.board.timeline.commits.maxlen == KEPT_COMMITS
    assert f"maxlen={KEPT_GAPS}" in repr(history.board.timeline)
    assert f"maxlen={RECENT_COMMITS}" in repr(history.board)
    assert history.explained.decisions.maxlen is not None
    assert math.isnan(next(c.loss for c in history.board.timeline.commits if c.loss != c.loss) or 0)


@pytest.mark.parametrize(
    "what", ["another log", "a shorter log", "torn", "no JSON", "another version"]
)
def test_a_snapshot_of_something_else_is_left_aside(tmp_path: Path, what: str) -> None:
    log = tmp_path / "events.jsonl"
    write(log, full().records)
    data = snapshot_of(read_history(log), log)
    records = {"another log": Story().started(pid=9).records, "a shorter log": full().records[:9]}
    write(log, records.get(what, full().records))
    spoiled = {
        "torn": data[: len(data) // 2],
        "no JSON": b"\xff",
        "another version": data.replace(b'"schema":"', b'"schema":"0'),
    }
    plain = told(read_history(log))
    write_snapshot(spoiled.get(what, data), log)

    assert told(read_history(log)) == plain


def test_a_missing_log_is_an_empty_one(tmp_path: Path) -> None:
    assert read_history(tmp_path / "events.jsonl") == History()


SEVERAL_LIVES: list[tuple[str, int, Record]] = [
    ("job_started", 1, {"machine": "one pid:[1]"}),
    ("plan", 1, {"num_slots": 8}),
    ("nodes_apart", 1, {"pairs": []}),
    ("coordinator_started", 2, {"machine": "one pid:[1]"}),
    ("plan", 2, {"num_slots": 8}),
    ("nodes_apart", 2, {"pairs": [[["a", "b"], 1, 30.0]]}),
]


def written() -> list[Record]:
    return [
        {"kind": kind, "incarnation": number, "at": 1.7e9 + at, "mono": 100.0 + at, **values}
        for at, (kind, number, values) in enumerate(SEVERAL_LIVES)
    ]


def test_the_newest_of_each_kind_stand_in_the_order_in_which_they_came() -> None:
    """A status forgot which nodes do not reach each other, and a clock began anew."""
    carried, clock = Carried(), LogClock()
    for record in written():
        carried.add(record)

    kept = carried.records()

    kinds = ["job_started", "coordinator_started", "plan", "nodes_apart"]
    assert [record["kind"] for record in kept] == kinds
    assert board_of(kept).apart == board_of(written()).apart != []
    assert [clock.add(record) for record in kept] == [False] * 4


def test_a_plan_that_was_said_again_to_another_coordinator_is_carried_once() -> None:
    identity = [["seed", "1"]]
    again = {
        "kind": "registered",
        "incarnation": 2,
        "replica": "r1",
        "spare": {"replica": "r1", "identity": identity},
    }
    carried = Carried()
    for record in (again, {**again, "incarnation": 3}):
        carried.add(record)

    assert carried.records() == [again]
    carried.add({"kind": "switched", "replica": "r1"})
    assert carried.settled == {json.dumps(identity): "r1"}
