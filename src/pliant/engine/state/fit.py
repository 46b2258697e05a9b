"""Fit: whether a state that was kept is one of this script's objects.

Owns the refusals of a checkpoint of another model or other optimizers.  Must not know where it was
kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pliant.core.errors import ConfigError
from pliant.engine.state.stream import TensorSpec
from pliant.engine.state.tagged_codec import TensorRef


def check_fits(
    here: Mapping[str, Any],
    document: Any,
    specs: Sequence[TensorSpec],
    *,
    local_buffers: frozenset[str],
) -> None:
    """Make sure that a state that was kept is one of this model, before anything is written.

    Args:
        here: the state of this script's objects, as captured.
        document: the state that was kept, with references in place of its tensors.
        specs: of those tensors.
        local_buffers: names of buffers that are not kept.

    Raises:
        ConfigError: names the first tensor of the model that differs.
    """
    for part in ("parameters", "buffers"):
        theirs, ours = document[part], here[part]
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
        strange = sorted(ours.keys() - theirs.keys() - local_buffers)
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
