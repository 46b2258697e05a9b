"""What a replay needs of a log is found in its parts; what is missing is said with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.player import play
from tests.support.recorded import SCENARIOS, Recorder, a_run, lines_of_log
from tools.replay_log import Gap, Told, entries
from tools.replay_turns import Break, Turn, replayed

from pliant.core.job.state import JobSettings

LONG = "a_joiner_is_drained"


class Cutting(Recorder):
    """A coordinator whose log is cut after every few events."""

    told = 0

    def hear_event(self, event: Any, *, now_s: float, age: int) -> Any:
        answer = super().hear_event(event, now_s=now_s, age=age)
        self.told += 1
        if self.told % 8 == 0:
            log, inputs = self.logs[-1]
            log.carried = list
            assert log.cut()
            inputs.write_state_if_due(self.job)
        return answer


@pytest.fixture
def cut_log(tmp_path: Path) -> Path:
    (path,) = (one for one in SCENARIOS if one.stem == LONG)
    log = tmp_path / "events.jsonl"
    recorders: list[Cutting] = []

    def make(settings: JobSettings) -> Cutting:
        recorders.append(Cutting(settings, log))
        return recorders[-1]

    play(path.read_text(), make)
    recorders[0].close()
    return log


def test_a_log_in_parts_is_replayed_from_the_first_to_the_last(cut_log: Path) -> None:
    steps = list(replayed(entries(cut_log)))

    assert [step for step in steps if isinstance(step, Break)] == []
    turns = [step for step in steps if isinstance(step, Turn)]
    assert all(turn.ready is not None and turn.difference is None for turn in turns)
    assert {turn.place.where.partition(":")[0] for turn in turns} == {
        "events.000000.jsonl", "events.000001.jsonl", "events.000002.jsonl",
        "events.000003.jsonl", "events.jsonl",
    }  # fmt: skip


def test_where_the_first_parts_are_gone_it_begins_with_what_the_core_knew(cut_log: Path) -> None:
    for number in (0, 1):
        cut_log.with_name(f"events.{number:06d}.jsonl").unlink()

    steps = list(replayed(entries(cut_log)))

    breaks = [(one.place.where, one.is_certain) for one in steps if isinstance(one, Break)]
    assert breaks == [("events.000002.jsonl:1", False), ("events.000002.jsonl:2", True)]
    assert all(step.ready is not None for step in steps if isinstance(step, Turn))


def test_a_part_that_is_gone_from_the_midst_is_a_gap(cut_log: Path) -> None:
    cut_log.with_name("events.000002.jsonl").unlink()

    (gap,) = (one for one in entries(cut_log) if isinstance(one, Gap))

    assert gap.place.where == "events.000003.jsonl:1"
    assert gap.why == "the parts of the log before this one are gone"


def with_records(log: Path, change: Any) -> list[Gap]:
    records = [json.loads(line) for line in lines_of_log(log)]
    change(records)
    log.write_text("".join(json.dumps(one) + "\n" for one in records))
    return [one for one in entries(log) if isinstance(one, Gap)]


@pytest.mark.parametrize(
    ("kind", "field", "value", "why"),
    [
        ("spare", "num_slots", 1 << 52, "num_slots: 4503599627370496 is above 1000000"),
        ("node_joined", "devices", 20_000, "devices: 20000 is not between 0 and 10000"),
        ("node_joined", "node", "../x", "node: '../x' is no name"),
        ("exited", "replica", "r0", "replica: 'r0' is no name"),
        ("switched", "now_s", -1.0, "now_s: '-1.0' is no moment"),
        ("spare", "calls", None, "calls: 'None' is no whole number"),
        ("heard", "signs", [["x"]], "'x' is no moment"),
    ],
)
def test_what_cannot_be_is_a_gap_with_its_line(
    kind: str, field: str, value: Any, why: str, tmp_path: Path
) -> None:
    log = a_run(tmp_path / "events.jsonl", "a_silent_member_is_ended")
    kinds = [json.loads(line)["kind"] for line in lines_of_log(log)]

    def change(records: list[Any]) -> None:
        records[kinds.index(kind)][field] = value

    gap, *_ = with_records(log, change)

    assert gap.place.where == f"events.jsonl:{kinds.index(kind) + 1}"
    assert gap.why == f"this is no {kind} that can be: {why}"


def test_sizes_that_no_job_has_are_not_tried(tmp_path: Path) -> None:
    def change(records: list[Any]) -> None:
        records[0]["settings"]["policy"].update(max_replicas=1 << 52, start_replicas=1 << 52)

    gap, *_ = with_records(a_run(tmp_path / "events.jsonl"), change)

    assert "replicas: 4503599627370496 is above 1000000" in gap.why


def test_a_line_that_is_cut_off_is_said(tmp_path: Path) -> None:
    log = a_run(tmp_path / "events.jsonl")
    log.write_bytes(log.read_bytes() + b'{"v":1,"kind":"com')

    *_, last = entries(log)

    assert isinstance(last, Gap)
    assert last.why == "the last line is cut off"


def test_records_that_the_disk_had_no_room_for_are_a_gap(tmp_path: Path) -> None:
    def change(records: list[Any]) -> None:
        records.insert(3, {"v": 1, "at": 1.0, "mono": 1.0, "kind": "records_lost", "number": 2})

    (gap,) = with_records(a_run(tmp_path / "events.jsonl"), change)

    assert gap.why == "records before this one could not be written"


def test_what_was_declined_is_told_as_it_was_asked(tmp_path: Path) -> None:
    log = a_run(tmp_path / "events.jsonl", "requests_that_are_declined")

    declined = [one for one in entries(log) if isinstance(one, Told) and one.declined]

    assert len(declined) > 3
