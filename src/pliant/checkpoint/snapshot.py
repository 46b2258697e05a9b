"""Snapshot: one member's share of a state, copied out of the run at a boundary.

Owns the memory of that copy, which is taken again for the next one: fresh memory costs a page
fault per 4 KB.  Between two saves it stays, so durable state costs each replica about
``state / replicas`` bytes for as long as its session lives.  Must not know storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pliant.checkpoint import layout
from pliant.checkpoint.layout import Piece, Spec
from pliant.checkpoint.shares import Contents


class Copier:
    """Copies shares, one at a time: the one before must have been written."""

    def __init__(self) -> None:
        self._memory: dict[Piece, torch.Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """Memory held now."""
        return sum(tensor.nbytes for tensor in self._memory.values())

    def copy(
        self,
        tensors: Mapping[str, torch.Tensor],
        objects: Mapping[str, Any],
        *,
        rank: int,
        num_shares: int,
    ) -> Contents:
        """Return a state of which this rank's share is held, and the rest only described."""
        specs = {
            name: Spec(tuple(tensor.shape), tensor.element_size())
            for name, tensor in tensors.items()
        }
        had, self._memory = self._memory, {}
        for piece in layout.divide(specs, num_shares)[rank]:
            box = tensors[piece.name].detach()[piece.box]
            memory = had.get(piece)
            if memory is None or memory.dtype != box.dtype:
                memory = torch.empty(piece.sizes, dtype=box.dtype)
            self._memory[piece] = memory.copy_(box)
        return Contents(
            tensors={name: tensor.to("meta") for name, tensor in tensors.items()},
            objects=objects,
            held=self._memory,
        )
