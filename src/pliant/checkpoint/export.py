"""Exporting a checkpoint's weights as one safetensors file.

Owns that format's few rules: a length, a JSON header, then the tensors without gaps.  It is written
here, one tensor in memory at a time, so that exporting needs neither the package nor the memory of
a whole model.  Must not know what the weights are for.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from pliant.checkpoint.dcp.manifest import Item
from pliant.checkpoint.dcp.read import StoredCheckpoint, load
from pliant.checkpoint.failures import storage_error
from pliant.core.errors import ConfigError
from pliant.engine.state.tagged_codec import DTYPES
from pliant.machine.files import fresh_beside

_DTYPES = {
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    "bool": "BOOL",
    "complex64": "C64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    path: str
    num_tensors: int
    num_bytes: int
    tied: dict[str, str]
    """Names left out, each with the name under which its tensor is in the file."""


def export(
    checkpoint: StoredCheckpoint, path: Path, *, under: str = "model", repeat_tied: bool = False
) -> Exported:
    """Write the tensors below ``under`` to a file that appears when it is whole.

    Any checkpoint, foreign ones too.  ``under`` is cut off the names.  A tensor that has several
    is written once, as safetensors and transformers expect, who tie it again on loading; plain
    ``load_state_dict(strict=True)`` wants all names: ``repeat_tied``.

    Raises:
        ConfigError: there is nothing below ``under``, or a type that the format lacks.
    """
    weights = _weights(checkpoint, under)
    tied: dict[str, str] = {}
    if not repeat_tied:
        weights, tied = _untied(weights)
    header = _header(checkpoint, weights, tied)
    try:
        with fresh_beside(path) as fresh:
            _write(fresh, header, _tensors(checkpoint, weights.values()))
            fresh.replace(path)
    except OSError as error:
        raise storage_error(error, str(path), "written") from error
    size = path.stat().st_size
    return Exported(path=str(path), num_tensors=len(weights), num_bytes=size, tied=tied)


def _weights(checkpoint: StoredCheckpoint, under: str) -> dict[str, Item]:
    """Return items by their name in the file, widest elements first: all lie aligned."""
    found = {
        ".".join(map(str, item.path[1:])): item
        for item in checkpoint.items.values()
        if item.kind == "tensor" and len(item.path) > 1 and item.path[0] == under
    }
    if not found:
        tops = sorted({str(item.path[0]) for item in checkpoint.items.values()})
        raise ConfigError(
            f"{checkpoint.place} holds no tensors under {under!r}; it has {', '.join(tops)}"
        )
    for name, item in found.items():
        if item.dtype not in _DTYPES:
            raise ConfigError(f"{name} is {item.dtype}, which safetensors does not have")
    return dict(sorted(found.items(), key=lambda pair: (-DTYPES[pair[1].dtype].itemsize, pair[0])))


def _untied(weights: dict[str, Item]) -> tuple[dict[str, Item], dict[str, str]]:
    """Leave out names whose bytes in the checkpoint are those of another."""
    tied: dict[str, str] = {}
    holders: dict[object, str] = {}
    originals_first = sorted(weights.items(), key=lambda pair: pair[1].alias_of is not None)
    for name, item in originals_first:
        holder = holders.setdefault(tuple((c.file, c.offset) for c in item.chunks), name)
        if holder != name:
            tied[name] = holder
    return {name: item for name, item in weights.items() if name not in tied}, tied


def _header(checkpoint: StoredCheckpoint, weights: dict[str, Item], tied: dict[str, str]) -> bytes:
    about = {"format": "pt", **tied}
    if checkpoint.manifest is not None:
        about["pliant_checkpoint"] = checkpoint.manifest.name
    entries: dict[str, object] = {"__metadata__": about}
    start = 0
    for name, item in weights.items():
        end = start + DTYPES[item.dtype].itemsize * math.prod(item.shape)
        entries[name] = {
            "dtype": _DTYPES[item.dtype],
            "shape": list(item.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _tensors(checkpoint: StoredCheckpoint, items: Iterable[Item]) -> Iterator[memoryview]:
    for item in items:
        (tensor,) = load(checkpoint, [item.name]).values()
        if tensor.numel():
            yield memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def _write(path: Path, header: bytes, parts: Iterable[memoryview]) -> None:
    with path.open("xb") as file:
        file.write(header)
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
