"""Whatever people do around their loops, all replicas do the same, and leave when they must."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.processes.elastic import drain, wait_for_members
from tests.processes.launching import RunningJob, running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("train_in_ways.py")
END_S = 90.0


def notes(path: Path, what: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["what"] == what]


def alone(directory: Path, way: str, steps: int) -> dict[str, Any]:
    path = directory / "alone"
    words = [sys.executable, SCRIPT, way, "--steps", steps, "--notes", path]
    subprocess.run([*map(str, words)], check=True, timeout=END_S, capture_output=True)
    (end,) = notes(path, "end")
    return end


def run(
    directory: Path, way: str, *words: object, play: Any = None, settings: Any = None
) -> tuple[Path, RunningJob]:
    path = directory / "notes"
    command = [SCRIPT, way, "--notes", path, *words]
    with running(directory, *command, replicas=2, warm=True, settings=settings) as job:
        if play is not None:
            play(job)
        assert job.process.wait(END_S) == 0, job.said()
        job.assert_nothing_is_left()
    return path, job


def test_a_stop_that_one_replica_asks_for_stops_all_after_the_same_step(tmp_path: Path) -> None:
    path, _ = run(tmp_path, "stops_by_clock", "--steps", 100_000, "--pace", 0.01)

    ends = notes(path, "end")
    (committed,) = {end["committed"] for end in ends}
    assert len(ends) == 2
    assert {end["digest"] for end in ends} == {alone(tmp_path, "plainly", committed)["digest"]}


def test_a_stop_by_loss_comes_at_the_same_step_as_alone(tmp_path: Path) -> None:
    path, _ = run(tmp_path, "stops_by_loss", "--steps", 300)

    expected = alone(tmp_path, "stops_by_loss", 300)
    assert 1 < expected["committed"] < 300
    assert [(end["committed"], end["digest"]) for end in notes(path, "end")] == [
        (expected["committed"], expected["digest"])
    ] * 2


@pytest.mark.parametrize("words", [(), ("--swallow",)])
def test_a_leaver_goes_through_its_finally_and_past_whatever_holds_it(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        job.wait_for_steps(3)
        drain(job, "r2")

    path, job = run(tmp_path, "has_threads", "--steps", 60, "--pace", 0.02, *words, play=play)

    left = {note["replica"]: note["leaving"] for note in notes(path, "finally")}
    assert left == {"r1": False, "r2": True}
    assert {note["replica"]: note["kind"] for note in notes(path, "swallowed")} == (
        {"r2": "SystemExit"} if words else {}
    )
    exits = {r["replica"]: r["exited_kind"] for r in job.records("exited")}
    assert exits == {"r1": "finished", "r2": "left"}
    assert notes(path, "end")[-1]["digest"] == alone(tmp_path, "plainly", 60)["digest"]


def test_an_announced_evaluation_may_take_longer_than_any_deadline(tmp_path: Path) -> None:
    settings = {"hang_s": 1.0, "step_s": 1.0}
    path, job = run(tmp_path, "evaluates_long", "--steps", 8, settings=settings)

    assert {r["exited_kind"] for r in job.records("exited")} == {"finished"}
    assert len({note["value"] for note in notes(path, "evaluated")}) == 1
    expected = alone(tmp_path, "evaluates_long", 8)
    assert {end["digest"] for end in notes(path, "end")} == {expected["digest"]}
