"""How accelerators are found, with stand-ins for what vendors install."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pliant.machine import accelerators
from pliant.machine.accelerators import ailments, visible

SMI = """#!/bin/sh
echo "$@" >> {log}
case "$1" in
-L)
  echo "GPU 0: NVIDIA H200 (UUID: GPU-aa)"
  echo "  MIG 1g.18gb     Device  0: (UUID: MIG-cc)"
  echo "  MIG 1g.18gb     Device  1: (UUID: MIG-dd)"
  echo "GPU 1: NVIDIA H200 (UUID: GPU-bb)" ;;
*)
  echo "GPU-aa, NVIDIA H200, 143771"
  echo "GPU-bb, NVIDIA H200, [N/A]" ;;
esac
"""


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide what this machine has, and forget what was found."""
    for name in ("NVIDIA_FILES", "AMD_NODES"):
        monkeypatch.setattr(accelerators, name, tmp_path / name)
    for name in ("pynvml", "amdsmi"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    accelerators._find_nvidia.cache_clear()
    yield
    accelerators._find_nvidia.cache_clear()


def _tool(directory: Path, text: str) -> Path:
    """Put a stand-in for nvidia-smi on the path; return where it writes what it was asked."""
    (directory / "bin").mkdir()
    tool, log = directory / "bin" / "nvidia-smi", directory / "log"
    tool.write_text(text.format(log=log))
    tool.chmod(0o755)
    return log


def _names(environ: dict[str, str]) -> list[str]:
    return [one.name for one in visible(environ)]


def test_a_machine_without_any_has_none() -> None:
    assert visible({}) == ()
    assert visible({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}) == ()
    assert ailments(["cuda:0", "rocm:0", "cpu:0-3"]) == {}


def test_the_tool_of_nvidia_tells_of_gpus_and_of_their_parts(tmp_path: Path) -> None:
    _tool(tmp_path, SMI)

    first, second, whole = visible({})

    assert [one.name for one in (first, second, whole)] == [
        "cuda:MIG-cc",
        "cuda:MIG-dd",
        "cuda:GPU-bb",
    ]
    assert (first.model, first.memory_bytes) == ("NVIDIA H200 MIG 1g.18gb", None)
    (masked,) = visible({"CUDA_VISIBLE_DEVICES": "GPU-a"})
    assert (masked.name, masked.model) == ("cuda:GPU-a", "NVIDIA H200")
    assert masked.memory_bytes == 143771 << 20


def test_a_mask_that_shows_none_asks_nobody_and_one_that_names_none_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = _tool(tmp_path, SMI)

    assert visible({"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert visible({"CUDA_VISIBLE_DEVICES": "-1"}) == ()
    assert not log.exists()
    assert visible({"CUDA_VISIBLE_DEVICES": "1,1"}) == ()
    assert "CUDA_VISIBLE_DEVICES=1,1 names no GPU of this machine, or one twice" in caplog.text


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\necho no devices, at all\n"])
def test_a_broken_tool_finds_nothing_and_is_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    _tool(tmp_path, text)

    assert visible({}) == ()
    assert "accelerators may be missed" in caplog.text


def test_a_tool_that_hangs_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accelerators, "ANSWER_S", 0.1)
    _tool(tmp_path, f"#!{sys.executable}\nimport threading\nthreading.Event().wait(60)\n")

    assert visible({}) == ()
    assert "0.1 s" in caplog.text


def test_the_kernel_tells_of_gpus_where_nothing_else_does(tmp_path: Path) -> None:
    for at, uuid in (("0000:1a", "GPU-3f"), ("0000:88", "GPU-????"), ("0000:9f", "GPU-????")):
        place = tmp_path / "NVIDIA_FILES" / at
        place.mkdir(parents=True)
        (place / "information").write_text(
            f"Model: \t\t NVIDIA A10\nIRQ:   17\nGPU UUID: \t {uuid}\n"
        )

    assert _names({}) == ["cuda:GPU-3f", "cuda:1", "cuda:2"]
    assert _names({"CUDA_VISIBLE_DEVICES": "2,1"}) == ["cuda:2", "cuda:1"]
    assert visible({})[1].model == "NVIDIA A10"


def test_the_kernel_tells_of_amds(tmp_path: Path) -> None:
    for at, simds in (("0", 0), ("2", 304), ("10", 304)):
        place = tmp_path / "AMD_NODES" / at
        place.mkdir(parents=True)
        text = f"simd_count {simds}\ngfx_target_version 90402\nunique_id {at}\n"
        (place / "properties").write_text(text)
    (tmp_path / "AMD_NODES" / "3").mkdir()

    assert _names({}) == ["rocm:0", "rocm:1"]
    assert visible({})[0].model == "gfx version 90402"
    assert _names({"HIP_VISIBLE_DEVICES": "1"}) == ["rocm:1"]
    assert _names({"ROCR_VISIBLE_DEVICES": "1"}) == ["rocm:0"], "HIP counts what that lets through"
    assert _names({"ROCR_VISIBLE_DEVICES": "GPU-000000000000000a"}) == ["rocm:0"]


class _NvmlError(Exception):
    pass


def _refused(*_: object) -> Any:
    raise _NvmlError("not supported")


def _nvml(devices: list[str | None], **answers: Callable[..., Any]) -> Any:
    """Return a stand-in for pynvml, in which a device is its UUID; None: it does not answer."""

    def handle(at: int) -> str:
        return devices[at] or _refused()

    module: Any = ModuleType("pynvml")
    vars(module).update(
        NVMLError=_NvmlError,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(devices),
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetIndex=devices.index,
        nvmlDeviceGetUUID=lambda device: device,
        nvmlDeviceGetName=lambda device: b"NVIDIA H200",
        nvmlDeviceGetMemoryInfo=lambda device: (
            SimpleNamespace(total=1 << 30) if device == "GPU-aa" else _refused()
        ),
        nvmlDeviceGetMigMode=lambda device: (device == "GPU-cc", 0),
        nvmlDeviceGetMaxMigDeviceCount=lambda device: 3,
        nvmlDeviceGetMigDeviceHandleByIndex=lambda device, at: (
            f"MIG-{at}" if at < 2 else _refused()
        ),
        nvmlDeviceGetRemappedRows=_refused,
        nvmlDeviceGetTotalEccErrors=_refused,
        nvmlDeviceGetCurrentClocksThrottleReasons=_refused,
    )
    vars(module).update(answers)
    return module


def test_the_library_of_nvidia_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(["GPU-aa", None, "GPU-cc"]))

    assert _names({}) == ["cuda:GPU-aa", "cuda:MIG-0", "cuda:MIG-1"]
    assert (visible({})[0].model, visible({})[0].memory_bytes) == ("NVIDIA H200", 1 << 30)
    assert _names({"CUDA_VISIBLE_DEVICES": "1"}) == ["cuda:1"]


def test_a_library_without_a_driver_leaves_it_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _nvml([], nvmlInit=_refused))
    _tool(tmp_path, SMI)

    assert "cuda:GPU-bb" in _names({})
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("question", "answer", "why"),
    [
        ("nvmlDeviceGetRemappedRows", (0, 0, False, True), "could not be remapped"),
        ("nvmlDeviceGetTotalEccErrors", 3, "had 3 uncorrected errors since"),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", 0x44, "too hot"),
    ],
)
def test_a_gpu_that_is_not_healthy_is_named(
    monkeypatch: pytest.MonkeyPatch, question: str, answer: Any, why: str
) -> None:
    sick: dict[str, Any] = {
        question: lambda device, *_: answer if device == "GPU-bb" else _refused()
    }
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(["GPU-aa", "GPU-bb", "GPU-cc"], **sick))

    found = ailments(["cuda:0", "cuda:1", "cuda:GPU-b", "cuda:MIG-0", "cpu:0"])

    assert {name for name in found if found[name]} == {"cuda:1", "cuda:GPU-b"}
    assert found.keys() == {"cuda:0", "cuda:1", "cuda:GPU-b", "cuda:MIG-0"}
    assert why in found["cuda:1"]


