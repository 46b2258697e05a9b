"""What torch raises where a device has failed, in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pliant.core.events import ExitKind
from pliant.engine.worker.device_errors import DeviceError, found_in


def of(error: BaseException, device: str = "cuda:3") -> DeviceError:
    found = found_in(error, device)
    assert found is not None
    return found


ILLEGAL = (
    "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be "
    "asynchronously reported at some other API call"
)


def test_out_of_memory_says_what_was_asked_for_and_leaves_the_device_usable() -> None:
    said = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.6 GiB"

    found = of(torch.OutOfMemoryError(said))

    assert (found.kind, found.is_over) == (ExitKind.DEVICE, False)
    assert found.sentence.startswith("cuda:3 is out of memory for 2.00 GiB more")
    assert found.sentence.endswith("; a smaller micro_batch_size needs less")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        torch.AcceleratorError("CUDA error: out of memory"),
    ],
    ids=["library", "context"],
)
def test_a_library_or_a_context_without_memory_is_out_of_memory_too(error: RuntimeError) -> None:
    assert of(error).sentence.startswith("cuda:3 is out of memory")


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(ILLEGAL),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
    ],
    ids=["address", "library", "memory"],
)
def test_a_poisoned_context_is_over(error: RuntimeError) -> None:
    found = of(error)

    assert (found.kind, found.is_over) == (ExitKind.DEVICE, True)
    assert found.sentence.startswith("cuda:3 has failed: ")
    assert "\n" not in found.sentence


def test_an_assertion_on_the_device_is_the_script_s_and_over() -> None:
    found = of(torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with"))

    sentence = "AcceleratorError: CUDA error: device-side assert triggered"
    assert found == DeviceError(kind=ExitKind.SCRIPT, sentence=sentence, is_over=True)


def test_a_call_that_is_wrong_everywhere_is_the_script_s() -> None:
    found = of(torch.AcceleratorError("CUDA error: invalid device ordinal"))

    assert (found.kind, found.is_over) == (ExitKind.SCRIPT, False)


def test_the_first_of_several_counts() -> None:
    error = torch.AcceleratorError("CUDA error: unknown error")
    error.__context__ = torch.AcceleratorError(ILLEGAL)

    assert "an illegal memory access" in of(error).sentence


def test_what_is_lasting_counts_more_than_what_the_script_has_dealt_with() -> None:
    error = torch.AcceleratorError(ILLEGAL)
    error.__context__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    assert of(error).is_over


def test_a_device_that_was_promised_and_is_not_there_has_failed() -> None:
    scope: dict[str, Any] = {"__name__": "torch.cuda"}
    exec("def _lazy_init():\n    raise RuntimeError('No CUDA GPUs are available')", scope)
    with pytest.raises(RuntimeError) as caught:
        scope["_lazy_init"]()
    error = caught.value

    assert of(error).sentence == "cuda:3 is not there: No CUDA GPUs are available"
    for device in ("", "cpu:0-3"):
        assert found_in(error, device) is None, "nobody has promised one"


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory")])
def test_other_errors_say_nothing_of_a_device(error: Exception) -> None:
    assert found_in(error, "cuda:3") is None
