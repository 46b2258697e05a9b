"""Restored: a session's state as a checkpoint holds it, put back into its objects.

Owns the refusals of one of another model or other optimizers, and which part of what was kept is
this worker's, however the replicas were sharded that kept it.  Must not know storage or files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pliant.core.errors import ConfigError
from pliant.engine.local_tensors import TensorPart, local_of, part_of
from pliant.engine.reduce.buckets import dense_stride
from pliant.engine.state.durable import STAGED_VERSION, CheckpointDamaged, CheckpointReader
from pliant.engine.state.stream import TensorSpec
from pliant.engine.state.tagged_codec import DTYPES, DocumentError, TensorRef, decode
from pliant.engine.state.training_state import State


def restore(
    state: State,
    reader: CheckpointReader,
    *,
    committed: int,
    coordinates: Mapping[str, int] | None = None,
    stage: tuple[int, ...] = (),
) -> str:
    """Put the checkpoint of a step into a session's objects; they may be half written if it raises.

    ``stage``: of the model that this worker has; empty: all of it.

    Returns the words of the dataset that it was made with; empty: it has none.

    Raises:
        CheckpointDamaged: it cannot be read, or is not what was written.
        ConfigError: it was made by another model or other optimizers.
    """
    text = reader.document()
    try:
        form = json.loads(text)
        is_newer = form["version"] > STAGED_VERSION
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(error) from error
    if is_newer:
        raise ConfigError("the checkpoint was written by a newer pliant; install that version")
    try:
        if stage:
            form = form["stages"][stage[0]]
        kept = int(form["committed"])
        names, specs = [], []
        for name, word, shape, stride in form["tensors"]:
            names.append(name)
            specs.append(TensorSpec(dtype=DTYPES[word], shape=tuple(shape), stride=tuple(stride)))
        document = form["state"].encode()
        tree = decode(document)
    except (ValueError, KeyError, TypeError, AttributeError, DocumentError) as error:
        raise _unreadable(error) from error
    if kept != committed:
        raise CheckpointDamaged(f"it holds step {kept}, and should hold {committed}")
    _check_fits(state, tree, specs)
    parts = _parts_here(state, tree, specs, coordinates or {})
    for index, (part, stride) in parts.items():
        specs[index] = replace(specs[index], shape=part.sizes, stride=stride)
    targets = state.allocate(tree, specs)
    named = {names[index]: part for index, (part, _) in parts.items()}
    reader.read(dict(zip(names, targets, strict=True)), named)
    state.apply(decode(document, targets))
    dataset = form.get("dataset")
    return dataset if isinstance(dataset, str) else ""


def _parts_here(
    state: State, document: Any, specs: Sequence[TensorSpec], coordinates: Mapping[str, int]
) -> dict[int, tuple[TensorPart, tuple[int, ...]]]:
    """Return of which tensors this worker has a part, and the strides of that, by index."""
    found: dict[int, tuple[TensorPart, tuple[int, ...]]] = {}
    for name, parameter in state.sharded_parameters():
        part = part_of(parameter, coordinates)
        if part is None or name not in document["parameters"]:
            continue
        kept = [document["parameters"][name]]
        for optimizer in document["optimizers"]:
            kept += optimizer["state"].get(name, {}).values()
        for one in kept:
            if isinstance(one, TensorRef) and specs[one.index].shape == part.shape:
                found[one.index] = part, dense_stride(local_of(parameter))
    return found


def _unreadable(error: Exception) -> CheckpointDamaged:
    return CheckpointDamaged(f"its document cannot be read: {error}")


def _check_fits(state: State, document: Any, specs: Sequence[TensorSpec]) -> None:
    """Make sure that a state that was kept is one of this model, before anything is written.

    ``document`` has references in place of its tensors; ``specs`` are theirs.

    Raises:
        ConfigError: names the first tensor of the model that differs.
    """
    here = state.capture()
    whole = dict(state.sharded_parameters())
    for part in ("parameters", "buffers"):
        theirs, ours = document[part], {**here[part], **(whole if part == "parameters" else {})}
        for name, found in theirs.items():
            if name not in ours:
                raise ConfigError(
                    f"the checkpoint's model has {name!r}, which this script's has not"
                )
            if isinstance(found, TensorRef):
                kept = _words(specs[found.index])
                if kept != _words(ours[name]):
                    raise ConfigError(
                        f"{name!r} is {kept} in the checkpoint and {_words(ours[name])} in this"
                        " script's model"
                    )
        strange = sorted(ours.keys() - theirs.keys() - state.local_buffers)
        if strange:
            raise ConfigError(
                f"this script's model has {strange[0]!r}, which the checkpoint's has not"
            )
    _check_others(document, here)


def _check_others(document: Any, here: Mapping[str, Any]) -> None:
    """Make sure that there is a place for everything else, and something for every place."""
    for part in ("optimizers", "schedulers"):
        kept, ours = len(document[part]), len(here[part])
        if kept != ours:
            raise ConfigError(f"the checkpoint has {kept} {part}, and this script has {ours}")
    if (document["scaler"] is None) != (here["scaler"] is None):
        who = "this script" if document["scaler"] is None else "the checkpoint"
        raise ConfigError(f"only {who} has a scaler")
    for part in ("extra", "modules"):
        what = "extra_state" if part == "extra" else "a module with extra state"
        for name in sorted(document[part].keys() ^ here[part].keys()):
            who = "this script" if name in here[part] else "the checkpoint"
            raise ConfigError(f"only {who} has {what}" + f" named {name!r}" * bool(name))


def _words(tensor: TensorSpec | torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
