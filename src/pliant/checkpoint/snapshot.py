"""Snapshot: one member's share of a state, copied out of the run at a boundary.

Owns the memory of that copy, which is taken again for the next one: fresh memory costs a page
fault per 4 KB.  Between two saves it stays, so durable state costs each replica about
``state / replicas`` bytes for as long as its session lives.  Must not know storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from pliant.checkpoint.dcp.contents import Contents
from pliant.checkpoint.dcp.layout import Piece
from pliant.engine.local_tensors import TensorPart


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
        parts: Mapping[str, TensorPart] | None = None,
        num_workers: int = 1,
    ) -> Contents:
        """Return a state of which this rank's share is held, and the rest only described."""
        whole = Contents(
            tensors=tensors, objects=objects, parts=parts or {}, num_workers=num_workers
        )
        plan = self._planned(whole, rank=rank, num_shares=num_shares)
        had, self._memory = self._memory, {}
        for piece in plan.pieces:
            box = whole.memory_of(piece).detach()
            memory = had.get(piece)
            if memory is None or memory.dtype != box.dtype:
                memory = torch.empty(piece.sizes, dtype=box.dtype)
            self._memory[piece] = memory.copy_(box)
        return replace(whole, tensors=plan.described, held=self._memory)

    def _planned(self, whole: Contents, *, rank: int, num_shares: int) -> _Plan:
        """Return the plan of these tensors; training waits, and making one takes 10 ms of 600."""
        tensors = whole.tensors
        looks = {name: (t.shape, t.dtype) for name, t in tensors.items()}
        key = (looks, dict(whole.parts), rank, num_shares)
        if self._plan is None or self._plan.key != key:
            self._plan = _Plan(
                key=key,
                pieces=tuple(whole.pieces(rank=rank, num_shares=num_shares)),
                described={name: tensor.to("meta") for name, tensor in tensors.items()},
            )
        return self._plan
