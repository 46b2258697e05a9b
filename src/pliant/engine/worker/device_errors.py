"""Device errors: what torch raises where a device has failed, in a sentence.

Owns which errors those are, by torch's words for any vendor's, and after which of them nothing may
be asked of the device any more.  Imports no torch: without it nothing has failed on a device.  Must
not know how a worker ends.
"""

from __future__ import annotations

import re
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pliant.core.device_names import CPU, kind_of
from pliant.core.events import ExitKind
from pliant.machine.descriptors import causes

_OUT_OF_MEMORY = re.compile(r"out of memory|_STATUS_ALLOC_FAILED", re.IGNORECASE)
_OF_LIBRARIES = re.compile(r"_STATUS_(ALLOC_FAILED|EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)")
"""What libraries of a vendor say in a ``RuntimeError``."""

_OF_SCRIPT = re.compile(
    r"\bassert|invalid (device ordinal|argument|configuration)|no kernel image|not supported",
    re.IGNORECASE,
)
"""What is said of a call that is wrong wherever it is made."""

_ASKED_FOR = re.compile(r"tried to allocate ([\d.]+ ?\w+)", re.IGNORECASE)
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceError:
    """What has happened to a device."""

    kind: ExitKind
    sentence: str

    is_over: bool
    """Whether every call to it fails from now on, or may never return."""


def found_in(error: BaseException, device: str) -> DeviceError | None:
    """Return what an error says of this worker's device; None: nothing.

    Of several that were raised one after the other the first counts, from which the others follow.

    ``device``: what people call it; empty: as torch does.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    found = [one for one in causes(error) if _is_of_device(torch, one) or _is_missing(one)]
    if not found:
        return None
    named = "" if kind_of(device) == CPU else device
    lasting = [one for one in found if not _is_out_of_memory(torch, one)]
    first = (lasting or found)[-1]
    said = _words(first)
    line = said.strip().partition("\n")[0]
    name = named or _current(torch)
    if not lasting:
        sentence = _out_of_memory(torch, name, said)
        return DeviceError(kind=ExitKind.DEVICE, sentence=sentence, is_over=False)
    if _is_missing(first):
        if not named:
            return None  # nobody has promised one
        sentence = f"{named} is not there: {line}"
        return DeviceError(kind=ExitKind.DEVICE, sentence=sentence, is_over=True)
    if _OF_SCRIPT.search(line):
        is_over = "assert" in line  # the other calls were not made
        sentence = f"{type(first).__name__}: {line}"
        return DeviceError(kind=ExitKind.SCRIPT, sentence=sentence, is_over=is_over)
    sentence = f"{name} has failed: {line}; its kernel was queued where the traceback is, or before"
    return DeviceError(kind=ExitKind.DEVICE, sentence=sentence, is_over=True)


def _is_of_device(torch: Any, error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError):
        return True
    return isinstance(error, RuntimeError) and _OF_LIBRARIES.search(_words(error)) is not None


def _is_out_of_memory(torch: Any, error: BaseException) -> bool:
    is_said = _OUT_OF_MEMORY.search(_words(error)) is not None
    return isinstance(error, torch.OutOfMemoryError) or is_said


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # of the script's own class, whose fault is one of its own
        return ""


def _is_missing(error: BaseException) -> bool:
    """Whether a script's first use of a device has failed."""
    return isinstance(error, RuntimeError) and any(
        frame.f_code.co_name == "_lazy_init"
        and str(frame.f_globals.get("__name__")).startswith("torch.")
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _out_of_memory(torch: Any, name: str, said: str) -> str:
    asked = _ASKED_FOR.search(said)
    what = f" for {asked[1]} more" if asked is not None else ""
    has = ""
    with suppress(Exception):  # not every backend counts, nor every version of torch
        here = torch.accelerator.memory_allocated()
        free, total = torch.accelerator.get_memory_info()
        has = (
            f"; this worker has allocated {here / _GIB:.2f} GiB, and {free / _GIB:.2f} of "
            f"{total / _GIB:.2f} GiB are free"
        )
    return f"{name} is out of memory{what}{has}; a smaller micro_batch_size needs less"


def _current(torch: Any) -> str:
    with suppress(Exception):  # a backend that has failed
        found = torch.accelerator.current_accelerator()
        return f"{found.type}:{torch.accelerator.current_device_index()}"
    return "its device"
