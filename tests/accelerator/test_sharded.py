"""Replicas of several workers on the test accelerator, each with a device: the bits of the CPU.

What the workers of a replica do together goes over device and host, as ``cpu:gloo,cuda:nccl``
does elsewhere.  How NCCL does it is not shown here.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.accelerator import checks
from tests.engine import models
from tests.engine.sharding.test_fsdp import check_on
from tests.processes import test_durable as durable
from tests.processes.elastic import kill_worker, run, run_until_over, scale, wait_for_members
from tests.processes.launching import RunningJob
from tests.processes.test_several_trainers import nothing
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = [checks.needs_compiler, pytest.mark.processes, pytest.mark.timeout(600)]

LEAVES = Path(__file__).with_name("leaves.py")

STEPS = 6
SEEDS = 20
ON_DEVICE = ("--device", "sim")


def meshed(sizes: dict[str, int], *arguments: str) -> dict[str, Any]:
    return {
        "workers": math.prod(sizes.values()),
        "options": {"mesh": sizes, "randomness": False},
        "arguments": ("--mesh", json.dumps(sizes), "--plain-attention", *arguments),
    }


def whole(steps: int) -> str:
    """Return the digest of the run alone on the CPU."""
    with sdpa_kernel(SDPBackend.MATH):
        return models.train(models.build("gpt", randomness=False), steps)


def on_cpu(directory: Path, model: str, steps: int, sizes: dict[str, int]) -> str:
    """Return the digest of one replica on the CPU."""
    alone = run(directory, model, steps, nothing, replicas=1, **meshed(sizes))
    (digest,) = {line["digest"] for line in alone.digests}
    return str(digest)


@pytest.mark.parametrize(
    "is_async", [pytest.param(False, marks=pytest.mark.slow), True], ids=["sync", "async"]
)
def test_what_hooks_hand_over_is_used_in_order(is_async: bool) -> None:
    assert checks.failed_in(LEAVES, is_async=is_async) == {}


@pytest.mark.slow
def test_each_slots_leaves_and_draws_are_those_of_a_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_ASYNC", "1")
    check_on(tmp_path, "sim")


def test_a_replica_of_two_workers_under_fully_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_ASYNC", "1")
    sizes = {"shard": 2}
    outcome = run(tmp_path, "gpt", STEPS, nothing, replicas=1, **meshed(sizes, *ON_DEVICE))

    outcome.check(whole(STEPS))


@pytest.mark.slow
def test_a_model_that_each_of_two_workers_has_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_ASYNC", "1")
    more = meshed({"shard": 2}, *ON_DEVICE) | {"options": {"randomness": False}}
    outcome = run(tmp_path, "cnn", STEPS, nothing, replicas=1, **more)

    outcome.check(models.train(models.build("cnn", randomness=False), STEPS))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "sizes"), [("gpt", {"shard": 2}), ("staged", {"pp": 2})])
def test_evaluations_and_saved_weights(
    tmp_path: Path, model: str, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_ASYNC", "1")
    saved, digests = [], set()
    for device in ("sim", "cpu"):
        saved.append(tmp_path / f"{device}.pt")
        more = meshed(sizes, "--device", device, "--save", str(saved[-1]))
        more["options"]["is_judged"] = True
        outcome = run(tmp_path / device, model, STEPS, nothing, replicas=1, **more)
        digests |= {line["digest"] for line in outcome.digests}

    assert len(digests) == 1
    on_device, on_host = (torch.load(path, weights_only=True) for path in saved)
    assert {value.device.type for value in on_device.values()} == {"cpu"}
    assert on_device.keys() == on_host.keys()
    assert all(torch.equal(on_device[name], value) for name, value in on_host.items())


@pytest.mark.soak
def test_no_delay_of_any_stream_changes_a_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = whole(STEPS)
    for seed in (None, *range(SEEDS)):
        monkeypatch.setenv("SIM_ASYNC", str(int(seed is not None)))
        monkeypatch.setenv("SIM_SEED", str(seed or 0))
        more = meshed({"shard": 2}, *ON_DEVICE)
        outcome = run(tmp_path / str(seed), "gpt", STEPS, nothing, replicas=1, **more)
        outcome.check(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sizes", "streams"),
    [
        ("gpt", {"shard": 2}, "async"),
        ("gpt", {"tp": 2}, "async"),
        ("gpt", {"shard": 2, "tp": 2}, "async"),
        ("staged", {"pp": 2}, "async"),
        pytest.param("gpt", {"shard": 2}, "sync", marks=pytest.mark.soak),
        pytest.param("staged", {"pp": 2}, "sync", marks=pytest.mark.soak),
    ],
)
def test_a_join_and_the_death_of_one_worker_leave_no_trace(
    tmp_path: Path,
    model: str,
    sizes: dict[str, int],
    streams: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SIM_ASYNC", str(int(streams == "async")))
    monkeypatch.setenv("SIM_DEVICES", str(math.prod(sizes.values())))

    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1")
        job.wait_for_steps(2)
        scale(job, 2)
        wait_for_members(job, "r1", "r2")
        kill_worker(job, "r1", 1)
        wait_for_members(job, "r2", "r3")

    several = tmp_path / "several"
    several.mkdir()
    more = meshed(sizes, *ON_DEVICE)
    outcome = run_until_over(several, model, play, replicas=2, start=1, pace=0.05, **more)

    steps = outcome.steps
    kept = {name: size for name, size in sizes.items() if name != "shard"}
    outcome.check(on_cpu(tmp_path / "cpu", model, steps, kept) if kept else whole(steps))


@pytest.mark.soak
def test_what_is_saved_on_devices_goes_on_at_another_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_ASYNC", "1")
    monkeypatch.setenv("SIM_DEVICES", "3")
    steps = 20
    shapes: list[dict[str, int] | None] = [{"shard": 2}, {"shard": 3}, None]
    for number, mesh in enumerate(shapes):
        is_last = number == len(shapes) - 1
        job = durable.live(
            tmp_path,
            "gpt",
            nothing if is_last else durable.end_by_signal,
            replicas=1,
            mesh=mesh,
            expected_code=0 if is_last else 3,
            steps=steps,
            pace=0.05,
            device="sim",
            more=("--plain-attention",),
            case_options={"randomness": False},
        )

    durable.check(job, whole(steps), steps)
