"""Accelerators of this machine: which a process may use, by which name, and which are unhealthy.

Owns how each vendor's are found, without torch and without a context on any of them, by what is
there: a vendor's package, its tool, or what the kernel tells.  ``core.device_masks`` says what the
variables of the surroundings let through.  What is broken, or does not answer, finds no device.
"""

from __future__ import annotations

import importlib
import logging
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from pliant.core.device_masks import Accelerator, unmasked

ANSWER_S = 15.0
"""Longest that a vendor's library or tool may take, in seconds: some hang on a device that is gone,
and a tool takes seconds where no process keeps the driver loaded."""

NVIDIA_FILES = Path("/proc/driver/nvidia/gpus")
AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")

_GONE = "it does not answer: it has fallen off the bus, or may not be used"
_TOO_HOT = 0x40
"""nvmlClocksThrottleReasonHwThermalSlowdown"""

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


def visible(environ: Mapping[str, str]) -> tuple[Accelerator, ...]:
    """Return the accelerators that a process with these variables sees.

    In the order of the variables; else as the vendor numbers them.
    """
    return (*_nvidia(environ), *_amd(environ))


def ailments(names: Iterable[str]) -> dict[str, str]:
    """Say in one sentence each what ails these devices; nothing ails a healthy one: empty.

    Those are left out of which nobody can be asked, as without a vendor's package.
    """
    asked = tuple(names)
    said = (_answer(ask, asked) or {} for ask in (_ailments_nvml, _ailments_amdsmi))
    return {name: why for found in said for name, why in found.items()}


# --- NVIDIA -----------------------------------------------------------------------------


def _nvidia(environ: Mapping[str, str]) -> tuple[Accelerator, ...]:
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask in ("", "-1"):
        return ()
    seen = unmasked(mask, found := _find_nvidia())
    if found and not seen:
        _log.warning("CUDA_VISIBLE_DEVICES=%s names no GPU of this machine, or one twice", mask)
    return seen


@cache
def _find_nvidia() -> list[Accelerator]:
    """Ask once: it can take seconds."""
    asked = (_answer(ask) for ask in (_ask_nvml, _ask_nvidia_smi, _read_nvidia_files))
    return next((found for found in asked if found), [])


@contextmanager
def _nvml() -> Iterator[Any]:
    """Lend NVIDIA's library of management, which makes no context."""
    library: Any = importlib.import_module("pynvml")
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        raise ImportError(str(error)) from error  # there is no driver, as a rule
    try:
        yield library
    finally:
        library.nvmlShutdown()


def _devices_nvml(nvml: Any) -> Iterator[tuple[Any, Accelerator]]:
    """Yield each device that answers, with what it is."""
    for at in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):  # it is gone, or may not be used here
            device = nvml.nvmlDeviceGetHandleByIndex(at)
            whole, parts = _described_nvml(nvml, device), list[Accelerator]()
            with suppress(nvml.NVMLError):  # it cannot be divided
                is_divided = nvml.nvmlDeviceGetMigMode(device)[0]
                most = nvml.nvmlDeviceGetMaxMigDeviceCount(device) if is_divided else 0
                for place in range(most):
                    with suppress(nvml.NVMLError):  # there could be more of them
                        part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, place)
                        parts.append(_described_nvml(nvml, part))
            yield device, replace(whole, parts=tuple(parts))


def _described_nvml(nvml: Any, device: Any) -> Accelerator:
    said = (nvml.nvmlDeviceGetUUID(device), nvml.nvmlDeviceGetName(device))
    uuid, model = (one.decode() if isinstance(one, bytes) else one for one in said)
    memory_bytes = None
    with suppress(nvml.NVMLError):  # where it is the host's, it has none of its own
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(device).total)
    return Accelerator(name=f"cuda:{uuid}", uuid=uuid, model=model, memory_bytes=memory_bytes)


def _ask_nvml() -> list[Accelerator]:
    with _nvml() as nvml:
        return [one for _, one in _devices_nvml(nvml)]


