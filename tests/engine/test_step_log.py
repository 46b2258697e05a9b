"""Rows of steps are in their file once: leaders die, runs go on, others write to the file."""

from __future__ import annotations

import csv
import fcntl
from pathlib import Path

import pytest

from pliant.core.errors import ConfigError
from pliant.engine import step_log
from pliant.engine.step_log import BEFORE, LOOK_AFTER, Life, Moment, StepLog


class Replica:
    """One that writes a header and rows, and lands them."""

    def __init__(self, path: Path, *, run: str = "a", begun_at: int | None = 0) -> None:
        self.notes: list[str] = []
        self.life = Life(run=run, lineage=1, begun_at=begun_at)
        self.now: Moment | None = BEFORE
        self.log = StepLog(path, moment=lambda: self.now, noted=self.notes.append)
        csv.writer(self.log).writerow(["step"])

    def tail(self, step: int, *, leads: bool = True, part: int = 0) -> None:
        self.now = Moment(step, part)
        print(f"row {step}.{part}", file=self.log)
        self.log.land(self.life, leads=leads)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.csv"


def rows(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_the_next_leader_appends_what_the_last_one_did_not(path: Path) -> None:
    first, second = Replica(path), Replica(path)
    for step in range(3):
        first.tail(step)
        second.tail(step, leads=False)
    second.tail(3, leads=False)  # the leader of this tail died in it

    second.tail(4)

    assert rows(path) == ["step", "row 0.0", "row 1.0", "row 2.0", "row 3.0", "row 4.0"]


def test_two_leaders_of_one_tail_append_its_rows_once(path: Path) -> None:
    first, second = Replica(path), Replica(path)
    first.tail(0)

    second.tail(0)

    assert rows(path) == ["step", "row 0.0"]


def test_rows_whose_leader_died_before_it_wrote_their_line_are_written_again(path: Path) -> None:
    first, second = Replica(path), Replica(path)
    first.tail(0)
    second.tail(0, leads=False)
    with path.open("a") as file:
        file.write("row 1.0\n")  # and no line in the index

    second.tail(1)

    assert rows(path) == ["step", "row 0.0", "row 1.0"]


def test_a_run_that_goes_on_cuts_off_what_it_does_again(path: Path) -> None:
    first = Replica(path)
    for step in range(5):
        first.tail(step)
    first.tail(4, part=1)

    resumed = Replica(path, run="b", begun_at=3)
    resumed.tail(3)

    assert rows(path) == ["step", "row 0.0", "row 1.0", "row 2.0", "row 3.0"]
    assert resumed.notes == []


def test_a_run_from_step_0_begins_the_file_anew_and_says_so(path: Path) -> None:
    Replica(path).tail(0)

    anew = Replica(path, run="b")
    anew.tail(0)

    assert rows(path) == ["step", "row 0.0"]
    assert anew.notes == [f"{path} begins anew: it had the rows of an earlier run"]


def test_who_joined_later_leaves_what_others_wrote(path: Path) -> None:
    first, joiner = Replica(path), Replica(path, begun_at=None)
    first.tail(0)

    joiner.tail(1)

    assert rows(path) == ["step", "row 0.0", "row 1.0"]


def test_a_replica_that_a_later_life_does_not_know_writes_nothing(path: Path) -> None:
    stale, current = Replica(path), Replica(path)
    stale.tail(0)
    current.life = Life(run="a", lineage=2, begun_at=0)
    current.tail(0)

    stale.tail(1)
    stale.tail(2)

    assert rows(path) == ["step", "row 0.0"]


def test_what_a_phase_that_was_over_before_says_is_left_out(path: Path) -> None:
    replica = Replica(path)
    replica.now = None
    print("reached", file=replica.log)

    replica.tail(0)

    assert rows(path) == ["step", "row 0.0"]


def test_a_file_that_something_else_wrote_is_refused(path: Path) -> None:
    path.write_text("mine\n")

    with pytest.raises(
        ConfigError, match=r"log\.csv is there and session\.open_log did not write it"
    ):
        Replica(path)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no directory"):
        Replica(tmp_path / "logs/log.csv")


def test_a_file_that_became_shorter_is_told(path: Path) -> None:
    replica = Replica(path)
    replica.tail(0)
    path.write_text("")

    replica.tail(1)

    assert rows(path) == ["row 1.0"]
    assert "has cut" in replica.notes[0]


def test_a_replica_that_never_leads_keeps_few_rows(path: Path) -> None:
    leader, other = Replica(path), Replica(path)
    for step in range(2 * LOOK_AFTER):
        leader.tail(step)
        other.tail(step, leads=False)

    assert len(other.log._rows) <= LOOK_AFTER + 1
    assert len(rows(path)) == 2 * LOOK_AFTER + 1


def test_a_leader_does_not_wait_for_ever_for_one_that_was_stopped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_log, "WAIT_S", 0.05)
    replica = Replica(path)
    replica.tail(0)

    with path.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"log\.csv for 0\.05 s"):
            replica.tail(1)
