"""Devices that fail under a replica of a job are named, and leave no trace in the result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.accelerator import checks
from tests.engine import models
from tests.processes.elastic import Outcome, run, run_until_over, wait_for_members
from tests.processes.launching import RunningJob
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = [checks.needs_compiler, pytest.mark.processes, pytest.mark.timeout(300)]

STEPS, AT = 30, 8

POISON = "an illegal memory access was encountered"
ASSERTION = "device-side assert triggered"
AFTERWARDS = "was used after it had failed"


def play(
    directory: Path,
    fault: str,
    *,
    replicas: int = 3,
    who: str = "r2",
    at: int = AT,
    model: str = "gpt",
    expected_code: int = 0,
    restarts: int = 0,
) -> Outcome:
    def wait_for_another(job: RunningJob) -> None:
        if who != "all":
            wait_for_members(job, *(f"r{n}" for n in range(1, replicas + 2) if f"r{n}" != who))

    return run(
        directory,
        model,
        STEPS,
        wait_for_another,
        replicas=replicas,
        pace=0.05,
        options={"randomness": False},
        arguments=("--device", "sim", "--device-fault", who, at, fault),
        restarts=restarts,  # devices spend none of these
        expected_code=expected_code,
    )


def check_bits(outcome: Outcome, model: str = "gpt") -> None:
    with sdpa_kernel(SDPBackend.MATH):
        outcome.check(models.train(models.build(model, randomness=False), STEPS))


def ends(outcome: Outcome, kind: str = "device") -> list[tuple[str, str]]:
    """Return who has ended by its device, or otherwise, and what was said of it."""
    kinds = outcome.kinds("exited")
    return [(one["replica"], one["detail"]) for one in kinds if one["exited_kind"] == kind]


@pytest.mark.slow
def test_a_poisoned_device_is_left_alone_and_its_replica_replaced(tmp_path: Path) -> None:
    """Of a model with buffers, which a session puts back at its end, on the device."""
    outcome = play(tmp_path, POISON, replicas=2, model="cnn")

    ((who, said),) = ends(outcome)
    assert who == "r2"
    assert said.startswith(f"sim:0 has failed: sim error: {POISON}")
    log = (tmp_path / "out" / "logs" / "r2.log").read_text()
    assert f"AcceleratorError: sim error: {POISON}" in log
    assert AFTERWARDS not in log
    check_bits(outcome, "cnn")


@pytest.mark.slow
def test_an_assertion_on_a_device_is_the_script_s(tmp_path: Path) -> None:
    """It is of a kernel whose input is wrong, on any device: it spends the restart budget."""
    outcome = play(tmp_path, ASSERTION, replicas=2, restarts=1)

    ((who, said),) = ends(outcome, "script")
    assert (who, said) == ("r2", f"AcceleratorError: sim error: {ASSERTION}")
    assert AFTERWARDS not in (tmp_path / "out" / "logs" / "r2.log").read_text()
    check_bits(outcome)


@pytest.mark.soak
@pytest.mark.parametrize("streams", ["async", "sync"])
def test_a_replica_without_memory_is_replaced(
    tmp_path: Path, streams: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_ASYNC", str(int(streams == "async")))

    outcome = play(tmp_path, "memory")

    ((who, said),) = ends(outcome)
    assert who == "r2"
    assert re.match(
        r"sim:0 is out of memory for 4398046511104 bytes more; this worker has allocated \S+ GiB, "
        r"and \S+ of 4.00 GiB are free; a smaller micro_batch_size needs less$",
        said,
    ), said
    check_bits(outcome)


@pytest.mark.slow
def test_a_kernel_that_never_ends_is_found_and_its_replica_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_ASYNC", "1")
    monkeypatch.setenv("PLIANT_KERNEL_SECONDS", "3")

    outcome = play(tmp_path, "hang")

    ((who, said),) = ends(outcome)
    assert who == "r2"
    assert said.startswith(f"sim:0 has not finished a kernel for 3 s, in or behind step {AT} (")
    assert said.endswith("; announce what takes longer with session.busy(max_s)")
    check_bits(outcome)


@pytest.mark.soak
def test_a_model_that_fits_on_no_device_ends_the_job_with_a_sentence(tmp_path: Path) -> None:
    outcome = play(tmp_path, "memory", replicas=2, who="all", at=0, expected_code=1)

    (end,) = outcome.kinds("job_ended")
    assert end["reason"].startswith("devices fail again and again and fewer than minReplicas=1")
    assert "sim:0 is out of memory" in end["reason"]
    assert len(ends(outcome)) <= 7  # three times on each device, and what is on its way then
    assert "fail_device" in outcome.kinds("traceback")[0]["text"]


@pytest.mark.slow
def test_a_device_that_is_not_healthy_is_left_for_one_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two devices, for one replica: the other takes over, and keeps it when both are ailing."""
    ailing = tmp_path / "ailing"
    ailing.write_text("")
    monkeypatch.setenv("PLIANT_TEST_AILING", str(ailing))
    monkeypatch.setenv("SIM_ASYNC", "1")

    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1")
        job.wait_for_steps(3)
        ailing.write_text("cuda:GPU-a")
        wait_for_members(job, "r2")
        job.wait_for(lambda: job.records("exited"), "r1 has left")
        ailing.write_text("cuda:GPU-a cuda:GPU-b")
        job.wait_for(lambda: len(job.records("devices_ailing")[-1]["ailments"]) == 2, "both ail")
        job.wait_for_steps(len(job.records("commit")) + 8)

    outcome = run_until_over(
        tmp_path,
        "gpt",
        play,
        replicas=1,
        pace=0.05,
        options={"randomness": False},
        arguments=("--device", "sim"),
        restarts=0,
    )

    workers = [(one["replica"], one["device_name"]) for one in outcome.kinds("worker")]
    assert workers == [("r1", "cuda:GPU-a"), ("r2", "cuda:GPU-b")]
    notes = [one["text"] for one in outcome.kinds("note")]
    assert "r1 leaves its device, which is not healthy" in notes
    with sdpa_kernel(SDPBackend.MATH):
        outcome.check(models.train(models.build("gpt", randomness=False), outcome.steps))
