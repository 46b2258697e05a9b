"""Elastic jobs whose replicas are on the test accelerator end as the run on the CPU.

Attention is mathematics on both sides; the models draw no random numbers, which a device draws
otherwise than the CPU.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.accelerator import checks
from tests.engine import models
from tests.processes.elastic import (
    come_and_go,
    drain,
    kill,
    run,
    run_until_over,
    scale,
    wait_for_members,
)
from tests.processes.launching import RunningJob
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = [checks.needs_compiler, pytest.mark.processes, pytest.mark.timeout(300)]

STEPS = 60


@pytest.mark.parametrize(
    ("model", "streams", "exchange"),
    [
        ("gpt", "async", "host"),
        pytest.param("gpt", "async", "library", marks=pytest.mark.slow),
        pytest.param("gpt", "sync", "host", marks=pytest.mark.soak),
        pytest.param("gpt", "sync", "library", marks=pytest.mark.soak),
        pytest.param("cnn", "async", "host", marks=pytest.mark.soak),
        pytest.param("cnn", "async", "library", marks=pytest.mark.soak),
        pytest.param("cnn", "sync", "host", marks=pytest.mark.soak),
    ],
)
def test_join_drain_and_kill_leave_no_trace(
    tmp_path: Path, model: str, streams: str, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_ASYNC", str(int(streams == "async")))

    outcome = run(
        tmp_path,
        model,
        STEPS,
        come_and_go,
        replicas=2,
        pace=0.05,
        options={"randomness": False},
        arguments=("--device", "sim", *["--by-library"] * (exchange == "library")),
    )
    notes = [record["text"] for record in outcome.kinds("note")]
    by_library = any("from device to device by stand-in" in text for text in notes)
    assert by_library == (exchange == "library")

    with sdpa_kernel(SDPBackend.MATH):
        alone = models.train(models.build(model, randomness=False), STEPS)
    outcome.check(alone)


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["exact", "fast"])
def test_a_device_of_another_model_joins_in_fast_mode_only(
    tmp_path: Path, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_MODEL", "Sim of process {pid}")

    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1")
        scale(job, 2)
        if reduction == "fast":
            wait_for_members(job, "r1", "r2")
        else:
            job.wait_for(lambda: job.records("dismiss"), "r2 is dismissed")

    outcome = run_until_over(
        tmp_path,
        "gpt",
        play,
        replicas=2,
        start=1,
        pace=0.05,
        options={"randomness": False},
        arguments=("--device", "sim", "--reduction", reduction),
    )

    reasons = [record["reason"] for record in outcome.kinds("dismiss")]
    assert len({line["digest"] for line in outcome.digests}) == 1
    assert (reasons == []) == (reduction == "fast")
    for reason in reasons:
        assert re.match(r"its device is Sim of process \d+, the run has Sim of process \d+", reason)


SEEDS = int(os.environ.get("SIM_SEEDS", "3"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_delays_leave_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replica has delays of its own; one after the other drains or is killed in a step."""
    monkeypatch.setenv("SIM_ASYNC", "1")
    monkeypatch.setenv("SIM_DELAY_US", "1500")

    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        for number in range(1, SEEDS + 1):
            if number % 3:
                kill(job, f"r{number}")
            else:
                drain(job, f"r{number}")
                wait_for_members(job, f"r{number + 1}")
                scale(job, 2)
            wait_for_members(job, f"r{number + 1}", f"r{number + 2}")

    outcome = run_until_over(
        tmp_path,
        "gpt",
        play,
        replicas=2,
        restarts=SEEDS,
        options={"randomness": False},
        arguments=("--device", "sim"),
    )

    with sdpa_kernel(SDPBackend.MATH):
        alone = models.train(models.build("gpt", randomness=False), outcome.steps)
    outcome.check(alone)


POINTS = ("micro_batch", "bucket", "reduced", "vote", "commit", "tail")


@pytest.mark.soak
@pytest.mark.parametrize("exchange", ["host", "library"])
def test_a_kill_at_each_point_of_a_step_leaves_no_trace(
    tmp_path: Path, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three replicas the oldest is killed, each time in another phase."""
    monkeypatch.setenv("SIM_ASYNC", "1")
    victims = [f"r{number}" for number in range(1, len(POINTS) + 1)]
    plan = ",".join(
        f"{victim}@{point}:{8 * number}+=SIGKILL"
        for number, (victim, point) in enumerate(zip(victims, POINTS, strict=True), start=1)
    )

    def wait_for_kills(job: RunningJob) -> None:
        job.wait_for(
            lambda: set(victims) <= {end["replica"] for end in job.records("exited")},
            "all are killed",
        )

    outcome = run_until_over(
        tmp_path,
        "gpt",
        wait_for_kills,
        replicas=3,
        restarts=len(POINTS),
        pace=0.05,
        faults=plan,
        options={"randomness": False},
        arguments=("--device", "sim", *["--by-library"] * (exchange == "library")),
    )

    with sdpa_kernel(SDPBackend.MATH):
        alone = models.train(models.build("gpt", randomness=False), outcome.steps)
    outcome.check(alone)
