"""CUDA: what only NVIDIA's devices have, and AMD's, which torch calls by the same name.

Owns which of their libraries, settings and variables decide the bits of a result, and which
settings make these equal each time.  The driver's version is not among them.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import torch

from pliant.core.device_names import WORKSPACE
from pliant.core.values import DEVICE
from pliant.engine.device.accelerator import Accelerator
from pliant.engine.device.deterministic import Setting, attribute

_VARIABLES = (
    *("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "NVIDIA_TF32_OVERRIDE"),
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
)
"""Those by which the libraries choose an algorithm, and how much of a device they have."""


class Cuda(Accelerator):
    """See the module's text."""

    KIND = "cuda"
    """As torch calls both."""

    def identity(self, threads: int) -> tuple[tuple[str, str], ...]:
        """See ``Device``."""
        variables = [f"{one}={os.environ[one]}" for one in _VARIABLES if one in os.environ]
        said = {**_libraries(), **_arithmetic(), "variables": " ".join(variables)}
        found = tuple((f"{DEVICE}_{name}", str(value)) for name, value in said.items())
        return (*super().identity(threads), *found)

    def model_of(self, where: torch.device) -> str:
        """See ``Accelerator``; with the generation, by which libraries choose kernels."""
        found = torch.cuda.get_device_properties(where)
        generation = getattr(found, "gcnArchName", "") or f"{found.major}.{found.minor}"
        return f"{super().model_of(where)}, capability {generation}"

    def settings(self) -> list[Setting]:
        """See ``Device``."""
        cudnn, said = torch.backends.cudnn, "torch.backends.cudnn"
        found = [*super().settings(), attribute(cudnn, "benchmark", False, said)]
        found.append(attribute(cudnn, "deterministic", True, said))
        name, value = WORKSPACE  # counts before the first product, and is not put back
        if os.environ.setdefault(name, value) == value:
            found.append(Setting(f"{name}={value}", value, lambda: "", lambda _: None))
        return found


def _libraries() -> dict[str, Any]:
    toolkit = {"hip": torch.version.hip} if torch.version.hip else {"cuda": torch.version.cuda}
    cudnn: Any = torch.backends.cudnn
    return {**toolkit, "blas": _blas_version(), "cudnn": cudnn.version()}


def _blas_version() -> str:
    """Return the version of the loaded cuBLAS or hipBLAS, which torch does not tell."""
    name, asked = ("hip", "hipblas") if torch.version.hip else ("cuda", "cublas")
    value, numbers = ctypes.c_int(), []
    try:  # of the library that torch has loaded, and what that depends on
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_{name}.so"))
        for part in range(3):  # major, minor, patch
            getattr(library, f"{asked}GetProperty")(part, ctypes.byref(value))
            numbers.append(str(value.value))
    except (OSError, AttributeError):
        return "unknown"
    return ".".join(numbers)


def _arithmetic() -> dict[str, Any]:
    """Return how the libraries may compute, as the script or its environment has it."""
    backends: Any = torch.backends  # whose types say less than it has
    ours, cudnn, matmul = backends.cuda, backends.cudnn, backends.cuda.matmul
    kinds = ("flash", "mem_efficient", "cudnn", "math")
    return {
        "float32_matmul": matmul.fp32_precision,
        "float32_conv": cudnn.conv.fp32_precision,
        "float32_rnn": cudnn.rnn.fp32_precision,
        "float16_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "float16_accumulation": matmul.allow_fp16_accumulation,
        "bfloat16_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "blas_library": ours.preferred_blas_library(),
        "cudnn_enabled": cudnn.enabled,
        "attention": " ".join(one for one in kinds if getattr(ours, f"{one}_sdp_enabled")()),
    }
