"""Exporting a checkpoint's weights as one safetensors file.

Owns which tensors it holds, under which names.  Must not know the format, which is the library's,
nor what the weights are for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pliant.checkpoint.dcp.manifest import Item
from pliant.checkpoint.dcp.read import StoredCheckpoint, load
from pliant.checkpoint.failures import storage_error
from pliant.core.errors import ConfigError
from pliant.machine.files import fresh_beside

_DTYPES = {"bool", "bfloat16", "complex64", "float8_e4m3fn", "float8_e5m2"} | {
    *(f"float{bits}" for bits in (16, 32, 64)),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
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

    The tensors are in memory together while they are written.

    Raises:
        ConfigError: there is nothing below ``under``, a type that the format lacks, or no library.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ModuleNotFoundError as error:
        raise ConfigError(
            "pliant checkpoint export needs safetensors: pip install 'pliant[export]'"
        ) from error
    weights = _weights(checkpoint, under)
    tied: dict[str, str] = {}
    if not repeat_tied:
        weights, tied = _untied(weights)
    about = {"format": "pt", **tied}
    if checkpoint.manifest is not None:
        about["pliant_checkpoint"] = checkpoint.manifest.name
    loaded = load(checkpoint, [item.name for item in weights.values()])
    tensors = {name: loaded[item.name].contiguous() for name, item in weights.items()}
    try:
        with fresh_beside(path) as fresh:
            fresh.touch()
            mode = fresh.stat().st_mode
            save_file(tensors, fresh, about)
            fresh.chmod(mode)  # the library's is for nobody but its owner
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(path)
    except (OSError, SafetensorError) as error:
        raise storage_error(error, str(path), "written") from error
    size = path.stat().st_size
    return Exported(path=str(path), num_tensors=len(weights), num_bytes=size, tied=tied)


def _weights(checkpoint: StoredCheckpoint, under: str) -> dict[str, Item]:
    """Return items by their name in the file."""
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
    return found


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
