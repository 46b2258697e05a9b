"""What became of every run is known, also of those that could not say it themselves."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.observe.test_run_index import gone

from pliant.core.errors import ConfigError
from pliant.machine import processes
from pliant.machine.locks import locked
from pliant.machine.processes import ProcessMark
from pliant.machine.registry import RuntimeFiles, StateDirectory
from pliant.observe.run_index import IndexedRun, RunIndex, RunOutcome
from pliant.observe.runs import (
    KnownRun,
    find_ended,
    find_resumable,
    find_run,
    find_running,
    how_to_go_on,
    known_runs,
    run_in,
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDirectory:
    monkeypatch.chdir(tmp_path)
    return StateDirectory(tmp_path / "state")


def begun(
    state: StateDirectory, job: str, mark: ProcessMark, *, at: float = 1.0, kept: int | None = None
) -> IndexedRun:
    """Return a run that has begun, with its files: 7 steps of 9, maybe with a checkpoint."""
    out = state.path.parent / "runs" / job
    out.mkdir(parents=True, exist_ok=True)
    (out / "holder").write_text(f"{job}-1\n")
    of_mark = {name: getattr(mark, name) for name in ("pid", "began", "machine", "host")}
    records: list[dict[str, Any]] = [
        {"kind": "job_started", "at": at, **of_mark},
        {"kind": "plan", "total_steps": 9},
        {"kind": "start_replica", "replica": "r1"},
        {"kind": "switch", "order": {"generation": 1, "members": [{"replica": "r1"}]}},
        {"kind": "switched", "replica": "r1", "generation": 1, "step": 0},
        *({"kind": "commit", "step": step, "generation": 1} for step in range(7)),
    ]
    if kept is not None:
        records.append({"kind": "saved", "checkpoint": "step", "committed": kept, "at": at})
    lines = (json.dumps({"v": 1, "job": job, **record}) + "\n" for record in records)
    (out / "events.jsonl").write_text("".join(lines))
    run = IndexedRun(job=job, out=out, holder=f"{job}-1", mark=mark, began_at=at)
    RunIndex(state.runs).begin(run)
    return run


def only(state: StateDirectory) -> KnownRun:
    (run,) = known_runs(state)
    return run


def test_a_run_whose_process_lives_runs(state: StateDirectory) -> None:
    begun(state, "gpt", ProcessMark.own())

    run = only(state)

    assert (run.is_running, run.outcome.state, run.outcome.step) == (True, "training", 7)
    assert (run.outcome.num_replicas, run.outcome.total_steps) == (1, 9)
    assert how_to_go_on(run) == "pliant status --job gpt"


def test_a_run_whose_process_is_gone_was_killed_and_never_shows_as_training(
    state: StateDirectory,
) -> None:
    run = begun(state, "gpt", gone(), kept=5)

    for _ in range(2):  # first concluded from its log, then remembered
        known = only(state)
        assert (known.is_running, known.outcome.state, known.outcome.step) == (False, "killed", 7)
        assert known.ended_at == run.out.joinpath("events.jsonl").stat().st_mtime
    assert run_in(run.out).outcome.state == "killed"
    assert how_to_go_on(known, known_runs(state)) == "pliant resume gpt"
    assert find_resumable("gpt", state) == find_resumable(None, state) == run.out
    with pytest.raises(ConfigError, match=r"job gpt does not run: killed after 7 steps \(pliant"):
        find_running("gpt", state)


def test_who_has_its_process_id_now_is_not_taken_for_it(state: StateDirectory) -> None:
    begun(state, "gpt", replace(ProcessMark.own(), began="1"))

    assert only(state).outcome.state == "killed"


def test_after_a_reboot_a_process_that_began_at_the_same_moment_is_not_taken_for_it(
    state: StateDirectory,
) -> None:
    own = ProcessMark.own()
    begun(state, "gpt", replace(own, machine="another-boot pid:[1]"))

    assert only(state).outcome.state == "killed"
    files = RuntimeFiles.of("job", "gpt", state.jobs)
    files.write(url="http://h", token="t", out=state.path)
    values = json.loads(files.record.read_text()) | {"machine": "another-boot pid:[1]"}
    files.record.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="job gpt does not run"):
        find_running("gpt", state)
    assert not files.record.exists()


def test_a_run_of_another_machine_that_shares_the_directory_is_not_said_to_be_killed(
    state: StateDirectory,
) -> None:
    elsewhere = replace(ProcessMark.own(), machine="its-boot pid:[1]", host="other-host")
    run = begun(state, "gpt", elsewhere, kept=5)

    known = only(state)

    assert (known.outcome.state, known.outcome.reason) == ("elsewhere", "it ran on other-host")
    assert (how_to_go_on(known), RunIndex(state.runs).runs()[0].outcome) == ("", None)
    files = RuntimeFiles.of("job", "gpt", state.jobs)
    files.write(url="http://h", token="t", out=run.out)
    values = json.loads(files.record.read_text()) | {"machine": "x y", "host": "other-host"}
    files.record.write_text(json.dumps(values))
    known_runs(state)
    assert files.record.exists()  # it is not ours to remove


def test_in_another_container_of_this_machine_the_lock_of_its_directory_tells(
    state: StateDirectory,
) -> None:
    boot = processes.machine_id().split()[0]
    run = begun(state, "gpt", replace(ProcessMark.own(), machine=f"{boot} pid:[1]"))

    with locked(run.out / "running.lock", shared=True):
        assert only(state).is_running
    assert only(state).outcome.state == "killed"


def test_one_whose_log_tells_its_end_was_not_killed(state: StateDirectory) -> None:
    """The index could not be written at its end: the disk was full."""
    run = begun(state, "gpt", gone())
    with (run.out / "events.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "job_ended", "exit_code": 0, "reason": "finished"}) + "\n")

    assert only(state).outcome.state == "finished"


def test_a_look_at_a_resumed_run_before_its_first_record_does_not_end_it(
    state: StateDirectory,
) -> None:
    run = begun(state, "gpt", gone(), kept=5)
    with (run.out / "events.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "job_ended", "exit_code": 3, "reason": "stopped"}) + "\n")
    RunIndex(state.runs).end(run, RunOutcome(state="stopped", exit_code=3), 5.0)
    RuntimeFiles.of("job", "gpt", state.jobs).write(url="http://h", token="t", out=run.out)
    RunIndex(state.runs).begin(replace(run, mark=ProcessMark.own()))

    known = only(state)

    assert (known.is_running, known.outcome.state, known.outcome.step) == (True, "starting", 7)
    assert RunIndex(state.runs).runs()[0].outcome is None


def test_a_running_job_that_is_not_in_the_index_is_listed(state: StateDirectory) -> None:
    RuntimeFiles.of("job", "gpt", state.jobs).write(url="http://h", token="t", out=Path("runs/x"))

    run = only(state)

    assert (run.job, run.is_running, run.out) == ("gpt", True, Path("runs/x").absolute())


def test_a_directory_that_holds_another_run_now_is_not_taken_for_it(state: StateDirectory) -> None:
    run = begun(state, "gpt", gone(), kept=5)
    (run.out / "holder").write_text("gpt-2\n")

    known = only(state)

    assert (known.has_its_files, known.is_resumable, known.outcome.state) == (
        False,
        False,
        "killed",
    )
    with pytest.raises(ConfigError, match="its files are no longer in"):
        find_ended("gpt", state)
    with pytest.raises(ConfigError, match="its files are no longer in"):
        find_resumable("gpt", state)


def test_of_several_of_one_name_the_newest_is_meant_and_the_others_by_their_directory(
    state: StateDirectory,
) -> None:
    old = begun(state, "gpt", gone(), at=1.0, kept=5)
    moved = old.out.rename(old.out.with_name("old"))
    RunIndex(state.runs).begin(replace(old, out=moved))
    os.utime(moved / "events.jsonl", (5.0, 5.0))
    new = begun(state, "gpt", gone(), at=9.0, kept=5)

    runs = [run for run in known_runs(state) if run.has_its_files]

    assert [run.out for run in runs] == [new.out, moved]
    assert [how_to_go_on(run, known_runs(state)) for run in runs] == [
        f"pliant resume {new.out}",  # a name alone would mean one of them, by the directory
        f"pliant resume {moved}",
    ]
    assert find_run("gpt", None, state) == find_resumable("gpt", state) == new.out


def test_a_coordinator_that_was_killed_is_not_resumed_while_its_replicas_may_train(
    state: StateDirectory,
) -> None:
    run = begun(state, "gpt", gone(), kept=5)
    RunIndex(state.runs).begin(replace(run, is_apart=True))

    assert how_to_go_on(only(state)) == "the same command again"
    with pytest.raises(ConfigError, match="start its coordinator again as it was started"):
        find_resumable("gpt", state)


def test_what_runs_is_not_resumed(state: StateDirectory) -> None:
    begun(state, "gpt", ProcessMark.own())

    with pytest.raises(ConfigError, match=r"^job gpt: it is running; see pliant status$"):
        find_resumable("gpt", state)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (
            RunOutcome(state="finished", exit_code=0, step=9),
            "finished after 9 steps; nothing",
        ),
        (
            RunOutcome(state="failed", exit_code=1, step=1),
            r"failed after 1 step, without checkpoints \(Session\(checkpoint=.*: it cannot go on, "
            r"but begin again at step 0 with pliant resume /.*$",
        ),
    ],
)
def test_what_cannot_go_on_says_why(state: StateDirectory, outcome: RunOutcome, why: str) -> None:
    run = begun(state, "gpt", ProcessMark.own())
    RunIndex(state.runs).end(run, outcome, 9.0)

    with pytest.raises(ConfigError, match=f"job gpt: {why}"):
        find_resumable("gpt", state)
    with pytest.raises(ConfigError, match=r"no job is running; gpt: .*\(pliant status --job gpt\)"):
        find_running(None, state)


def test_among_several_that_can_go_on_the_newest_is_meant(state: StateDirectory) -> None:
    a, b = (begun(state, name, gone(), kept=5) for name in ("a", "b"))
    os.utime(a.out / "events.jsonl", (9e9, 9e9))

    assert find_resumable(None, state) == a.out
    assert find_resumable("b", state) == b.out
    with pytest.raises(ConfigError, match="x is neither a run's directory nor a job that waits"):
        find_resumable("x", state)
    with pytest.raises(ConfigError, match="no job named x is running or has ended; known: "):
        find_ended("x", state)


def test_without_a_running_job_the_newest_run_here_is_meant(state: StateDirectory) -> None:
    for number, name in enumerate(("a", "b")):
        path = Path("runs") / name / "events.jsonl"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (number, number))

    assert find_run(None, None, state) == Path("runs/b")
    assert find_run(None, Path("runs/a"), state) == Path("runs/a")
    with pytest.raises(ConfigError, match="holds no run"):
        find_run(None, Path("runs"), state)
