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
from collections.abc import Sequence
from dataclasses import dataclass, replace

_INDEX = re.compile(r"\+?(\d{1,9})")
_UUIDS = ("MIG-", "GPU-")


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
    seen: dict[Accelerator, str] = {}
    for entry in (entries := entries_of(mask)):
        mine = _called(entry, found)
        if len(mine) != 1 or _style_of(entry) != _style_of(entries[0]):
            break
        if mine[0] in seen:
            return ()
        seen[mine[0]] = f"{mine[0].name.partition(':')[0]}:{entry}"
    return tuple(replace(one, name=name) for one, name in seen.items())


def entries_of(mask: str) -> tuple[str, ...]:
    """Return what stands in a mask, seen or not."""
    return tuple(entry.strip() for entry in mask.split(","))


def _style_of(entry: str) -> str:
    return entry[:4] if entry.startswith(_UUIDS) else ""


def _called(entry: str, found: Sequence[Accelerator]) -> Sequence[Accelerator]:
    """Return those that an entry may mean, by their place or by the beginning of their UUID."""
    if not entry.startswith(_UUIDS):
        place = int(digits[1]) if (digits := _INDEX.match(entry)) else len(found)
        return found[place : place + 1]
    if "/" in entry:  # MIG-GPU-.../1/0, as it was once
        whole = entry.removeprefix("MIG-").partition("/")[0]
        return [replace(one, uuid=entry) for one in found if one.uuid == whole]
    every = (each for one in found for each in (one, *one.parts))
    return [one for one in every if one.uuid.startswith(entry)]
