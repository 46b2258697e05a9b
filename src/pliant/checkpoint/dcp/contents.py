"""Contents: what one of those who write a checkpoint together has of it, and what it writes.

Owns which pieces those are, whether all have the whole state or each its part of it.  Must not know
files, nor what the items mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pliant.checkpoint.dcp import layout
from pliant.checkpoint.dcp.layout import Piece, Spec
from pliant.engine.local_tensors import TensorPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a checkpoint is to hold; equal on every member, apart from where memory lies, and from
    which part of a tensor that is sharded over workers lies here."""

    tensors: Mapping[str, torch.Tensor]
    """Any strided tensor; it is only read, and must not change until its share is written."""
    objects: Mapping[str, Any] = field(default_factory=dict)
    """Small plain values; rank 0 writes them."""
    held: Mapping[Piece, torch.Tensor] = field(default_factory=dict)
    """Copies of pieces, written in place of what ``tensors`` hold there."""
    parts: Mapping[str, TensorPart] = field(default_factory=dict)
    """Which part of each tensor this is that the workers of a replica have in parts."""
    num_workers: int = 1
    """Of each replica; all of them write."""

    def pieces(self, *, rank: int, num_shares: int) -> list[Piece]:
        """Return what one of those who write has to."""
        specs = {}
        for name, tensor in self.tensors.items():
            part = self.parts.get(name)
            if part is None:
                specs[name] = Spec(tuple(tensor.shape), tensor.itemsize)
            elif part.is_first and (tensor.numel() or not math.prod(part.shape)):
                specs[name] = Spec(tuple(tensor.shape), tensor.itemsize, part.begins)
        return layout.share_of(
            specs, rank=rank, num_shares=num_shares, num_workers=self.num_workers
        )

    def memory_of(self, piece: Piece) -> torch.Tensor:
        """Return what lies here of a piece."""
        if (held := self.held.get(piece)) is not None:
            return held
        part = self.parts.get(piece.name)
        return self.tensors[piece.name][piece.box(None if part is None else part.begins)]

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        part = self.parts.get(name)
        return tuple(self.tensors[name].shape) if part is None else part.shape
