"""Runs are remembered beyond their end, in a small directory that ends no run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.machine import files
from pliant.machine.processes import ProcessMark
from pliant.observe import run_index
from pliant.observe.run_index import IndexedRun, RunIndex, RunOutcome

DONE = RunOutcome(state="finished", step=5, exit_code=0)


def run(name: str = "gpt", *, at: float = 1.0, mark: ProcessMark | None = None) -> IndexedRun:
    out, mark = Path(f"/runs/{name}"), mark or ProcessMark.own()
    return IndexedRun(job=name, out=out, holder=f"{name}-1", mark=mark, began_at=at)


def gone() -> ProcessMark:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return replace(ProcessMark.own(), pid=process.pid, began="1")


def test_a_run_that_was_refused_and_removed_is_forgotten(tmp_path: Path) -> None:
    index, refused, other = RunIndex(tmp_path / "runs"), run("refused"), run("other")
    index.begin(refused)
    index.begin(other)

    index.forget(refused.out)

    assert index.runs() == [other]


def test_a_run_is_remembered_while_it_runs_and_with_its_end(tmp_path: Path) -> None:
    index, one = RunIndex(tmp_path / "runs"), run()

    index.begin(one)
    assert index.runs() == [one]
    index.end(one, DONE, 9.0)

    assert index.runs() == [replace(one, outcome=DONE, ended_at=9.0)]
    (path,) = (tmp_path / "runs").iterdir()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_run_that_is_resumed_is_one_run_with_more_lives(tmp_path: Path) -> None:
    index = RunIndex(tmp_path)
    index.begin(run(mark=gone()))
    index.end(run(mark=gone()), replace(DONE, state="stopped"), 3.0)

    index.begin(run(at=5.0))

    assert index.runs() == [replace(run(at=1.0), lives=2)]


def test_who_was_taken_over_does_not_end_the_run_of_who_follows(tmp_path: Path) -> None:
    index, first = RunIndex(tmp_path), run(mark=gone())
    index.begin(first)
    index.begin(run())

    index.end(first, DONE, 9.0)

    assert [one.outcome for one in index.runs()] == [None]


def test_the_oldest_of_those_that_ended_are_forgotten_and_none_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_index, "KEPT", 3)
    index, killed = RunIndex(tmp_path), gone()
    index.begin(run("lives", at=0.5))
    index.begin(run("killed", at=0.7, mark=killed))
    for number in range(1, 6):
        index.begin(one := run(f"run-{number}", at=float(number)))
        index.end(one, DONE, number + 0.5)
    index.begin(run("last", at=9.0))

    assert [one.job for one in index.runs()] == ["last", "run-5", "run-4", "run-3", "lives"]


@pytest.mark.parametrize("host", ["another", ""])
def test_runs_of_other_machines_and_containers_are_bounded_like_those_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(run_index, "KEPT", 3)
    index, own = RunIndex(tmp_path), ProcessMark.own()
    machine = own.machine.partition(" ")[0] + " pid:[1]"
    away = replace(own, machine=machine, host=host or own.host)
    assert away.lives() is None
    for number in range(6):
        index.begin(run(f"run-{number}", at=float(number), mark=away))
    index.begin(run("here", at=0.5))

    assert [one.job for one in index.runs()] == ["run-5", "run-4", "run-3", "here"]


def test_what_is_damaged_or_anothers_is_passed_over_and_what_is_not_ours_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_index, "KEPT", 0)
    index = RunIndex(tmp_path)
    index.begin(run())
    (whole,) = tmp_path.iterdir()
    damaged = [f"{number:032x}.json" for number in range(5)]
    (tmp_path / damaged[0]).write_bytes(whole.read_bytes()[:40])
    (tmp_path / damaged[1]).write_text(json.dumps([1, 2]))
    (tmp_path / damaged[2]).write_text(json.dumps({"job": 7, "out": {}}))
    (tmp_path / damaged[3]).write_bytes(b"\xff" * (files.MOST_BYTES + 1))
    (tmp_path / damaged[4]).symlink_to(whole)
    os.mkfifo(tmp_path / f"{9:032x}.json")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / f".{whole.name}{files.LEFTOVER}").write_text("{")

    assert index.runs() == [run()]
    index.begin(run())

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([whole.name, "notes.txt"])


def test_a_full_disk_or_a_directory_that_cannot_be_written_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = RunIndex(tmp_path / "runs")
    index.begin(run())
    monkeypatch.setattr(run_index, "replace_file", _no_room)

    index.begin(run("other"))
    index.end(run(), DONE, 9.0)

    assert index.runs() == [run()]
    (tmp_path / "file").touch()
    blocked = RunIndex(tmp_path / "file" / "runs")
    blocked.begin(run())
    blocked.end(run(), DONE, 9.0)
    assert blocked.runs() == []


def _no_room(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_directory_whose_name_is_no_unicode_ends_no_run(tmp_path: Path) -> None:
    index = RunIndex(tmp_path / "runs")
    odd = replace(run(), out=Path(os.fsdecode(b"/runs/\xff")))

    index.begin(odd)
    index.end(odd, DONE, 9.0)

    assert len(index.runs()) <= 1


@pytest.mark.parametrize(
    ("outcome", "can"),
    [
        (DONE, False),
        (RunOutcome(state="suspended", exit_code=3, step=7, kept=7), True),
        (RunOutcome(state="killed", step=7, kept=5), True),
        (RunOutcome(state="killed", step=7), False),
        (RunOutcome(state="lost", exit_code=4, step=7, kept=5), False),
        (RunOutcome(state="failed", exit_code=1, step=7, can_begin_again=True), True),
    ],
)
def test_what_has_a_checkpoint_that_verifies_can_go_on(outcome: RunOutcome, can: bool) -> None:
    assert outcome.is_resumable is can
