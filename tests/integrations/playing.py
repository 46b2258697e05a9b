"""Plays a script of a trainer under an agent, and reads what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.live.prompt import typed
from tests.processes.elastic import kill, scale, wait_for_members
from tests.processes.launching import RunningJob, running
from tests.processes.test_cli import environment, pliant, wait_for

END_S = 300.0


def alone(directory: Path, *words: object) -> str:
    """Run a script by itself; return what it said."""
    directory.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=directory,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def grow_lose_and_shrink(job: RunningJob) -> None:
    """Sizes 1-3-2, and the loss of the one that was there first."""
    wait_for_members(job, "r1")
    job.wait_for_steps(2)
    scale(job, 3)
    wait_for_members(job, "r1", "r2", "r3")
    scale(job, 2)
    kill(job, "r1")
    job.wait_for(lambda: len(job.records("reform")) > 0, "the others go on")


def elastic(
    directory: Path,
    monkeypatch: Any,
    *words: object,
    play: Callable[[RunningJob], None] = grow_lose_and_shrink,
) -> RunningJob:
    """Run a script under an agent while replicas come and go."""
    directory.mkdir(exist_ok=True)
    monkeypatch.chdir(directory)
    with running(directory, *words, replicas=3, start=1, warm=True) as job:
        play(job)
        (directory / "over").touch()
        assert job.process.wait(END_S) == 0, job.said()
        job.assert_nothing_is_left()
    return job


def refusal(directory: Path, *words: object) -> str:
    """Run a script that is refused; return the sentence."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def suspend_and_resume(home: Path, script: Path, *words: str) -> None:
    """Run with two replicas, put the run aside in its middle, and go on with three."""
    (home / "train.py").write_text(script.read_text())
    given = [str(home / "train.py"), "out", "--kept", "kept", *words]
    with typed(
        "pliant", "run", "--max", "2", *given, "--pace", "0.5",
        cwd=home, environment=environment(home),
    ) as run:  # fmt: skip
        wait_for(home, "r1,r2", state="training")
        assert pliant(home, "suspend").returncode == 0
        assert run.ended().returncode == 3
    resumed = pliant(home, "run", "--resume", "--max", "3", *given)

    assert resumed.returncode == 0, resumed.stderr


def weights(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path / "weights.pt", weights_only=True)
    return found


def are_equal(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def history(path: Path) -> list[dict[str, Any]]:
    """What was logged, without times."""
    times = ("_runtime", "_per_second", "_time")
    return [
        {name: value for name, value in line.items() if not name.endswith(times)}
        for line in json.loads((path / "history.json").read_text())
    ]


def files(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file())
