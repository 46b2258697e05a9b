"""``pliant ls`` and ``status --job`` tell of what has ended, for people and for programs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.observe.test_run_index import gone
from tests.observe.test_runs import begun

from pliant.cli.main import code_of
from pliant.cli.run_list import SHOWN, last_words, runs_table
from pliant.cli.terminal import PlainConsole
from pliant.machine.processes import ProcessMark
from pliant.machine.registry import RuntimeFiles, StateDirectory
from pliant.observe.run_index import RunIndex, RunOutcome
from pliant.observe.runs import find_resumable, known_runs

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDirectory:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return StateDirectory(tmp_path / "pliant")


def test_without_any_run_it_says_how_to_start_one(state: StateDirectory, capsys: Captured) -> None:
    assert code_of(["ls"]) == 0
    assert capsys.readouterr().out == "no run is known here; start one with pliant run\n"
    assert code_of(["ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"runs": []}


def test_a_run_that_was_killed_promises_nothing(state: StateDirectory, capsys: Captured) -> None:
    run = begun(state, "gpt", gone())
    found = {"v": 1, "at": 9.0, "job": "gpt", "kind": "nodes_apart"}
    with (run.out / "events.jsonl").open("a") as log:
        log.write(json.dumps({**found, "pairs": [[["n1", "n2"], 1, 30.0]]}) + "\n")

    for command in ("status", "explain"):
        assert code_of([command, "--job", "gpt", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["apart"] == []
        assert code_of([command, "--out", str(run.out)]) == 0
        assert "do not reach each other" not in capsys.readouterr().out


def test_on_a_pipe_each_run_is_one_line_however_long(
    state: StateDirectory, capsys: Captured
) -> None:
    begun(state, "killed", gone(), kept=5)
    begun(state, "lives", ProcessMark.own())
    far = begun(state, "a" * 60, gone(), at=3.0)
    RunIndex(state.runs).end(far, RunOutcome(state="failed", step=1, exit_code=1), 9.0)

    assert code_of(["ls"]) == 0

    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "job",
        "state",
        "steps",
        "replicas",
        "began",
        "for",
        "where",
        "to",
        "go",
        "on",
    ]
    assert [line.split()[:4] for line in lines] == [
        ["lives", "training", "7/9", "1"],
        ["killed", "killed", "7/9", "1"],
        ["a" * 60, "failed", "1", "0"],
    ]
    assert lines[1].split()[-4:] == ["runs/killed", "pliant", "resume", "killed"]
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_terminal_is_too_narrow_to_say_where_a_run_is_and_how_it_goes_on(
    state: StateDirectory, width: int
) -> None:
    """At 80 columns both were left out as soon as one job had a long name."""
    for name in ("gpt", "demo-undisturbed-31463"):
        begun(state, name, gone(), kept=5)
    runs = known_runs(state)
    console = PlainConsole(width=width, force_terminal=True, color_system=None)

    with console.capture() as captured:
        console.print(runs_table(runs, runs))

    lines = captured.get().splitlines()
    said = " ".join(captured.get().split())
    assert all(len(line) <= width for line in lines)
    assert said.count(" killed 7/9 ") == len(runs)
    for run in runs:
        assert f"pliant resume {run.job}" in said
    assert ("to go on" in lines[0]) == (width > 100)


def test_programs_get_every_fact(state: StateDirectory, capsys: Captured) -> None:
    run = begun(state, "gpt", gone(), at=2.0, kept=5)

    assert code_of(["ls", "--json"]) == 0

    (values,) = json.loads(capsys.readouterr().out)["runs"]
    assert values.pop("ended_at") == (run.out / "events.jsonl").stat().st_mtime
    assert values == {
        "job": "gpt",
        "state": "killed",
        "is_running": False,
        "step": 7,
        "total_steps": 9,
        "num_replicas": 1,
        "began_at": 2.0,
        "lives": 1,
        "exit_code": None,
        "reason": "its processes are gone: they were killed, or the machine was restarted",
        "checkpoint": 5,
        "out": str(run.out),
        "has_its_files": True,
        "go_on": "pliant resume gpt",
    }


def test_older_ones_are_shown_when_all_are_asked_for(
    state: StateDirectory, capsys: Captured
) -> None:
    for number in range(SHOWN + 2):
        begun(state, f"run-{number}", gone())

    assert code_of(["ls"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + SHOWN
    assert code_of(["ls", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + SHOWN + 2


def test_the_status_of_an_ended_job_tells_its_end_and_its_last_words(
    state: StateDirectory, capsys: Captured
) -> None:
    run = begun(state, "gpt", gone(), kept=5)
    logs = run.out / "logs"
    logs.mkdir()
    (logs / "r1.log").write_text("".join(f"line {n}\n" for n in range(9)) + "10%\r\x1b[31mend\n")
    (logs / "forkserver.log").write_text("not of a replica\n")

    assert code_of(["status", "--job", "gpt"]) == 0

    said = capsys.readouterr().out
    assert "gpt  killed" in said
    assert "training" not in said
    assert ": its processes are gone: they were killed, or the machine was restarted\n" in said
    assert "last words of r1:\n  line 5\n  line 6\n  line 7\n  line 8\n  \\x1b[31mend\n" in said
    assert said.endswith("to go on: pliant resume gpt\n")
    assert code_of(["status", "--out", str(run.out), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["state"], values["step"], values["replicas"]) == ("killed", 7, [])
    assert (values["go_on"], len(values["last_words"]["r1"])) == ("pliant resume gpt", 5)


def test_a_refusal_that_a_job_ended_with_is_not_among_its_last_words(
    state: StateDirectory, capsys: Captured
) -> None:
    why = "the batch is empty (train.py, line 3)"
    run = begun(state, "gpt", gone(), at=2.0)
    RunIndex(state.runs).end(run, RunOutcome(state="failed", exit_code=2, reason=why), 9.0)
    (run.out / "logs").mkdir()
    log = run.out / "logs" / "r1.log"
    log.write_text(f"hello\nUsageError: {why}\n")

    assert code_of(["status", "--job", "gpt"]) == 0

    said = capsys.readouterr().out
    assert said.count(why) == 1
    assert "last words of r1:\n  hello\n" in said
    log.write_text(f"UsageError: {why}\n")
    code_of(["status", "--job", "gpt"])
    assert "last words" not in capsys.readouterr().out


def test_every_command_is_about_the_run_of_this_directory_then_the_newest(
    state: StateDirectory, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for at, name in enumerate(("old", "new")):
        run = begun(state, name, gone(), kept=5)
        os.utime(run.out / "events.jsonl", (at + 1.0,) * 2)

    for here, meant in ((tmp_path, "new"), (tmp_path / "runs" / "old", "old")):
        monkeypatch.chdir(here)
        assert find_resumable(None, state).name == meant
        for command in ("status", "audit", "explain"):
            code_of([command])
            said = capsys.readouterr()
            assert command == "explain" or meant in said.out
            assert said.err == ""


def test_status_says_who_else_runs(state: StateDirectory, capsys: Captured) -> None:
    begun(state, "ended", gone(), kept=5)
    files = RuntimeFiles.of("job", "other", state.jobs)
    files.write(url="http://127.0.0.1:9", token="t", out=Path("/elsewhere"))

    assert code_of(["status"]) == 0

    said = capsys.readouterr()
    assert "killed" in said.out
    assert said.err == "also running: other (pliant status --job NAME)\n"


@pytest.mark.parametrize("told", ["the terminal was closed", "SIGTERM came"])
def test_a_run_that_was_killed_as_it_stopped_says_what_had_told_it_to(
    state: StateDirectory, capsys: Captured, told: str
) -> None:
    run = begun(state, "gpt", gone(), kept=5)
    note = {"v": 1, "at": 9.0, "job": "gpt", "kind": "note", "text": f"{told}; to go on: ..."}
    with (run.out / "events.jsonl").open("a") as log:
        log.write(json.dumps(note) + "\n")

    assert code_of(["status"]) == 0

    assert f"had been told to stop: {told}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["explain", "logs", "audit"])
def test_what_an_ended_job_left_is_found_by_its_name(
    state: StateDirectory, capsys: Captured, command: str
) -> None:
    run = begun(state, "gpt", gone())
    (run.out / "logs").mkdir()
    (run.out / "logs" / "r1.log").write_text("hello\n")

    code_of([command, "--job", "gpt"])

    said = capsys.readouterr()
    assert said.err == ""
    assert said.out


def test_a_run_whose_output_cannot_be_read_has_no_last_words(tmp_path: Path) -> None:
    assert last_words(tmp_path) == {}
    (tmp_path / "logs" / "r1.log").mkdir(parents=True)
    assert last_words(tmp_path) == {}
