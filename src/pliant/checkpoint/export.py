"""Exporting a checkpoint's weights as one safetensors file, or as a directory that others have.

Owns which tensors a file holds, under which names.  Must not know the format, which is the
library's, nor what the weights are for.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pliant.checkpoint.dcp.manifest import Item
from pliant.checkpoint.dcp.read import StoredCheckpoint, load
from pliant.checkpoint.failures import storage_error
from pliant.core.errors import ConfigError
from pliant.machine.files import fresh_beside

INDEX = "model.safetensors.index.json"
"""Beside weights in several files: which tensor is in which, as ``weight_map``."""

_OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack")

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
    _require_library()
    weights = _weights(checkpoint, under)
    tied: dict[str, str] = {}
    if not repeat_tied:
        weights, tied = _untied(weights)
    _write(checkpoint, weights, path, tied)
    size = path.stat().st_size
    return Exported(path=str(path), num_tensors=len(weights), num_bytes=size, tied=tied)


def export_like(
    checkpoint: StoredCheckpoint, target: Path, like: Path, *, under: str = "model"
) -> Exported:
    """Write a directory as ``like`` is one: its names in its files, and all else that it has.

    The directory appears when it is whole.  The tensors of one file are in memory together.

    Raises:
        ConfigError: as ``export``; or ``target`` is there, or the checkpoint has other names.
    """
    _require_library()
    files = weight_files(like)
    if target.exists():
        raise ConfigError(f"{target} exists; name a directory that is not there yet")
    weights = _weights(checkpoint, under)
    wanted = {name for names in files.values() for name in names}
    lacking = sorted(wanted - weights.keys())
    written = {_bytes_of(weights[name]) for name in wanted & weights.keys()}
    strange = sorted(n for n in weights if n not in wanted and _bytes_of(weights[n]) not in written)
    if lacking or strange:
        raise ConfigError(
            f"{(lacking or strange)[0]!r} is in one of {like} and {checkpoint.place} only; "
            "export --like takes the directory that the trained model came from"
        )
    fresh = target.with_name(f".{target.name}.part")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        total = sum(
            _write(checkpoint, {name: weights[name] for name in names}, fresh / file, {})
            for file, names in files.items()
        )
        if (like / INDEX).exists():
            weight_map = {name: file for file, names in files.items() for name in names}
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            (fresh / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        for path in like.iterdir():
            is_other = path.suffix not in _OTHER_WEIGHTS and not path.name.endswith(".index.json")
            if is_other and path.is_file() and not path.name.startswith("."):
                shutil.copyfile(path, fresh / path.name)
        fresh.rename(target)
    except OSError as error:
        raise storage_error(error, str(target), "written") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Exported(path=str(target), num_tensors=len(wanted), num_bytes=total, tied={})


def weight_files(directory: Path) -> dict[str, list[str]]:
    """Return the names of the tensors in each safetensors file of a directory.

    Raises:
        ConfigError: there is none, an index names one that is not there, or a file is none.
    """
    _require_library()
    from safetensors import SafetensorError, safe_open

    try:
        found = {}
        for path in sorted(directory.glob("*.safetensors")):
            with safe_open(path, framework="pt") as opened:
                found[path.name] = sorted(opened.keys())
        if (directory / INDEX).exists():
            names: dict[str, str] = json.loads((directory / INDEX).read_text())["weight_map"]
            for name, file in names.items():
                if name not in found.get(file, ()):
                    raise ConfigError(f"{directory / INDEX} names {name!r}, not in {file}")
            found = {file: found[file] for file in sorted(set(names.values()))}
    except (OSError, ValueError, LookupError, SafetensorError) as error:
        raise ConfigError(f"the weights in {directory} cannot be read: {error}") from error
    if not found:
        raise ConfigError(f"{directory} holds no safetensors file")
    return found


def _bytes_of(item: Item) -> object:
    """Return where its bytes lie: the same for two names of a tied weight."""
    return tuple((chunk.file, chunk.offset) for chunk in item.chunks)


def _require_library() -> None:
    try:
        import safetensors  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            "this needs the package safetensors: pip install 'pliant[export]'"
        ) from error


def _write(
    checkpoint: StoredCheckpoint, weights: Mapping[str, Item], path: Path, tied: Mapping[str, str]
) -> int:
    """Write one file, which appears when it is whole; return how many bytes its tensors have."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

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
    return sum(tensor.nbytes for tensor in tensors.values())


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
        holder = holders.setdefault(_bytes_of(item), name)
        if holder != name:
            tied[name] = holder
    return {name: item for name, item in weights.items() if name not in tied}, tied
