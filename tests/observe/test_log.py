"""Whatever a crash leaves of an event log, its whole records are read and the rest is counted."""

from __future__ import annotations

import json
import math
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.commands import StartReplica, Switch
from pliant.core.events import Exited, ExitKind
from pliant.core.values import Generation, NodeId, Order, ReplicaId, Seat
from pliant.observe.log import EventLog, Journal, Record, kind_of, number, plain
from pliant.observe.reading import follow, only, read

R1 = ReplicaId("r1")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def clocked(path: Path, job: str = "gpt") -> EventLog:
    return EventLog(path, job=job, wall=lambda: 1000.0, monotonic=lambda: 50.0)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    log = clocked(tmp_path / "deep" / "events.jsonl")

    written = log.write("metrics", step=3, values={"loss": 2.5})
    log.close()

    assert read(tmp_path / "deep" / "events.jsonl") == [written]
    assert written == {
        "v": 1,
        "at": 1000.0,
        "mono": 50.0,
        "job": "gpt",
        "kind": "metrics",
        "step": 3,
        "values": {"loss": 2.5},
    }


def test_a_moment_reported_late_keeps_its_own_time(tmp_path: Path) -> None:
    record = clocked(tmp_path / "events.jsonl").write("commit", mono=48.5, step=1)

    assert (record["mono"], record["at"]) == (48.5, 998.5)


def test_core_values_are_written_under_their_own_names(tmp_path: Path) -> None:
    log = clocked(tmp_path / "events.jsonl")
    order = Order(generation=Generation(2), members=(Seat(replica=R1, endpoint="h:1"),), hold=False)

    start = log.write_value(StartReplica(replica=R1, node=NodeId("n")))
    switch = log.write_value(Switch(to=(R1,), order=order))

    assert (start["kind"], start["replica"], start["node"]) == ("start_replica", "r1", "n")
    assert switch["order"]["members"] == [{"replica": "r1", "endpoint": "h:1"}]
    assert switch["to"] == ["r1"]


def test_a_field_named_like_the_envelope_does_not_overwrite_it(tmp_path: Path) -> None:
    record = clocked(tmp_path / "events.jsonl").write_value(
        Exited(replica=R1, kind=ExitKind.SIGNAL, detail="SIGKILL")
    )

    assert (record["kind"], record["exited_kind"]) == ("exited", "signal")


def test_only_dataclasses_are_core_values(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="only a dataclass can be logged, not int"):
        clocked(tmp_path / "events.jsonl").write_value(3)


def test_listeners_get_every_record_after_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = clocked(path)
    seen: list[int] = []
    log.subscribe(lambda record: seen.append(len(read(path))))

    log.write("a")
    log.write("b")

    assert seen == [1, 2]


def test_a_missing_log_is_an_empty_one(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == []
    assert list(follow(tmp_path / "none.jsonl")) == []


def test_the_next_writer_closes_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"v":1,"kind":"a"}\n{"v":1,"ki')

    clocked(path).write("b")

    assert [record["kind"] for record in read(path)] == ["a", "b"]


def test_a_line_for_which_the_disk_had_no_room_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = clocked(path)
    log.write("a")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 9, before[1]))
    try:
        log.write("b")
        with pytest.raises(OSError, match="large"):
            log.write("c")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.write("d")

    assert [record["kind"] for record in read(path)] == ["a", "d"]


@given(st.lists(st.dictionaries(st.text(), json_values, max_size=3), max_size=5), st.data())
def test_a_log_cut_anywhere_loses_at_most_its_last_record(
    values: list[dict[str, object]], data: st.DataObject
) -> None:
    lines = [json.dumps({"v": 1, "kind": "x", "values": plain(value)}) + "\n" for value in values]
    whole = "".join(lines).encode()
    cut = data.draw(st.integers(0, len(whole)))

    complete = whole[:cut].count(b"\n")
    assert read_bytes(whole[:cut]) == [json.loads(line) for line in lines[:complete]]


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read(data: bytes) -> None:
    assert all(isinstance(record, dict) for record in read_bytes(data))


def test_records_of_a_later_schema_are_skipped() -> None:
    found = read_bytes(b'{"v":2,"kind":"a"}\n{"v":1,"kind":"b"}\n[]\n\n')

    assert [record["kind"] for record in found] == ["b"]


