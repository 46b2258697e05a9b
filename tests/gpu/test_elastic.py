"""Three replicas on one GPU join, leave and are killed; the digest is that of the run alone.

They share the GPU by time slices: nothing here is a claim about speed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gpu.here import on_gpu
from tests.processes.elastic import Outcome, come_and_go, run

pytestmark = [*on_gpu, pytest.mark.processes, pytest.mark.timeout(240)]

STEPS = 60


def played(directory: Path, model: str, *, is_alone: bool, **options: object) -> Outcome:
    directory.mkdir()
    return run(
        directory,
        model,
        STEPS,
        (lambda job: None) if is_alone else come_and_go,
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
