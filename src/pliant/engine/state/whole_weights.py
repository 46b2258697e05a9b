"""Whole weights: those of a model of which each worker of a replica has a part, in one file.

Owns the order in which the workers make one tensor after the other whole, stage by stage, and where
the first of them lays each down until all are there: in a file, mapped, so that nobody ever holds
the model in memory of its own.  Must not know when weights are written, or which replica does it.

    every worker     description of its stage   -->  what there is, by name
    tensor by tensor whole on its stage         -->  worker 0, into the file
"""

from __future__ import annotations

import copy
import json
import mmap
import os
import textwrap
import zipfile
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from pliant.core.errors import ConfigError, UsageError
from pliant.engine.device import host
from pliant.engine.local_tensors import cut_like, is_sharded, reshard, sharding_modules, whole_of
from pliant.engine.sharding.stages import Stages
from pliant.engine.state.tagged_codec import DTYPES, WORDS, decode, encode
from pliant.engine.state.training_state import State
from pliant.machine.files import fresh_beside

METADATA = "_metadata"
"""Attribute of what ``state_dict()`` returns: versions of modules, which loading looks at."""


class WeightsFile:
    """What ``session.save`` does of one model; see the module's text."""

    def __init__(self, model: torch.nn.Module, stages: Stages, *, is_first: bool) -> None:
        """``is_first``: whether this is worker 0 of its replica."""
        self._model = model
        self._stages = stages
        self._is_first = is_first
        self._sharding = sharding_modules(model)
        self.is_in_parts = stages.is_several or any(map(is_sharded, model.parameters()))
        """Whether no worker of this replica has all of the model."""

    def write(self, target: Path) -> None:
        """Write the weights; of a model in parts every worker of the replica must call.

        Raises:
            UsageError: two stages give something the same name.
        """
        if not self.is_in_parts:
            _save(_in_host_memory(self._model.state_dict()), target)
        elif not self._is_first:
            self._gather(None)
        else:
            with _Paper(target) as paper:
                weights = self._gather(paper)
                paper.check()
                _save(weights, target)

    def _gather(self, paper: _Paper | None) -> dict[str, Any]:
        """Return the weights of all stages, which lie on ``paper``; nothing without one."""
        reshard(self._sharding)
        own = _Described(self._model.state_dict(keep_vars=True))
        said = [json.loads(one) for one in self._stages.gather_texts(json.dumps(own.said))]
        _refuse_doubles([one["names"] for one in said])
        weights: dict[str, Any] = OrderedDict()
        versions: dict[str, Any] = OrderedDict()
        for stage, one in enumerate(said):
            is_here = self._stages.coordinates in ((), (stage,))
            found: list[torch.Tensor] = []
            for number, (word, shape) in enumerate(one["tensors"]):
                whole = whole_of(own.tensors[number]).detach() if is_here else None
                whole = self._stages.bring_to_first(stage, whole, DTYPES[word], shape)
                if paper is not None and whole is not None:
                    found.append(paper.lay_down(whole))
            if paper is not None:
                others, its_versions = own.others, own.versions  # the objects: the same bytes
                if not is_here:
                    others = decode(one["others"].encode(), found[one["first_other"] :])
                    its_versions = decode(one["versions"].encode())
                for name in own.names if is_here else one["names"]:
                    number = one["numbers"].get(name)
                    weights[name] = others[name] if number is None else found[number].detach()
                versions |= its_versions
        setattr(weights, METADATA, versions)
        return weights


class _Described:
    """What one stage has: its tensors, each once, and the rest as JSON has it."""

    def __init__(self, own: dict[str, Any]) -> None:
        named = {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}
        distinct = {id(value): value for value in named.values()}
        numbers = {key: number for number, key in enumerate(distinct)}
        self.names = list(own)
        self.others = {name: value for name, value in own.items() if name not in named}
        self.versions: dict[str, Any] = dict(getattr(own, METADATA, {}))
        document, theirs = encode(self.others, name="state_dict()")
        self.tensors = [*distinct.values(), *theirs]
        self.said = {
            "names": self.names,
            "numbers": {name: numbers[id(value)] for name, value in named.items()},
            "tensors": [(WORDS[one.dtype], list(one.shape)) for one in self.tensors],
            "others": document.decode(),
            "first_other": len(distinct),
            "versions": encode(self.versions)[0].decode(),
        }


def _refuse_doubles(names: Iterable[Iterable[str]]) -> None:
    seen: set[str] = set()
    for one in names:
        if double := seen.intersection(one):
            raise UsageError(
                f"two stages of the model have {min(double)!r}, and session.save writes one; give "
                "the layers of each stage the names that they have in the whole model"
            )
        seen.update(one)


class _Paper:
    """Where tensors are laid down: a file without a name, so that nobody has to remove it.

    What the storage does not take is told by ``check`` alone: the other workers of the replica are
    in the midst of bringing tensors, and each of them has to end that with worker 0.
    """

    def __init__(self, target: Path) -> None:
        """Beside ``target``, which is on storage that has room for the model."""
        self._error: OSError | None = None
        self._file: Any = None
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with fresh_beside(target) as fresh:
                self._file = fresh.open("w+b")
        except OSError as error:
            self._error = error

    def __enter__(self) -> _Paper:
        return self

    def __exit__(self, *args: object) -> None:
        if self._file is not None:
            self._file.close()

    def check(self) -> None:
        """Make sure that all that was laid down is there.

        Raises:
            OSError: the storage has not taken it.
        """
        if self._error is not None:
            raise self._error

    def lay_down(self, whole: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor, in the file's memory; an empty one if it has no room."""
        size = whole.numel() * whole.itemsize
        if self._error is not None or not size:
            return whole.new_empty(whole.shape if not size else (0,))
        pages = -(-self._file.seek(0, os.SEEK_END) // mmap.ALLOCATIONGRANULARITY)
        begin = pages * mmap.ALLOCATIONGRANULARITY
        try:
            # Where a file only seems to be that long, what is written to its memory is SIGBUS.
            os.posix_fallocate(self._file.fileno(), begin, size)
            memory = mmap.mmap(self._file.fileno(), size, offset=begin)
        except OSError as error:
            self._error = error
            return whole.new_empty(0)
        like = torch.empty_like(whole, device="meta")  # strides without gaps
        copy = host.tensor_of(memory, whole.dtype).as_strided(like.shape, like.stride())
        return copy.copy_(whole)


def _in_host_memory(weights: dict[str, Any]) -> dict[str, Any]:
    """Let what is on an accelerator be read where there is none; what was one tensor stays one."""
    copies: dict[Hashable, torch.Tensor] = {}
    for name, value in weights.items():
        if isinstance(value, torch.Tensor) and value.device.type != host.LOCATION:
            key = (value.device, host.address_of(value), value.dtype, value.shape, value.stride())
            if key not in copies:
                copies[key] = host.copy_of(value)
            weights[name] = copies[key]
    return weights


def _save(weights: dict[str, Any], target: Path) -> None:
    """Write a file that is whole, or the old one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with fresh_beside(target) as fresh:
        with fresh.open("wb") as file:  # torch writes a path's name into the file
            torch.save(weights, file)
        fresh.replace(target)


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
