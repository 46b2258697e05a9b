"""The view of a run: of bounded size, whatever is in the log, and the same as the log says."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.observe import view as view_of_all
from pliant.observe.log import Record
from pliant.observe.reading import read
from pliant.observe.status import board_of, event_json
from pliant.observe.view import MOST_BYTES, LogView

RECORDED = Path(__file__).parents[1] / "cli" / "recorded.jsonl"
BEGAN = 1795407475.5269


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_bytes(RECORDED.read_bytes())
    return path


def shown(view: LogView, *asked: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(view.as_json(*asked))
    return values


def written(path: Path, *records: Record) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_each_part_is_what_the_log_says(log: Path) -> None:
    records = read(log)
    board = board_of(records)

    found = shown(LogView(log))

    commits = [record for record in records if record["kind"] == "commit"]
    assert found["steps"]["step"] == [record["step"] + 1 for record in commits]
    assert found["steps"]["loss"] == pytest.approx([record["loss"] for record in commits], rel=1e-4)
    assert found["resizes"] == [json.loads(json.dumps(event_json(one))) for one in board.resizes()]
    assert found["headline"]["state"] == "suspended"
    assert found["headline"]["step"] == board.committed
    assert found["headline"]["size"] == 0
    assert max(size for _, size, _, _ in found["size"]) == 3
    assert {room for *_, room in found["size"]} == {None, 4}
    assert [one["checkpoint"] for one in found["checkpoints"]] == ["step-00000091-l1"]
    assert (found["began"], found["ended"]) == (BEGAN, records[-1]["at"])
    assert [one["cause"] for one in found["pauses"]] == ["join", "loss"]


def test_the_record_of_an_event_begins_at_its_position(log: Path) -> None:
    lines = log.read_bytes()

    for event in shown(LogView(log))["events"]:
        record = json.loads(lines[event["position"] :].split(b"\n", 1)[0])
        assert (record["kind"], record["at"]) == (event["kind"], event["at"])


def test_a_stretch_of_time_holds_what_is_in_it(log: Path) -> None:
    found = shown(LogView(log), BEGAN + 60, BEGAN + 80, 10)

    assert len(found["steps"]["at"]) <= 10
    assert all(BEGAN + 60 <= at <= BEGAN + 80 for at in found["steps"]["at"])
    assert {one["kind"] for one in found["resizes"]} == {"join", "loss"}
    assert "r4" in [lane["replica"] for lane in found["lanes"]]
    assert found["events"]
    assert all(BEGAN + 60 <= one["at"] <= BEGAN + 80 for one in found["events"])


def test_what_has_come_since_is_taken_in_and_nothing_twice(tmp_path: Path) -> None:
    path, whole = tmp_path / "events.jsonl", RECORDED.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:60]))
    view = LogView(path)
    before = view.headline()

    with path.open("ab") as file:
        file.write(b"".join(whole[60:]))
    after = view.headline()

    assert before["seq"] < after["seq"]
    assert not before["is_over"]
    assert after["is_over"]
    again = LogView(path)
    assert shown(view) | {"now": 0} == shown(again) | {"now": 0}


def test_what_only_its_reader_knows_is_said_as_well(log: Path) -> None:
    data = b"".join(log.read_bytes().splitlines(keepends=True)[:60])
    log.write_bytes(data)

    found = shown(LogView(log, lambda board: {"state": "killed", "is_over": True}))

    assert found["headline"]["state"] == "killed"
    assert found["ended"] is not None


def test_of_two_coordinators_at_once_only_the_commits_of_the_older_count(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    common: Record = {"v": 1, "mono": 1.0, "job": "j"}
    written(
        path,
        {**common, "at": 1.0, "kind": "coordinator_started", "incarnation": 2},
        {**common, "at": 2.0, "kind": "start_replica", "replica": "old", "incarnation": 1},
        {**common, "at": 3.0, "kind": "commit", "step": 0, "incarnation": 1},
        {**common, "at": 4.0, "kind": "start_replica", "replica": "new", "incarnation": 2},
    )

    found = shown(LogView(path))

    assert [lane["replica"] for lane in found["lanes"]] == ["new"]
    assert found["steps"]["step"] == [1]


def test_of_a_run_without_a_log_there_is_nothing(tmp_path: Path) -> None:
    found = shown(LogView(tmp_path / "events.jsonl"))

    assert (found["lanes"], found["steps"]["at"]) == ([], [])


KINDS = (
    *("start_replica", "switched", "exited", "commit", "note", "decision", "saved", "job_started"),
    *("node_joined", "node_lost", "dismiss", "pool", "job_ended"),
)
WORDS: st.SearchStrategy[Any] = st.sampled_from(
    ["r1", "r2", "\ud800", "x" * 5000, "\x1b[2J<script>", 7, None, [1], {}]
)


@given(
    records=st.lists(
        st.fixed_dictionaries(
            {
                "kind": st.sampled_from(KINDS),
                "at": st.floats(0, 1e9),
                "mono": st.floats(0, 1e9),
            },
            optional=dict.fromkeys(
                ["replica", "node", "reason", "text", "step", "loss", "devices", "exit_code"], WORDS
            ),
        ),
        max_size=30,
    ),
    points=st.integers(2, 2000),
)
def test_damaged_logs_have_a_view_as_well(
    records: list[Record], points: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("view") / "events.jsonl"
    written(path, *records)

    data = LogView(path).as_json(None, None, points)

    assert len(data) <= MOST_BYTES
    assert b"NaN" not in data
    assert b"x" * 400 not in data


def test_a_view_is_small_however_much_has_happened(tmp_path: Path) -> None:
    path, at = tmp_path / "events.jsonl", 0.0
    common: Record = {"v": 1, "job": "j", "mono": 0.0}
    with path.open("w") as file:
        for step in range(2000):
            at += 1.0
            name, other = f"replica-with-a-long-name-{step}", f"replica-with-a-long-name-{step - 1}"
            for kind, values in (
                ("decision", {"target_replicas": step % 9, "reason": "because " * 100}),
                ("start_replica", {"replica": name, "node": "n" * 200}),
                ("spare", {"replica": name}),
                ("exited", {"replica": other, "exited_kind": "signal", "detail": "SIGKILL " * 50}),
                ("reform", {"order": {"generation": step + 1, "members": [{"replica": name}]}}),
                ("switched", {"replica": name, "generation": step + 1, "step": step}),
                ("commit", {"step": step, "generation": step + 1, "loss": 1.0 / (step + 1)}),
                ("saved", {"replica": name, "checkpoint": "c" * 200, "committed": step}),
            ):
                file.write(json.dumps({**common, "at": at, "mono": at, "kind": kind, **values}))
                file.write("\n")

    data = LogView(path).as_json(None, None, 2000)

    found = json.loads(data)
    assert 50_000 < len(data) <= MOST_BYTES
    assert len(found["resizes"]) + found["left_out"]["resizes"] == 3998
    assert found["left_out"]["lanes"] > 0


def test_several_may_ask_at_once(log: Path) -> None:
    view, found = LogView(log), []
    threads = [threading.Thread(target=lambda: found.append(shown(view))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [one | {"now": 0} for one in found] == [found[0] | {"now": 0}] * 4


def test_a_sentence_has_an_end() -> None:
    assert len(view_of_all._short("x" * 5000)) == view_of_all.MOST_LETTERS
