"""Initial weights: what a new run starts from, out of one file of whole tensors.

Owns how a worker takes its part of it: the file is mapped, so of a model that is sharded over the
workers of a replica, or cut into stages, no worker ever holds all.  Must not know who wrote it, nor
replicas.
"""

from __future__ import annotations

import copy
import json
import textwrap
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from pliant.core.errors import ConfigError
from pliant.engine.device import host
from pliant.engine.local_tensors import cut_like
from pliant.engine.sharding.stages import Stages
from pliant.engine.state.training_state import State

MAX_REASON_CHARACTERS = 300
"""Of what torch says about weights that do not fit: it lists every name, on lines of its own."""


def take_initial_weights(path: Path, state: State, stages: Stages) -> None:
    """Give the model the weights in a file, and its optimizers their states if there are any.

    ``stages``: of the model in the file; every worker that has one must call.

    Raises:
        ConfigError: they do not fit, or there are none.
    """
    everybodys = stages.gather_texts(json.dumps(list(state.model.state_dict())))
    known = {name for one in everybodys for name in json.loads(one)}
    try:
        kept = torch.load(
            path, weights_only=True, map_location=host.LOCATION, mmap=zipfile.is_zipfile(path)
        )
        if "pliant_initial" in kept:  # written by pliant.checkpoint.starting_weights
            weights = _cut(state.model, kept["model"], known)
            state.model.load_state_dict(weights, strict=False)
            states = _cut_states(state.model, kept["optim"])
            state.begin_with(weights, copy.deepcopy(states))  # what is mapped is the file's
        else:
            state.model.load_state_dict(_cut(state.model, kept, known))
    except (OSError, RuntimeError, ValueError) as error:
        why = textwrap.shorten(str(error), width=MAX_REASON_CHARACTERS)
        raise ConfigError(f"cannot start from the weights in {path}: {why}") from error
    except Exception as error:  # a file of something else makes torch trip over anything
        raise ConfigError(f"{path} holds no weights that torch.save wrote") from error


def _cut(
    model: torch.nn.Module, weights: Mapping[str, Any], known: Collection[str]
) -> dict[str, Any]:
    """Return these weights, of sharded ones what lies here, without those of other stages.

    What no stage knows stays, to be refused.
    """
    own = model.state_dict()
    return {
        name: cut_like(value, own[name]) if _fits(value, own.get(name)) else value
        for name, value in weights.items()
        if name in own or name not in known
    }


def _cut_states(
    model: torch.nn.Module, states: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the states of the parameters here, of sharded ones what lies here."""
    parameters = dict(model.named_parameters())
    return {
        name: {
            key: cut_like(value, parameters[name]) if _fits(value, parameters[name]) else value
            for key, value in entries.items()
        }
        for name, entries in states.items()
        if name in parameters
    }


def _fits(value: object, own: object) -> bool:
    """Whether both are tensors of one shape; torch says of others what is wrong with them."""
    return torch.is_tensor(value) and torch.is_tensor(own) and value.shape == own.shape
