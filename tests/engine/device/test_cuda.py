"""What is asked of CUDA's libraries without a device; what only a device can show is not here."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace

import pytest
import torch

from pliant.engine.device import cuda
from pliant.engine.device.cuda import Cuda
from pliant.engine.device.deterministic import Deterministic

needs_cuda_build = pytest.mark.skipif(
    torch.version.cuda is None, reason="this torch was built without CUDA"
)


def device() -> Cuda:
    made = Cuda("cuda")
    made.wheres = [torch.device("cuda", 1)]
    return made


@needs_cuda_build
def test_the_versions_of_the_loaded_libraries_are_told() -> None:
    said = cuda._libraries()

    assert said["cuda"] == torch.version.cuda
    assert re.fullmatch(r"\d+\.\d+\.\d+", said["blas"])
    assert re.fullmatch(r"\d+", str(said["cudnn"]))


@needs_cuda_build
def test_how_libraries_may_compute_is_a_part_of_a_run() -> None:
    before = cuda._arithmetic()
    torch.set_float32_matmul_precision("high")
    try:
        after = cuda._arithmetic()
    finally:
        torch.set_float32_matmul_precision("highest")

    changed = {name: after[name] for name in before if before[name] != after[name]}
    assert changed == {"float32_matmul": "tf32"}


def test_the_model_of_a_device_is_named_without_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = SimpleNamespace(major=9, minor=0, multi_processor_count=132, total_memory=1 << 36)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda where: f"GPU at {where}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda where: found)

    said = device().model_of(torch.device("cuda", 1))

    assert said == "GPU at cuda:1, 132 multiprocessors, capability 9.0"


def test_exact_mode_sets_the_flags_and_the_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", True)
    deterministic = Deterministic()

    said = deterministic.begin(device().settings())
    during = cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled()
    deterministic.end()

    assert said == (
        'until the session ends, reduction="exact" has set '
        "torch.use_deterministic_algorithms(True), torch._inductor.config.deterministic=True, "
        "torch.utils.deterministic.fill_uninitialized_memory=False, "
        "torch.backends.cudnn.benchmark=False, torch.backends.cudnn.deterministic=True, "
        "CUBLAS_WORKSPACE_CONFIG=:4096:8"
    )
    assert during == (False, True, True)
    assert (cudnn.benchmark, cudnn.deterministic) == (True, False)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_workspace_of_the_scripts_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":16:8")

    assert "CUBLAS_WORKSPACE_CONFIG" not in str([one.said for one in device().settings()])
