"""Runs one of the models under an agent while replicas come and go, and checks what came out."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.engine import models
from tests.processes.launching import RunningJob, newest_members, running
from tests.support.recorded import check_decisions

from pliant.observe.audit import audit_run

SCRIPT = Path(__file__).with_name("train_model.py")

DEADLINE_S = 120.0
"""Longest wait for a job's end: a loaded machine takes half a minute to import torch."""

Play = Callable[[RunningJob], None]

also_in_two_workers = pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=pytest.mark.soak)]
)
"""A test that is done again with replicas of two workers, beside the default ones."""


def reference(model: str, steps: int, *, options: dict[str, Any] | None = None, **more: Any) -> str:
    """Return the digest of a run that nobody touches, alone in this process."""
    if not options and not more:
        return _plain_reference(model, steps)
    return models.train(models.build(model, **(options or {})), steps, **more)


@cache
def _plain_reference(model: str, steps: int) -> str:
    """Train once for all tests of this process that compare with it."""
    return models.train(models.build(model), steps)


def run_until_over(directory: Path, model: str, play: Play, **more: Any) -> Outcome:
    """Train under an agent for as long as ``play`` goes on, and two steps or so beyond."""
    over = directory / "over"

    def play_and_end(job: RunningJob) -> None:
        play(job)
        over.touch()

    outcome = run(
        directory,
        model,
        100_000,
        play_and_end,
        arguments=("--until", over, *more.pop("arguments", ())),
        **more,
    )
    outcome.steps = outcome.digests[0]["committed"]
    return outcome


def run(
    directory: Path,
    model: str,
    steps: int,
    play: Play,
    *,
    replicas: int = 3,
    start: int | None = None,
    pace: float = 0.0,
    num_workers: int = 0,
    faults: str = "",
    options: dict[str, Any] | None = None,
    settings: dict[str, float] | None = None,
    restarts: int = 5,
    expected_code: int = 0,
    arguments: tuple[object, ...] = (),
    workers: int = 1,
    least: int = 1,
    balance: str = "even",
    exchange: str = "auto",
    limits: dict[str, float] | None = None,
    policy: dict[str, float] | None = None,
    **sizes: int,
) -> Outcome:
    """Train under an agent, with ``play`` going on beside it, to the end."""
    if workers > 1 and "--mesh" not in arguments:
        arguments = (*arguments, "--mesh", json.dumps({"shard": workers}))
    words: list[object] = [SCRIPT, "--model", model, "--steps", steps, "--pace", pace]
    words += ["--digest-file", directory / "digests", "--tails-file", directory / "tails"]
    words += ["--num-workers", num_workers, "--faults", faults]
    words += ["--options", json.dumps(options or {}), *arguments]
    for name, value in sizes.items():
        words += [f"--{name.replace('_', '-')}", value]
    with running(
        directory,
        *words,
        replicas=replicas,
        start=start,
        warm=True,
        settings=settings,
        restarts=restarts,
        workers=workers,
        least=least,
        balance=balance,
        exchange=exchange,
        limits=limits,
        policy=policy,
    ) as job:
        play(job)
        code = job.process.wait(DEADLINE_S)
        assert code == expected_code, job.said()
        job.assert_nothing_is_left()
        return Outcome(job, directory, steps)


class Outcome:
    """What a job left in its files."""

    def __init__(self, job: RunningJob, directory: Path, steps: int) -> None:
        self.job = job
        self.steps = steps
        self.digests = _lines(directory / "digests")
        self.tails = _lines(directory / "tails")
        self.ledger = [line for path in job.out.glob("ledger/*") for line in _lines(path)]

    def kinds(self, kind: str) -> list[Any]:
        return list(self.job.records(kind))

    def check(self, digest: str, *, cut_off: str = "") -> None:
        """Assert that the result is that of the untouched run, and what happened how often."""
        assert self.digests, self.job.said()
        assert {line["digest"] for line in self.digests} == {digest}
        assert {line["committed"] for line in self.digests} == {self.steps}
        self.check_tails(cut_off)
        self.check_commits()
        audit = audit_run(self.job.out)
        assert audit.exactly_once, audit.problems
        check_decisions(self.job.out)

    def check_tails(self, cut_off: str = "") -> None:
        """Each replica ran each tail at most once; each step had a tail, and at most one leader.

        One that is cut off may lead one tail more: who leads it in its place cannot know of that.
        """
        pairs = [(line["replica"], line["step"]) for line in self.tails]
        assert len(pairs) == len(set(pairs))
        assert {step for _, step in pairs} == set(range(self.steps))
        led = [(line["step"], line["replica"]) for line in self.tails if line["leader"]]
        twice = [step for step, times in Counter(step for step, _ in led).items() if times > 1]
        assert len(twice) <= bool(cut_off), led
        assert all((step, cut_off) in led for step in twice), led
        assert len({(line["step"], line["loss"]) for line in self.tails}) == self.steps

    def check_commits(self) -> None:
        """Each step was committed with one result."""
        commits = [line for line in self.ledger if line.get("commit")]
        assert {line["step"] for line in commits} == set(range(self.steps))
        assert len({(line["step"], line["digest"]) for line in commits}) == self.steps


def come_and_go(job: RunningJob) -> None:
    """Let one of two replicas drain and one come, and kill one, in whose place another comes."""
    wait_for_members(job, "r1", "r2")
    job.wait_for_steps(3)
    drain(job, "r1")
    wait_for_members(job, "r2")
    scale(job, 2)
    wait_for_members(job, "r2", "r3")
    kill(job, "r2")
    wait_for_members(job, "r3", "r4")


def scale(job: RunningJob, target: int) -> None:
    with job.client() as client:
        client.post("/v1/scale", json={"target": target}).raise_for_status()


def drain(job: RunningJob, replica: str, notice_s: float = 20.0) -> None:
    with job.client() as client:
        path = f"/v1/replicas/{replica}/drain"
        client.post(path, json={"notice_s": notice_s}).raise_for_status()


def kill(job: RunningJob, replica: str) -> None:
    os.kill(job.pid_of(replica), signal.SIGKILL)


def kill_worker(job: RunningJob, replica: str, place: int) -> None:
    """Kill one of several workers of a replica."""

    def find() -> int:
        found = [
            r for r in job.records("worker") if (r["replica"], r["worker"]) == (replica, place)
        ]
        return found[-1]["pid"] if found else 0

    os.kill(job.wait_for(find, f"{replica}.{place} has a process"), signal.SIGKILL)


def wait_for_switch(job: RunningJob, *names: str) -> None:
    """Wait until these have been told to switch at their next step boundary."""

    def is_told() -> bool:
        orders = [record["order"] for record in job.records("switch")]
        return bool(orders) and {seat["replica"] for seat in orders[-1]["members"]} == set(names)

    job.wait_for(is_told, f"{', '.join(names)} are told to train together")


def members(job: RunningJob) -> set[str]:
    """Return the members of the newest generation; nobody until each is in it."""
    return newest_members(job.records())[1]


def wait_for_members(job: RunningJob, *names: str) -> None:
    """Wait until the newest generation has exactly these members and each is in it."""
    job.wait_for(lambda: members(job) == set(names), f"{', '.join(names)} train together")


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
