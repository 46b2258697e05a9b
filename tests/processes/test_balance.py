"""Slots move from slow replicas to fast ones, and the run ends as the one that nobody touched.

Real processes under a real agent; the reference is the same model trained alone in this process.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.processes.elastic import (
    Outcome,
    drain,
    kill,
    kill_worker,
    reference,
    run,
    run_until_over,
    scale,
    wait_for_members,
)
from tests.processes.launching import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SLOW = ("--slow", "r2", 0.15)
PACE = 0.03


def moves(job: RunningJob) -> list[dict[str, int]]:
    """Return how many slots each replica had, each time that this became another number."""
    return [
        dict(zip(record["replicas"], record["sizes"], strict=True))
        for record in job.records("slots_moved")
    ]


def wait_for_fewer(job: RunningJob, slow: str, *others: str) -> None:
    """Wait until these train together, and the slow one computes fewest."""

    def is_unbalanced() -> bool:
        if not (seen := moves(job)) or seen[-1].keys() != {slow, *others}:
            return False
        return seen[-1][slow] < min(seen[-1][name] for name in others)

    job.wait_for(is_unbalanced, f"{slow} computes fewer slots than {', '.join(others)}")


def slots_of(outcome: Outcome, step: int) -> Counter[str]:
    """Return who wrote how many slots of a step into its ledger."""
    found: Counter[str] = Counter()
    for path in outcome.job.out.glob("ledger/*"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        who = path.name.split(".")[0]
        found[who] += sum(1 for line in lines if line.get("step") == step and "slot" in line)
    return +found


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("gpt", {}),
        pytest.param("gpt", {"windows_above": 1 << 40}, marks=pytest.mark.soak),
        pytest.param("cnn", {"num_workers": 2}, marks=pytest.mark.soak),
        pytest.param("gpt", {"arguments": ("--reduction", "fast")}, marks=pytest.mark.soak),
    ],
    ids=["windows", "sockets", "loaders", "fast"],
)
def test_join_kill_and_drain_while_one_computes_less_leave_no_trace(
    tmp_path: Path, model: str, more: dict[str, Any]
) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        wait_for_fewer(job, "r2", "r1")
        scale(job, 3)
        wait_for_members(job, "r1", "r2", "r3")
        wait_for_fewer(job, "r2", "r1", "r3")
        kill(job, "r1")
        wait_for_members(job, "r2", "r3", "r4")
        wait_for_fewer(job, "r2", "r3", "r4")
        drain(job, "r2")
        wait_for_members(job, "r3", "r4")

    words = (*SLOW, *more.get("arguments", ()))
    outcome = run_until_over(
        tmp_path,
        model,
        play,
        replicas=3,
        start=2,
        pace=PACE,
        balance="speed",
        **{**more, "arguments": words},
    )

    if "fast" in words:
        assert len({line["digest"] for line in outcome.digests}) == 1
        return
    outcome.check(reference(model, outcome.steps))
    if model == "gpt":  # the others have steps of fewer slots
        step = outcome.kinds("slots_moved")[0]["step"]
        assert slots_of(outcome, step - 1) == {"r1": 4, "r2": 4}
        assert slots_of(outcome, step) == moves(outcome.job)[0]


@pytest.mark.parametrize(
    ("point", "step"),
    [
        ("vote", 7),
        ("commit", 7),
        pytest.param("bucket", 8, marks=pytest.mark.soak),
        pytest.param("bucket", 7, marks=pytest.mark.soak),
        pytest.param("vote", 8, marks=pytest.mark.soak),
        pytest.param("commit", 8, marks=pytest.mark.soak),
    ],
)
def test_a_kill_at_the_step_at_which_slots_move_loses_nothing(
    tmp_path: Path, point: str, step: int
) -> None:
    """The times of the first eight steps are known with the vote for step 7."""

    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2", "r4")
        wait_for_fewer(job, "r2", "r1", "r4")

    outcome = run_until_over(
        tmp_path,
        "gpt",
        play,
        replicas=3,
        pace=PACE,
        balance="speed",
        faults=f"r3@{point}:{step}=SIGKILL",
        arguments=SLOW,
    )

    outcome.check(reference("gpt", outcome.steps))
    assert len(outcome.kinds("reform")) == 1


@pytest.mark.soak
def test_followers_compute_what_worker_0_of_their_replica_does(tmp_path: Path) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        wait_for_fewer(job, "r2", "r1")
        kill_worker(job, "r1", 1)
        wait_for_members(job, "r2", "r3")
        wait_for_fewer(job, "r2", "r3")

    outcome = run_until_over(
        tmp_path,
        "gpt",
        play,
        replicas=2,
        workers=2,
        pace=PACE,
        balance="speed",
        arguments=("--slow", "r2.1", 0.3),
    )

    outcome.check(reference("gpt", outcome.steps))


@pytest.mark.soak
def test_without_it_slots_stay_where_they_are(tmp_path: Path) -> None:
    outcome = run(tmp_path, "gpt", 24, lambda job: None, replicas=2, pace=0.01, arguments=SLOW)

    outcome.check(reference("gpt", 24))
    assert moves(outcome.job) == []
    assert slots_of(outcome, 20) == {"r1": 4, "r2": 4}
