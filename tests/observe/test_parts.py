"""A log in parts reads as one, whoever cuts it, dies at it, or reads it meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pliant.machine.locks import lock
from pliant.observe import parts
from pliant.observe.log import CONTINUED, EventLog, Journal
from pliant.observe.reading import every, follow, only, read


def steps_of(records: object) -> list[int]:
    return [record["step"] for record in records if "step" in record]  # type: ignore[attr-defined]


def kinds_after(path: Path, position: int) -> list[str]:
    return [record["kind"] for _, record in follow(path, position)]


def cut_log(path: Path, numbers: range = range(6), every_: int = 2) -> EventLog:
    """A log whose parts have so many records."""
    log = EventLog(path, job="j")
    log.carried = list
    for step in numbers:
        log.write("commit", step=step)
        if step % every_ == every_ - 1:
            assert log.cut()
    return log


def test_a_cut_log_reads_as_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    cut_log(path).write("commit", step=6)

    assert parts.closed(path) == [0, 1, 2]
    assert steps_of(read(path)) == list(range(7))
    assert steps_of(every(path)) == list(range(7))
    assert steps_of(only(path, "commit")) == list(range(7))


def test_every_position_stays_true_when_its_part_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log, seen = EventLog(path, job="j"), list[tuple[int, Any]]()
    log.carried = list
    at = 0
    for step in range(9):
        log.write("commit", step=step)
        for after, record in follow(path, at):
            at = after
            seen.append((after, record.get("step")))
        if step % 3 == 2:
            log.cut()

    assert [step for _, step in seen if step is not None] == list(range(9))
    for after, step in seen:
        if step is not None:
            assert steps_of(record for _, record in follow(path, after)) == [*range(step + 1, 9)]


def test_the_positions_of_a_log_that_was_never_cut_are_offsets(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path, job="j").write("note", text="one")

    assert [after for after, _ in follow(path)] == [path.stat().st_size]


def test_who_comes_back_to_a_part_that_is_gone_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "KEPT_PARTS", 2)
    path = tmp_path / "events.jsonl"
    log = EventLog(path, job="j")
    log.carried = list
    log.write("commit", step=0)
    [(after, _)] = follow(path)
    for step in range(1, 6):
        log.cut()
        log.write("commit", step=step)

    assert parts.closed(path) == [3, 4]
    assert kinds_after(path, after)[0] == CONTINUED
    assert steps_of(record for _, record in follow(path, after)) == [3, 4, 5]


def test_parts_stay_while_the_next_does_not_say_what_they_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full when it began."""
    monkeypatch.setattr(parts, "KEPT_PARTS", 2)
    path = tmp_path / "events.jsonl"
    log = EventLog(path, job="j")
    oldest = []
    for step in range(7):
        log.carried = None if step < 4 else list
        log.cut()
        log.write("commit", step=step)
        oldest.append(parts.closed(path)[0])

    assert oldest == [0, 0, 0, 0, 0, 0, 5]
    assert parts.closed_path(path, 5).read_text().count(CONTINUED) == 1


def test_another_coordinator_follows_into_the_next_part(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first, second = EventLog(path, job="j"), EventLog(path, job="j")
    first.carried = second.carried = list
    for step in range(6):
        (first, second)[step % 2].write("commit", step=step)
        if step in (1, 4):
            assert (first, second)[step % 2].cut()

    assert steps_of(every(path)) == list(range(6))
    assert parts.closed(path) == [0, 1]
    assert sum(kind == CONTINUED for kind in kinds_after(path, 0)) == 2


def test_one_that_stopped_while_it_cuts_keeps_the_other_from_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    stopped, other = EventLog(path, job="j"), EventLog(path, job="j")
    other.carried = list
    with path.open("rb") as file:
        assert lock(file.fileno(), within_s=0)
        assert not other.cut()
        other.write("commit", step=0)
    stopped.close()

    assert other.cut()
    assert steps_of(every(path)) == [0]


def test_killed_at_any_line_of_a_cut_a_log_is_whole(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("cutting.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    ends = [line.split() for line in done.stdout.splitlines()]
    assert len(ends) > 30
    assert [died for _, died in ends] == ["1"] * (len(ends) - 1) + ["0"]

    for number, _ in ends:
        path = tmp_path / number / "events.jsonl"
        was = steps_of(every(path))
        assert was in (expected := [0, 1, 2, 3, 4] * 2, expected[:-1])
        position = max((after for after, _ in follow(path)), default=0)
        log = Journal(path, job="j")
        log.carried = lambda: [{"v": 1, "kind": "job_started", "command": ["train.py"]}]

        log.write("commit", step=9)
        assert log.cut()
        log.write("commit", step=10)
        log.close()

        assert steps_of(every(path)) == [*was, 9, 10]
        assert steps_of(record for _, record in follow(path, position)) == [9, 10]
        assert all(parts.head(path, one) for one in parts.closed(path))
