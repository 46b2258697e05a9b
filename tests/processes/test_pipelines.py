"""Pipelines: replicas whose workers have the stages of one model end as one of them alone.

How a model is cut into stages, and by which schedule they are run, is a part of the run.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes.elastic import (
    Outcome,
    drain,
    kill_worker,
    run,
    run_until_over,
    scale,
    wait_for_members,
)
from tests.processes.launching import RunningJob
from tests.processes.test_several_trainers import nothing

from pliant.checkpoint import catalogue
from pliant.checkpoint.dcp.read import load, open_checkpoint
from pliant.checkpoint.store.directory import LocalStorage
from pliant.recipes.gpt import GPTConfig, GPTStage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


def staged(sizes: dict[str, int], **options: Any) -> dict[str, Any]:
    return {
        "workers": math.prod(sizes.values()),
        "options": {"mesh": sizes, **options},
        "arguments": ("--mesh", json.dumps(sizes)),
    }


def digest_alone(directory: Path, steps: int, **options: Any) -> str:
    """Return the digest of one replica of two stages that nobody touches."""
    alone = run(directory, "staged", steps, nothing, replicas=1, **staged({"pp": 2}, **options))
    (digest,) = {line["digest"] for line in alone.digests}
    return str(digest)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("Schedule1F1B", {"is_judged": True}),
        pytest.param("ScheduleGPipe", {}, marks=pytest.mark.soak),
    ],
)
def test_join_drain_and_the_death_of_either_stage_leave_no_trace(
    tmp_path: Path, kind: str, more: dict[str, Any]
) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1")
        job.wait_for_steps(2)
        scale(job, 3)
        wait_for_members(job, "r1", "r2", "r3")
        kill_worker(job, "r1", 1)
        wait_for_members(job, "r2", "r3", "r4")
        drain(job, "r2")
        wait_for_members(job, "r3", "r4")
        kill_worker(job, "r3", 0)
        wait_for_members(job, "r4", "r5")

    parts = staged({"pp": 2}, kind=kind, **more)
    outcome = run_until_over(
        tmp_path, "staged", play, replicas=3, start=1, pace=0.02, restarts=9, **parts
    )

    outcome.check(digest_alone(tmp_path / "alone", outcome.steps, kind=kind, **more))


@pytest.mark.parametrize(
    ("sizes", "replicas"),
    [
        ({"shard": 2, "pp": 2}, 1),
        pytest.param({"shard": 2, "pp": 2}, 2, marks=pytest.mark.soak),
    ],
)
def test_several_pipelines_in_a_replica_change_no_bits(
    tmp_path: Path, sizes: dict[str, int], replicas: int
) -> None:
    outcome = run(tmp_path, "staged", 4, nothing, replicas=replicas, **staged(sizes))

    outcome.check(digest_alone(tmp_path / "alone", 4))


def test_stages_learn_what_the_whole_model_learns(tmp_path: Path) -> None:
    def losses(outcome: Outcome) -> list[float]:
        return [float.fromhex(line["loss"]) for line in outcome.tails if line["replica"] == "r1"]

    whole, halves = (
        run(
            tmp_path / str(n),
            "staged",
            5,
            nothing,
            replicas=1,
            **staged({"pp": n}, randomness=False),
        )
        for n in (1, 2)
    )

    assert losses(halves) == pytest.approx(losses(whole), rel=1e-5)
    assert len(set(losses(whole))) == 5


def test_what_stages_saved_goes_on_at_another_number_of_replicas_and_is_one_model(
    tmp_path: Path,
) -> None:
    """A kill in the middle costs nothing; the second job goes on where the first has ended."""
    kept, weights = tmp_path / "kept", tmp_path / "weights.pt"

    def train(name: str, steps: int, sizes: dict[str, int], **more: Any) -> Outcome:
        (tmp_path / name).mkdir()
        parts = staged(sizes)
        parts["arguments"] += ("--checkpoint", kept, "--every", "2steps", "--save", weights)
        return run(tmp_path / name, "staged", steps, nothing, **more, **parts)

    train("first", 4, {"pp": 2}, replicas=2, faults="r2.1@save:2=SIGKILL")
    second = train("second", 6, {"shard": 2, "pp": 2}, replicas=1)

    digest = digest_alone(tmp_path / "alone", 6)
    assert {line["digest"] for line in second.digests} == {digest}
    assert {line["step"] for line in second.tails} == {4, 5}
    storage = LocalStorage(str(kept))
    newest = catalogue.listed(storage)[0]
    assert catalogue.verify(storage, newest.name).is_sound
    model = GPTStage(GPTConfig(context=16, width=32, heads=2, layers=3, tied=False), 0, 1)
    items = open_checkpoint(storage, newest.name).items
    assert {f"model.{name}" for name in model.state_dict()} <= set(items)
    model.load_state_dict(torch.load(weights, weights_only=True))
    stored = load(open_checkpoint(storage, newest.name), [f"model.{n}" for n in model.state_dict()])
    for name, value in model.state_dict().items():
        assert torch.equal(value, stored[f"model.{name}"]), name
