"""Replicas of several workers: whatever happens to one of them, a run ends as the run alone.

Real processes under a real agent; the reference is the same model trained alone in this process.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine import models
from tests.processes.elastic import (
    DEADLINE_S,
    drain,
    kill_worker,
    reference,
    run,
    run_until_over,
    scale,
    wait_for_members,
)
from tests.processes.launching import RunningJob, running

from pliant.checkpoint.catalogue import verify
from pliant.checkpoint.store.directory import LocalStorage

WEIGHED = Path(__file__).with_name("train_weighed.py")

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


def nothing(job: RunningJob) -> None:
    """Let the faults of the plan happen."""


@pytest.mark.parametrize(
    ("model", "workers", "more"),
    [
        ("gpt", 2, {}),
        ("cnn", 2, {"num_workers": 2}),
        ("moe", 3, {}),
        pytest.param("judged", 2, {}, marks=pytest.mark.soak),
        pytest.param("drawn", 2, {}, marks=pytest.mark.soak),
    ],
)
def test_one_replica_of_several_workers_ends_as_one_worker_alone(
    tmp_path: Path, model: str, workers: int, more: Any
) -> None:
    outcome = run(tmp_path, model, 9, nothing, replicas=1, workers=workers, **more)

    outcome.check(reference(model, 9))
    assert len(outcome.digests) == workers


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        pytest.param(2, {"is_judged": True}, marks=pytest.mark.soak),
        (2, {"is_whole_outside": True, "is_scaled": True}),
        pytest.param(3, {}, marks=pytest.mark.soak),
    ],
)
def test_a_sharded_model_ends_as_one_that_is_whole(
    tmp_path: Path, workers: int, options: dict[str, Any]
) -> None:
    sharded = {"mesh": {"shard": workers}, **options}
    outcome = run(tmp_path, "gpt", 6, nothing, replicas=2, workers=workers, options=sharded)

    outcome.check(reference("gpt", 6, options=options))


def test_weights_of_a_sharded_model_are_written_whoever_dies_there(tmp_path: Path) -> None:
    """Whoever led the last step is gone before it has saved; another has none of it whole."""
    saved, options = tmp_path / "weights.pt", {"mesh": {"shard": 2}}
    arguments = ("--save", saved, "--die-before-save", "r1")
    outcome = run(
        tmp_path, "gpt", 6, nothing, replicas=2, workers=2, options=options, arguments=arguments
    )

    outcome.check(reference("gpt", 6))
    case = models.build("gpt")
    models.train(case, 6)
    weights, own = torch.load(saved, weights_only=True), case.model.state_dict()
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[name], value) for name, value in own.items())


def weighed(directory: Path, workers: int) -> list[dict[str, int]]:
    """Return what each worker of two replicas has held."""
    directory.mkdir()
    with running(directory, WEIGHED, directory, replicas=2, warm=True, workers=workers) as job:
        assert job.process.wait(DEADLINE_S) == 0, job.said()
    return [json.loads(path.read_text()) for path in directory.glob("*.weighed")]


def test_a_worker_holds_its_part_of_the_model_and_of_each_gradient(tmp_path: Path) -> None:
    """Of sums it has its part, and of a pass those of both slots; a layer is whole for a moment."""
    whole, halves = (weighed(tmp_path / str(workers), workers) for workers in (1, 2))

    assert (len(whole), len(halves)) == (2, 4)
    (model,) = {line["model"] for line in (*whole, *halves)}
    most = max(line["gradients"] for line in whole)
    for line in halves:
        assert line["state"] == pytest.approx(min(w["state"] for w in whole) / 2, rel=0.01)
        assert line["gradients"] < most / 2 + model < most


def meshed(sizes: dict[str, int]) -> dict[str, Any]:
    arguments = ("--mesh", json.dumps(sizes))
    workers = math.prod(sizes.values())
    return {"workers": workers, "options": {"mesh": sizes}, "arguments": arguments}


@pytest.mark.parametrize(
    "sizes", [pytest.param({"tp": 2}, marks=pytest.mark.soak), {"shard": 2, "tp": 2}]
)
def test_tensor_parallelism_gives_the_same_for_every_number_of_replicas(
    tmp_path: Path, sizes: dict[str, int]
) -> None:
    """How a tensor is cut for ``tp`` is a part of the run; how often it is there is not."""
    workers = math.prod(sizes.values())

    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        job.wait_for_steps(2)
        kill_worker(job, "r2", workers - 1)
        wait_for_members(job, "r1", "r3")

    several = tmp_path / "several"
    several.mkdir()
    outcome = run_until_over(several, "gpt", play, replicas=2, pace=0.05, **meshed(sizes))

    steps = outcome.steps
    alone = run(tmp_path / "alone", "gpt", steps, nothing, replicas=1, **meshed({"tp": 2}))
    (digest,) = {line["digest"] for line in alone.digests}
    outcome.check(digest)


@pytest.mark.parametrize(
    ("model", "more"),
    [
        pytest.param("moe", {}, marks=pytest.mark.soak),
        ("gpt", {"options": {"mesh": {"shard": 2}}}),
        pytest.param("cnn", {"num_workers": 1}, marks=pytest.mark.soak),
        pytest.param("judged", {}, marks=pytest.mark.soak),
        pytest.param("drawn", {}, marks=pytest.mark.soak),
    ],
)
def test_join_drain_and_the_death_of_either_worker_leave_no_trace(
    tmp_path: Path, model: str, more: Any
) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        job.wait_for_steps(3)
        scale(job, 3)
        wait_for_members(job, "r1", "r2", "r3")
        drain(job, "r1")
        wait_for_members(job, "r2", "r3")
        kill_worker(job, "r2", 0)
        wait_for_members(job, "r3", "r4")
        kill_worker(job, "r3", 1)
        wait_for_members(job, "r4", "r5")

    outcome = run_until_over(
        tmp_path, model, play, replicas=3, start=2, workers=2, pace=0.02, restarts=9, **more
    )

    outcome.check(reference(model, outcome.steps))


def test_replicas_that_are_held_keep_their_state_and_go_on_once_they_are_enough(
    tmp_path: Path,
) -> None:
    outcome = run(
        tmp_path,
        "moe",
        12,
        nothing,
        replicas=2,
        workers=2,
        least=2,
        faults="r2@vote:6=SIGKILL",
        arguments=("--mesh", '{"shard": 2}', "--checkpoint", tmp_path / "kept", "--every", "1h"),
    )

    outcome.check(reference("moe", 12))
    held, last = outcome.kinds("saved")
    assert (held["committed"] in (6, 7), last["committed"]) == (True, 12)


def test_a_death_near_the_end_leaves_the_others_to_end(tmp_path: Path) -> None:
    """One has finished, one is killed before it has, and one is still to come there."""
    naps = {"r2": 1.0, "r2.1": 1.0, "r3": 4.0, "r3.1": 4.0}
    arguments = ("--die-before-save", "r2", "--naps", json.dumps(naps))
    kept = ("--checkpoint", tmp_path / "kept", "--mesh", '{"shard": 2}')
    outcome = run(tmp_path, "moe", 6, nothing, replicas=3, workers=2, arguments=arguments + kept)

    outcome.check(reference("moe", 6))
    assert verify(LocalStorage(str(tmp_path / "kept")), "step-00000006-l1").is_sound


@pytest.mark.parametrize(
    ("model", "replicas", "fault", "more"),
    [
        ("moe", 2, "r2.1@reduced:4=hang:1000", {}),
        pytest.param(
            *("gpt", 1, "r1.1@micro_batch:4=hang:1000", {"options": {"mesh": {"shard": 2}}}),
            marks=pytest.mark.soak,
        ),
        pytest.param("moe", 1, "r1.1@tail:4=hang:1000", {}, marks=pytest.mark.soak),
        pytest.param("moe", 1, "r1@micro_batch:4=hang:1000", {}, marks=pytest.mark.soak),
    ],
)
def test_a_worker_that_hangs_is_named_and_its_replica_replaced(
    tmp_path: Path, model: str, replicas: int, fault: str, more: Any
) -> None:
    outcome = run(
        tmp_path,
        model,
        9,
        nothing,
        replicas=replicas,
        workers=2,
        faults=fault,
        settings={"hang_s": 8.0},
        arguments=(
            *("--mesh", '{"shard": 2}'),
            *("--checkpoint", tmp_path / "kept", "--every", "2steps"),
        ),
        **more,
    )

    victim, _, worker = fault.partition("@")[0].partition(".")
    ends = [one for one in outcome.kinds("end_replica") if "no step ended" in one["reason"]]
    assert {one["replica"] for one in ends} == {victim}
    assert f"and the others wait for its worker {worker or 0};" in ends[0]["reason"]
    assert {line["digest"] for line in outcome.digests} == {reference(model, 9)}


def test_an_error_of_one_worker_is_what_the_user_sees(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        "moe",
        8,
        nothing,
        replicas=1,
        workers=2,
        restarts=0,
        expected_code=1,
        arguments=("--fail-at", "r1.1", 3),
    )

    (said,) = outcome.kinds("traceback")
    assert (said["replica"], said["worker"]) == ("r1", 1)
    assert "the script failed" in said["text"]


def refused(tmp_path: Path, *arguments: Any, model: str = "gpt", **options: Any) -> set[str]:
    """Run one replica of two workers that is refused; return the sentences."""
    outcome = run(
        tmp_path,
        model,
        8,
        nothing,
        replicas=1,
        workers=2,
        restarts=0,
        expected_code=2,
        options=options,
        arguments=arguments,
    )
    assert outcome.digests == []
    return {record["sentence"] for record in outcome.kinds("usage")}


def test_workers_that_do_not_do_the_same_are_told_so(tmp_path: Path) -> None:
    sentences = refused(tmp_path, "--break-at", "r1.1", 3, model="moe")

    assert any("run the same script in lockstep" in sentence for sentence in sentences)


@pytest.mark.parametrize("options", [{}, {"mesh": {"shard": 2}, "is_whole_outside": True}])
def test_workers_that_begin_with_other_weights_are_told_so(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    sentences = refused(tmp_path, "--seed-by-rank", **options)

    assert any("at step 0 the tensors of worker 1" in sentence for sentence in sentences)


def test_a_worker_with_another_model_is_told_so(tmp_path: Path) -> None:
    (said,) = refused(tmp_path, "--misfit", "r1.1")

    assert said.startswith(
        "parameter 'token.weight' is float32 [256, 48] on worker 1 of this replica and "
        "float32 [256, 32] on worker 0"
    )
