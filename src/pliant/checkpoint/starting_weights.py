"""Starting weights: what a new run starts from, taken out of a checkpoint of any origin and size.

``python -m pliant.checkpoint.starting_weights SOURCE FILE`` writes model weights, and optimizer
states if there are any, unsharded, into one file that every replica can read (``pliant run --init
SOURCE``).
Owns which items those are; counters, schedules and the place in the data stay behind.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from pliant.checkpoint import catalogue
from pliant.checkpoint.dcp.read import StoredCheckpoint, load, open_checkpoint
from pliant.checkpoint.export import weight_files
from pliant.checkpoint.store.open import open_storage
from pliant.core.errors import EXIT_OK, EXIT_USAGE, ConfigError, PliantError

MARK = "pliant_initial"
"""Key of the file; a file of plain weights has none of this name."""

MODEL, STATES = "model.", "optim.state."


def write_starting_weights(source: str, target: Path) -> None:
    """Write what a run can start from.

    ``source`` is a DCP directory or URL, or a root of pliant's, of which the newest is taken; or
    a safetensors file, or a directory of such.

    Raises:
        ConfigError: there is no checkpoint, or no tensor of a model in it.
    """
    if (whole := _safetensors(source)) is not None:
        torch.save({MARK: 1, "model": whole, "optim": {}}, target)
        return
    checkpoint = _open(source)
    names = [name for name, item in checkpoint.items.items() if item.kind == "tensor"]
    is_bare = not any(name.startswith(MODEL) for name in names)  # a model.state_dict()
    top = "" if is_bare else MODEL
    weights = {name: name.removeprefix(top) for name in names if name.startswith(top)}
    if not weights:
        raise ConfigError(f"{checkpoint.place} holds no tensor")
    states = {name: name.removeprefix(STATES) for name in names if name.startswith(STATES)}
    values = load(checkpoint, [*weights, *states])
    optim: dict[str, dict[str, Any]] = {}
    for name, rest in states.items():
        parameter, _, key = rest.rpartition(".")
        optim.setdefault(parameter, {})[key] = values[name]
    model = {short: values[name] for name, short in weights.items()}
    torch.save({MARK: 1, "model": model, "optim": optim}, target)


def _safetensors(source: str) -> dict[str, torch.Tensor] | None:
    """Return the weights in safetensors files here; None: the source is something else."""
    path = Path(source)
    if path.is_dir() and any(path.glob("*.safetensors")):
        files = [path / file for file in weight_files(path)]
    elif path.suffix == ".safetensors" and path.is_file():
        files = [path]
    else:
        return None
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: one for file in files for name, one in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{source} cannot be read: {error}") from error


def _open(source: str) -> StoredCheckpoint:
    storage = open_storage(source)
    there = catalogue.listed(storage)
    whole = next((one.name for one in there if one.damage is None), None)
    if there and whole is None:
        raise ConfigError(f"every checkpoint in {source} is damaged: {there[0].damage}")
    return open_checkpoint(storage, whole or "")


def main() -> int:
    """Write the file; a reason it cannot be done goes to standard error, with exit code 2."""
    source, target = sys.argv[1:]
    try:
        write_starting_weights(source, Path(target))
    except PliantError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