def read_bytes(data: bytes) -> list[Record]:
    with TemporaryDirectory() as directory:
        path = Path(directory, "events.jsonl")
        path.write_bytes(data)
        return read(path)


def test_following_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = clocked(path)
    log.write("a")
    [(offset, first)] = list(follow(path))
    log.write("b")
    with path.open("ab") as file:
        file.write(b'{"v":1,"kind":"c"')

    later = [record["kind"] for _, record in follow(path, offset)]

    assert (first["kind"], later) == ("a", ["b"])


@given(st.floats())
def test_numbers_survive_strict_json(value: float) -> None:
    back = number(json.loads(json.dumps(plain(value), allow_nan=False)))

    assert back == value or (back is not None and math.isnan(back) and math.isnan(value))


@given(json_values)
def test_what_plain_returns_is_strict_json(value: object) -> None:
    json.dumps(plain(value), allow_nan=False)


def test_kinds_are_snake_case() -> None:
    @dataclass
    class NodeJoinedTwice:
        pass

    assert kind_of(NodeJoinedTwice()) == "node_joined_twice"


@pytest.mark.parametrize("value", [None, True, "word", [1]])
def test_what_is_no_number_reads_as_none(value: object) -> None:
    assert number(value) is None


def test_what_a_superseded_coordinator_writes_does_not_count_but_commits_do(
    tmp_path: Path,
) -> None:
    path = tmp_path / "events.jsonl"
    older, newer = EventLog(path, job="j"), EventLog(path, job="j")
    older.speak_for(1)
    newer.speak_for(2)

    older.write("node_joined", node="a")
    newer.write("coordinator_started")
    older.write("node_lost", node="a")
    older.write("commit", step=3, generation=1)
    older.close()
    newer.close()

    kinds = [record["kind"] for record in read(path)]
    assert kinds == ["node_joined", "coordinator_started", "commit"]


def test_who_cannot_take_a_record_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Record) -> None:
        raise ValueError("[/data/a]")

    log = clocked(tmp_path / "events.jsonl")
    heard: list[Record] = []
    log.subscribe(fail)
    log.subscribe(heard.append)

    written = [log.write("note", text=str(number)) for number in range(2)]

    assert heard == written
    assert [record.message for record in caplog.records] == ["a note record could not be shown"]


def test_what_is_held_back_is_written_later_in_order_and_of_its_moment(tmp_path: Path) -> None:
    log = clocked(tmp_path / "events.jsonl")
    heard: list[Record] = []
    log.subscribe(heard.append)

    log.hold()
    made = [log.write("note", text=str(number)) for number in range(4)]
    was_held = log.held_s is not None
    before = read(log.path)
    log.release(3)
    made.append(log.write("note", text="4"))
    some = len(heard)
    log.release()
    made.append(log.write("note", text="5"))

    assert (was_held, before, some, log.held_s) == (True, [], 3, None)
    assert heard == made == read(log.path)
    assert [record["text"] for record in made] == ["0", "1", "2", "3", "4", "5"]


def test_a_log_that_is_closed_writes_what_is_held_back(tmp_path: Path) -> None:
    log = clocked(tmp_path / "events.jsonl")
    log.hold()
    log.write("note", text="last")

    log.close()

    assert [record["text"] for record in read(log.path)] == ["last"]


def test_only_records_of_some_kinds_are_looked_for(tmp_path: Path) -> None:
    log = clocked(tmp_path / "events.jsonl")
    log.write("note", text='"job_started"')
    started = log.write("job_started", pid=1)
    log.close()

    assert list(only(log.path, "job_started", "job_ended")) == [started]
    assert list(only(tmp_path / "none", "note")) == []


def test_who_follows_a_journal_hears_what_the_disk_did_not_take(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl", job="gpt")
    heard: list[str] = []
    journal.subscribe(lambda record: heard.append(record["kind"]))
    file, full = os.dup(journal._fd), os.open("/dev/full", os.O_WRONLY)

    os.dup2(full, journal._fd)
    journal.write("commit", step=1)
    os.dup2(file, journal._fd)
    for fd in (file, full):
        os.close(fd)
    journal.write("commit", step=2)
    journal.close()

    assert heard == ["commit", "commit"]
    assert [r["kind"] for r in read(journal.path)] == ["records_lost", "commit"]