def _ask_nvidia_smi() -> list[Accelerator]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = ("--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
    found: list[Accelerator] = []
    for uuid, model, size in (line.split(", ") for line in _lines_of(tool, *query)):
        memory_bytes = int(size) << 20 if size.isdigit() else None  # [N/A]
        one = Accelerator(name=f"cuda:{uuid}", uuid=uuid, model=model, memory_bytes=memory_bytes)
        found.append(one)
    at = -1
    for line in _lines_of(tool, "-L"):  # parts stand below their device
        at += line.startswith("GPU ")
        if part := re.search(r"(MIG .*?)\s+Device\s.*UUID: (MIG-\S+)\)", line):
            whole, name = found[at], f"cuda:{part[2]}"
            one = Accelerator(name=name, uuid=part[2], model=f"{whole.model} {part[1]}")
            found[at] = replace(whole, parts=(*whole.parts, one))
    return found


def _read_nvidia_files() -> list[Accelerator]:
    """Read what the driver tells, in the order of the bus; it does not tell of parts."""
    found: list[Accelerator] = []
    for path in sorted(NVIDIA_FILES.glob("*/information")):
        fields = dict(re.findall(r"^([^:\n]+):[ \t]*(.*)$", path.read_text(), re.MULTILINE))
        uuid = fields.get("GPU UUID", "?")
        name = str(len(found)) if "?" in uuid else uuid  # not known before it is used
        found.append(Accelerator(name=f"cuda:{name}", uuid=uuid, model=fields.get("Model", "")))
    return found


def _ailments_nvml(names: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    with _nvml() as nvml:
        there: dict[str, Any] = {}
        for device, one in _devices_nvml(nvml):
            parts = (part.name for part in one.parts)
            there |= dict.fromkeys(
                (f"cuda:{nvml.nvmlDeviceGetIndex(device)}", one.name, *parts), device
            )
        for name in (one for one in names if one.startswith("cuda:") and "/" not in one):
            is_number = name.removeprefix("cuda:").isdigit()
            mine = [one for one in there if one == name or (one.startswith(name) and not is_number)]
            found[name] = _ailment_nvml(nvml, there[mine[0]]) if mine else _GONE
    return found


def _ailment_nvml(nvml: Any, device: Any) -> str:
    uncorrected, since_loaded = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    with suppress(nvml.NVMLError):  # not every model can be asked everything
        if nvml.nvmlDeviceGetRemappedRows(device)[3]:
            return "rows of its memory could not be remapped: it must be replaced"
    with suppress(nvml.NVMLError):
        if errors := nvml.nvmlDeviceGetTotalEccErrors(device, uncorrected, since_loaded):
            return f"its memory had {errors} uncorrected errors since the driver was loaded"
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device) & _TOO_HOT:
            return "it is too hot: its hardware has slowed it down to half or less"
    return ""


# --- others -----------------------------------------------------------------------------


def _amd(environ: Mapping[str, str]) -> tuple[Accelerator, ...]:
    """Return what the kernel tells, in the order in which AMD's runtime counts."""
    found: list[Accelerator] = []
    nodes = [path for path in AMD_NODES.glob("*/properties") if path.parent.name.isdigit()]
    for path in sorted(nodes, key=lambda path: int(path.parent.name)):
        with suppress(OSError):  # another container's
            values = dict(re.findall(r"^(\w+) (\d+)$", path.read_text(), re.MULTILINE))
            if int(values.get("simd_count", 0)):  # else it is a processor
                uuid = f"GPU-{int(values.get('unique_id', 0)):016x}"
                model = f"gfx version {values.get('gfx_target_version')}"
                found.append(Accelerator(name=f"rocm:{len(found)}", uuid=uuid, model=model))
    if (outer := environ.get("ROCR_VISIBLE_DEVICES")) is not None:  # HIP counts what is left
        left = enumerate(unmasked(outer, found))
        found = [replace(one, name=f"rocm:{at}") for at, one in left]
    return unmasked(environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES")), found)


def _ailments_amdsmi(names: Collection[str]) -> dict[str, str]:
    smi: Any = importlib.import_module("amdsmi")
    smi.amdsmi_init()
    found: dict[str, str] = {}
    try:
        for device in smi.amdsmi_get_processor_handles():
            name = f"rocm:{smi.amdsmi_get_gpu_enumeration_info(device)['hip_id']}"
            errors = smi.amdsmi_get_gpu_total_ecc_count(device)["uncorrectable_count"]
            if name in names:
                found[name] = f"its memory had {errors} uncorrected errors" if errors else ""
    finally:
        smi.amdsmi_shut_down()
    return found


# --- any --------------------------------------------------------------------------------


def _lines_of(*command: str) -> list[str]:
    done = subprocess.run(  # noqa: S603 - the vendor's own
        command, capture_output=True, text=True, timeout=ANSWER_S, check=True, errors="replace"
    )
    return done.stdout.splitlines()


_asking: dict[Callable[..., Any], threading.Thread] = {}
"""Who was asked what last."""


def _answer(ask: Callable[..., Answer], *given: Any) -> Answer | None:
    """Return what is answered in time; None: nothing, and why is noted.

    What still hangs is not asked again.
    """
    if ask in _asking and _asking[ask].is_alive():
        return None
    answers: SimpleQueue[Answer | Exception] = SimpleQueue()

    def listen() -> None:
        try:
            answers.put(ask(*given))
        except Exception as error:  # of a vendor's code, which may be broken
            answers.put(error)

    _asking[ask] = threading.Thread(target=listen, daemon=True)  # left behind if it hangs
    _asking[ask].start()
    try:
        answer = answers.get(timeout=ANSWER_S)
    except Empty:
        answer = TimeoutError(f"no answer within {ANSWER_S:g} s")
    if isinstance(answer, Exception):
        if not isinstance(answer, ImportError):
            _log.warning("accelerators may be missed: %s", answer)
        return None
    return answer
