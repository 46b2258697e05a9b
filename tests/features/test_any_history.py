"""What the catalogue holds gives the same bits whoever joins, drains and dies.

One job per group trains all its features at once under a real agent; the reference is the same job
alone in this process.  The history is the same for all, from one replica to three, of one worker or
of two:

    r1 | from step 8: r1 r2 | from 10: r1 r2 r3 | r1 is killed in step 11: r2 r3
       | r4 joins, by 15: r2 r3 r4 | r2 drains, from 18: r3 r4, which have not seen the first step
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.features import catalogue, feature, several_workers, train_loop
from tests.processes.elastic import (
    Outcome,
    also_in_two_workers,
    drain,
    scale,
    wait_for_switch,
)
from tests.processes.launching import RunningJob, running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

FEATURES = Path(__file__).with_name("train_features.py")
LOOP = Path(__file__).with_name("train_loop.py")
STEPS = 20
DEADLINE_S = 120.0
HOLDS = (6, 8, 13, 16)
FAULTS = "r1@bucket:11=SIGKILL"


NAMES = sorted(catalogue.JOBS)
JOBS = [
    *(pytest.param(job, 1, (), id=job) for job in NAMES),
    *(
        pytest.param(
            job,
            2,
            (),
            id=f"{job}, two workers",
            marks=() if job == catalogue.SESSION else pytest.mark.soak,
        )
        for job in NAMES
    ),
    *(
        pytest.param(job, 2, ("--shard",), id=f"{job}, sharded", marks=pytest.mark.soak)
        for job in NAMES
    ),
]
"""Jobs, in replicas of how many workers they are trained, and whether these shard the models."""


@pytest.mark.parametrize(("job", "workers", "shard"), JOBS)
def test_joins_kills_and_drains_leave_no_trace_in_any_feature(
    tmp_path: Path, job: str, workers: int, shard: tuple[str, ...]
) -> None:
    outcome = run(tmp_path, FEATURES, "--job", job, *shard, workers=workers)

    features = catalogue.JOBS[job]
    if shard:
        features = several_workers.alike_when_sharded(features)
    expected = feature.train(features, STEPS)
    whole = expected.pop("")
    found = [line["features"] for line in outcome.digests]
    different = [name for name, digest in expected.items() if {f[name] for f in found} != {digest}]
    assert different == []
    outcome.check(whole)
    assert {line["replica"] for line in outcome.digests} == names("r3", "r4", workers=workers)


@also_in_two_workers
def test_habits_around_the_loops_leave_no_trace(tmp_path: Path, workers: int) -> None:
    outcome = run(tmp_path, LOOP, "--job", "loops", workers=workers)

    (tmp_path / "alone").mkdir()
    outcome.check(train_loop.train(tmp_path / "alone", STEPS))
    assert lines(tmp_path / "notes") == lines(tmp_path / "alone" / "notes")
    left = {line["replica"]: line["leaving"] for line in lines(tmp_path / "finally")}
    gone = names("r2", workers=workers)
    assert left == dict.fromkeys(names("r2", "r3", "r4", workers=workers), False) | dict.fromkeys(
        gone, True
    )
    caught = lines(tmp_path / "caught")
    assert {line["replica"] for line in caught} == gone
    assert {line["error"] for line in caught} == {"SystemExit(0)"}
    (log,) = (outcome.job.out / "logs").glob("r3.log" if workers == 1 else "r3.0.log")
    assert "100%|####" in log.read_text()
    weights, expected = (
        torch.load(directory / "weights.pt") for directory in (tmp_path, tmp_path / "alone")
    )
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def names(*replicas: str, workers: int) -> set[str]:
    """Return the names of all workers of these replicas."""
    places = ["", *(f".{place}" for place in range(1, workers))]
    return {f"{replica}{place}" for replica in replicas for place in places}


def run(directory: Path, script: Path, *words: object, workers: int) -> Outcome:
    """Run a script through the history at the top of this module."""
    for step in HOLDS:
        (directory / f"hold-{step}").touch()
    command = [script, "--steps", STEPS, "--directory", directory, "--faults", FAULTS, *words]
    with running(
        directory, *command, replicas=3, start=1, warm=True, workers=workers
    ) as running_job:
        play(running_job, directory)
        assert running_job.process.wait(DEADLINE_S) == 0, running_job.said()
        running_job.assert_nothing_is_left()
        return Outcome(running_job, directory, STEPS)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def play(job: RunningJob, directory: Path) -> None:
    def at(step: int, act: Callable[[], None], *members: str) -> None:
        """Let ``act`` lead to these members in the tail of a step; they meet after the next."""
        job.wait_for_steps(step + 1)
        act()
        wait_for_switch(job, *members)
        (directory / f"hold-{step}").unlink()

    at(6, lambda: scale(job, 2), "r1", "r2")
    at(8, lambda: scale(job, 3), "r1", "r2", "r3")
    at(13, lambda: None, "r2", "r3", "r4")
    at(16, lambda: drain(job, "r2"), "r3", "r4")
