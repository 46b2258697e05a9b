"""Staged describer: the state of a model of which each worker of a replica has a stage.

Owns how the states of the stages become one: their documents stand in a list, and a tensor is a
part, which only the workers of its stage have.  Must not know storage, files or intervals.

    stages.<number>.<name>    tensors that ``state_dict()`` does not name, as buffers that are not
                              persistent; the others are named as in a model that is whole
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from pliant.engine.local_tensors import TensorPart
from pliant.engine.sharding.stages import Stages
from pliant.engine.state.durable import STAGED_VERSION, Describer
from pliant.engine.state.tagged_codec import DTYPES
from pliant.engine.state.training_state import State

_OF_THE_MODEL = ("model.", "optim.")
"""How names begin of which ``workers.check_stages`` has made sure that no two stages have one."""


class StagedDescriber(Describer):
    """Describes the state of all stages; every worker of a replica must call."""

    def __init__(self, state: State, coordinates: Mapping[str, int], stages: Stages) -> None:
        """``coordinates``: of this worker among those that have the same stage."""
        super().__init__(state, coordinates)
        self._stages = stages
        self._is_first = not any(coordinates.values())
        self._aliases: Mapping[str, str] = {}

    def describe(
        self, *, committed: int, calls: int, dataset: str = ""
    ) -> tuple[bytes, dict[str, torch.Tensor]]:
        """Return the documents of all stages, and the tensors of all: of others nothing of them."""
        text, own = super().describe(committed=committed, calls=calls, dataset=dataset)
        document = json.loads(text)
        names = {name: self._name(name) for name in own}
        document["tensors"] = [[names[name], *look] for name, *look in document["tensors"]]
        said = {"document": document, "aliases": dict(super().aliases())}
        everybodys = [json.loads(one) for one in self._stages.gather_texts(json.dumps(said))]
        self._aliases = {a: n for one in everybodys for a, n in one["aliases"].items()}
        tensors, parts = {}, {}
        (stage,) = self._stages.coordinates
        for number, one in enumerate(everybodys):
            for name, word, shape, _ in one["document"]["tensors"]:
                tensors[name] = torch.empty(0, dtype=DTYPES[word])
                parts[name] = _part(shape, is_here=number == stage, is_first=False)
        for name, tensor in own.items():
            whole = _part(tensor.shape, is_here=True, is_first=self._is_first)
            tensors[names[name]] = tensor
            parts[names[name]] = self.parts.get(name, whole)
        self.parts = parts
        together = {
            "version": STAGED_VERSION,
            "committed": committed,
            "calls": calls,
            "stages": [one["document"] for one in everybodys],
        }
        return json.dumps(together).encode(), tensors

    def aliases(self) -> Mapping[str, str]:
        """Return further names of tensors, of all stages."""
        return self._aliases

    def objects(self) -> dict[str, Any]:
        """Return nothing: parameter groups are each stage's own."""
        return {}

    def _name(self, name: str) -> str:
        (stage,) = self._stages.coordinates
        return name if name.startswith(_OF_THE_MODEL) else f"stages.{stage}.{name}"


def _part(shape: Any, *, is_here: bool, is_first: bool) -> TensorPart:
    """Return all of a tensor, or nothing of it."""
    whole = tuple(shape)
    sizes = whole if is_here else (0,) * len(whole)
    return TensorPart(shape=whole, begins=(0,) * len(whole), sizes=sizes, is_first=is_first)
