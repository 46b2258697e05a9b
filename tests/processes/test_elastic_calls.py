"""What a script does around its steps happens once to the state, whoever comes or goes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.live.prompt import run_typed
from tests.processes.elastic import also_in_two_workers
from tests.processes.launching import running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("train_in_calls.py")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def alone(directory: Path, *words: object) -> tuple[int, str]:
    """Return committed steps and digest of a run without an agent."""
    path = directory / "alone" / "digests"
    path.parent.mkdir()
    arguments = (SCRIPT, "--digest-file", path, *words)
    done = run_typed(*arguments, cwd=directory, environment=os.environ)
    assert done.returncode == 0, done.stderr
    (line,) = lines_of(path)
    return line["committed"], line["digest"]


@also_in_two_workers
def test_who_is_late_for_a_call_joins_in_the_next_one(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "digests"
    words = ("--digest-file", path, "--meeting", tmp_path, "--faults", "r2@tail:1=SIGKILL")
    with running(tmp_path, SCRIPT, *words, replicas=2, workers=workers, warm=True) as job:
        job.wait_for(lambda: len(job.records("switch")) == 2, "r3 is to join")
        (tmp_path / "go").touch()
        assert job.process.wait(100) == 0
        refused = [r for r in job.records("refused") if r["joiner"]]
        assert {(r["replica"], r["calls"]) for r in refused} <= {("r3", 1)}
        assert not job.records("dismiss")
    assert "r3" in {line["replica"] for line in lines_of(path)}
    assert {(r["committed"], r["digest"]) for r in lines_of(path)} == {alone(tmp_path)}
    assert (tmp_path / "log.csv").read_text() == (tmp_path / "alone/log.csv").read_text()


def test_rows_of_a_leader_that_dies_in_its_tail_are_in_the_log_once(tmp_path: Path) -> None:
    words = ("--digest-file", tmp_path / "digests", "--faults", "r1@tail:5=SIGKILL")
    with running(tmp_path, SCRIPT, *words, replicas=2, warm=True) as job:
        assert job.process.wait(100) == 0
    digests = {(r["committed"], r["digest"]) for r in lines_of(tmp_path / "digests")}
    assert digests == {alone(tmp_path)}
    assert (tmp_path / "log.csv").read_text() == (tmp_path / "alone/log.csv").read_text()


def test_who_asks_for_fewer_steps_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    """It ended the job as finished, or session.evaluate was blamed, which nobody had called."""
    path = tmp_path / "digests"
    words = ("--digest-file", path, "--short", "r2")
    with running(tmp_path, SCRIPT, *words, replicas=2, restarts=0, warm=True) as job:
        assert job.process.wait(100) == 0
        (dismissed,) = job.records("dismiss")
    assert dismissed["reason"].startswith("its steps() goes to step 3, the run's to step 4:")
    (line,) = lines_of(path)
    assert (line["committed"], line["digest"]) == alone(tmp_path)


def test_a_leader_that_fails_inside_the_session_after_the_last_step_is_told(
    tmp_path: Path,
) -> None:
    """The others had all done their part, so the job ended with 0; nothing was saved."""
    words = ("--digest-file", tmp_path / "digests", "--leader-fails", "end")
    with running(tmp_path, SCRIPT, *words, replicas=2, restarts=0, warm=True) as job:
        assert job.process.wait(100) == 1
        (ended,) = job.records("end_job")
    assert ended["reason"] == (
        "finished 12 steps; then r1 failed: OSError: no space left, before its script had ended: "
        "what the leader alone was to save then may be missing"
    )


def test_a_failure_in_a_tail_that_the_script_catches_is_one_and_names_what_may_be_missing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "digests"
    words = ("--digest-file", path, "--leader-fails", "tail")
    with running(tmp_path, SCRIPT, *words, replicas=2, restarts=0, warm=True) as job:
        assert job.process.wait(100) == 0
        lasting = [one["text"] for one in job.records("note") if one.get("lasting")]
        ends = {one["replica"]: one["detail"] for one in job.records("exited")}
    assert lasting == [
        "r1 failed in the tail of step 2, which it led: what the leader alone was to write there "
        "may be missing"
    ]
    assert ends["r1"] == "OSError: no space left"
    (line,) = lines_of(path)
    assert (line["committed"], line["digest"]) == alone(tmp_path)


def test_a_stop_in_a_step_that_is_committed_late_ends_the_job_after_it(tmp_path: Path) -> None:
    path = tmp_path / "digests"
    words = ("--digest-file", path, "--stop-at", 6, "--faults", "r2@vote:6=SIGKILL")
    with running(tmp_path, SCRIPT, *words, replicas=2, warm=True) as job:
        assert job.process.wait(100) == 0
    (line,) = lines_of(path)
    assert (line["committed"], line["digest"]) == alone(tmp_path, "--stop-at", 6)


def test_what_stands_behind_the_last_call_is_for_who_has_the_state(tmp_path: Path) -> None:
    """A replica that came in the last moment fell through the last call, and said what it had:
    a model that nobody had trained."""
    path, has_come = tmp_path / "digests", tmp_path / "has come"
    words = ("--digest-file", path, "--lingers", has_come, "--faults", "r2@tail:11=SIGKILL")
    with running(tmp_path, SCRIPT, *words, replicas=2, warm=True) as job:
        job.wait_for(
            lambda: {record["replica"] for record in job.records("spare")} == {"r1", "r2", "r3"},
            "r3 has come",
        )
        has_come.touch()
        assert job.process.wait(100) == 0
    assert {(r["committed"], r["digest"]) for r in lines_of(path)} == {alone(tmp_path)}
