"""Three replicas on one GPU join, leave and are killed; the digest is that of the run alone.

They share the GPU by time slices: nothing here is a claim about speed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gpu.here import on_gpu
from tests.processes.elastic import Outcome, drain, kill, run, scale, wait_for_members
from tests.processes.launching import RunningJob

pytestmark = [*on_gpu, pytest.mark.processes, pytest.mark.timeout(240)]

STEPS = 60


def played(directory: Path, model: str, *, is_alone: bool, **options: object) -> Outcome:
    def play(job: RunningJob) -> None:
        if is_alone:
            return
        wait_for_members(job, "r1", "r2")
        job.wait_for_steps(3)
        drain(job, "r1")
        wait_for_members(job, "r2")
        scale(job, 2)
        wait_for_members(job, "r2", "r3")
        kill(job, "r2")
        wait_for_members(job, "r3", "r4")

    directory.mkdir()
    return run(
        directory,
        model,
        STEPS,
        play,
        replicas=1 if is_alone else 2,
        pace=0.0 if is_alone else 0.05,
        arguments=("--device", "cuda"),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("model", ["gpt", "cnn"])
@pytest.mark.parametrize("exchange", ["host", "nccl"])
def test_join_drain_and_kill_leave_no_trace(
    tmp_path: Path, model: str, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLIANT_TEST_SHARED_DEVICE", "1")
    if exchange == "nccl":
        pytest.importorskip("nccl.core", reason="nccl4py is not installed")
        monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    alone = played(tmp_path / "alone", model, is_alone=True)

    outcome = played(tmp_path / "elastic", model, is_alone=False, exchange=exchange)

    outcome.check(alone.digests[0]["digest"])
