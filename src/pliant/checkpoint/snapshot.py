"""Snapshot: one member's share of a state, copied out of the run at a boundary.

Owns the memory of that copy, which is taken again for the next one: fresh memory costs a page
fault per 4 KB.  Between two saves it stays, so durable state costs each replica about
``state / replicas`` bytes for as long as its session lives.  Must not know storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.layout import Piece, Spec
from pliant.checkpoint.dcp.shares import Contents


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is copied of tensors that look like this: the same from one save to the next."""

    key: object
    """How the tensors look, and whose share of how many."""
    pieces: tuple[Piece, ...]
    described: Mapping[str, torch.Tensor]
    """All tensors, without memory."""


class Copier:
    """Copies shares, one at a time: the one before must have been written."""

    def __init__(self) -> None:
        self._memory: dict[Piece, torch.Tensor] = {}
        self._plan: _Plan | None = None

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
        plan = self._planned(tensors, rank=rank, num_shares=num_shares)
        had, self._memory = self._memory, {}
        for piece in plan.pieces:
            box = tensors[piece.name].detach()
            if box.shape != piece.sizes:
                box = box[piece.box]
            memory = had.get(piece)
            if memory is None or memory.dtype != box.dtype:
                memory = torch.empty(piece.sizes, dtype=box.dtype)
            self._memory[piece] = memory.copy_(box)
        return Contents(tensors=plan.described, objects=objects, held=self._memory)

    def _planned(self, tensors: Mapping[str, torch.Tensor], *, rank: int, num_shares: int) -> _Plan:
        """Return the plan of these tensors; training waits, and making one takes 10 ms of 600."""
        key = ({name: (t.shape, t.dtype) for name, t in tensors.items()}, rank, num_shares)
        if self._plan is None or self._plan.key != key:
            specs = {name: Spec(tuple(t.shape), t.itemsize) for name, t in tensors.items()}
            self._plan = _Plan(
                key=key,
                pieces=tuple(layout.divide(specs, num_shares)[rank]),
                described={name: tensor.to("meta") for name, tensor in tensors.items()},
            )
        return self._plan