def test_a_gpu_that_does_not_answer_any_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = {"nvmlDeviceGetRemappedRows": lambda device: (0, 0, False, False)}
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(["GPU-aa", None], **healthy))

    found = ailments(["cuda:0", "cuda:1", "cuda:GPU-aa"])
    assert [name for name in found if found[name]] == ["cuda:1"]


def test_the_library_of_amd_tells_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("amdsmi")
    vars(module).update(
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: [1, 0],
        amdsmi_get_gpu_enumeration_info=lambda device: {"hip_id": device},
        amdsmi_get_gpu_total_ecc_count=lambda device: {"uncorrectable_count": 2 * device},
    )
    monkeypatch.setitem(sys.modules, "amdsmi", module)

    found = ailments(["rocm:0", "rocm:1", "rocm:2"])
    assert found.keys() == {"rocm:0", "rocm:1"}  # of the third nothing is said
    assert [name for name in found if found[name]] == ["rocm:1"]


def test_who_still_hangs_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "ANSWER_S", 0.05)
    release, asked = threading.Event(), list[str]()

    def ask(what: str) -> str:
        asked.append(what)
        release.wait()
        return what

    assert [accelerators._answer(ask, what) for what in ("first", "second")] == [None, None]
    release.set()
    accelerators._asking[ask].join()

    assert accelerators._answer(ask, "third") == "third"
    assert asked == ["first", "third"]
