"""Masks: which accelerators the variables of its surroundings let a process see.

Owns how CUDA and HIP read such a list, as torch reads it, too.  What it lets through is called as
it is written there, so that it can be passed on; nothing is numbered anew.

    0,2,-1,1       the first and the third: a list ends at the first entry that is no device
    GPU-8f3a       the one whose UUID begins so
    MIG-4c1e       a part of a GPU
    0,0            none: a device that is named twice hides all
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

_INDEX = re.compile(r"\+?(\d{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One of a machine, or a part of one."""

    name: str
    """As ``core.device_names`` writes it: ``cuda:GPU-8f3a...``, ``cuda:3``, ``rocm:0``."""

    uuid: str = ""
    model: str = ""
    memory_bytes: int | None = None
    parts: tuple[Accelerator, ...] = ()
    """Into which it is divided, so that each is a device of its own; nothing: it is whole."""


def unmasked(mask: str | None, found: Sequence[Accelerator]) -> tuple[Accelerator, ...]:
    """Return what a mask lets a process see of those of one kind, each as the mask writes it.

    ``mask``: None: there is none, and everything is seen.
    """
    if mask is None:
        return tuple(part for one in found for part in one.parts or (one,))
    seen = tuple(_entries(mask, found))
    return seen if len({replace(one, name="") for one in seen}) == len(seen) else ()


def entries_of(mask: str) -> tuple[str, ...]:
    """Return what stands in a mask, seen or not."""
    return tuple(entry.strip() for entry in mask.split(","))


def _entries(mask: str, found: Sequence[Accelerator]) -> Iterator[Accelerator]:
    entries = entries_of(mask)
    style = next((kind for kind in ("MIG-", "GPU-") if entries[0].startswith(kind)), "")
    for entry in entries:
        one = _called(entry, found) if style else _numbered(entry, found)
        if one is None or not entry.startswith(style):
            return
        yield replace(one, name=f"{one.name.partition(':')[0]}:{entry}")


def _numbered(entry: str, found: Sequence[Accelerator]) -> Accelerator | None:
    number = int(digits[1]) if (digits := _INDEX.match(entry)) else len(found)
    return found[number] if number < len(found) else None


def _called(entry: str, found: Sequence[Accelerator]) -> Accelerator | None:
    """Return the one device whose UUID an entry is, or the beginning of it."""
    whole, *inside = entry.removeprefix("MIG-").split("/")  # MIG-GPU-.../1/0, as it was once
    if inside:
        return next((replace(one, uuid=entry) for one in found if one.uuid == whole), None)
    every = [each for one in found for each in (one, *one.parts)]
    called = [one for one in every if one.uuid.startswith(entry)]
    return called[0] if len(called) == 1 else None
