"""Stream: the bytes of a state's tensors in one order, and how they are cut into chunks.

Owns what a tensor looks like outside of a process, and who sends which part.  Must not know how
chunks travel.

Stream order: the tensors as listed, each in the order of its declared strides.  A chunk is part of
one large tensor, or several small tensors packed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pliant.engine.reduce.buckets import dense_stride

CHUNK_BYTES = 4 * 1024 * 1024
"""Largest chunk: digested while the next one travels, and still in cache."""

PACK_BYTES = 256 * 1024
"""Smaller tensors are packed together: an operation of its own costs more than the copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """What a tensor of the stream looks like at the sender."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """Dense strides; they define the order of its elements in the stream."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """Describe a tensor."""
        return cls(dtype=tensor.dtype, shape=tuple(tensor.shape), stride=dense_stride(tensor))

    def empty(self) -> torch.Tensor:
        """Allocate a tensor like it."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)

    @property
    def nbytes(self) -> int:
        """Length of its part of the stream."""
        return math.prod(self.shape) * self.dtype.itemsize

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory, read from its start, is its part of the stream."""
        return tensor.stride() == self.stride or all(
            length == 1 or mine == theirs
            for length, mine, theirs in zip(self.shape, tensor.stride(), self.stride, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes ``start`` to ``stop`` of one tensor's part of the stream."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What one survivor sends in one operation."""

    index: int
    sender: int
    """Rank."""
    segments: tuple[Segment, ...]

    @property
    def nbytes(self) -> int:
        """Its length."""
        return sum(segment.stop - segment.start for segment in self.segments)


def cut_stream(specs: Sequence[TensorSpec], survivors: Sequence[int]) -> list[StreamChunk]:
    """Cut the stream; the next chunk goes to whoever has least to send so far."""
    cuts: list[tuple[Segment, ...]] = []
    packed: list[Segment] = []
    packed_bytes = 0
    for index, spec in enumerate(specs):
        size = spec.nbytes
        if size >= PACK_BYTES:
            pieces = -(-size // CHUNK_BYTES)
            ends = [size * k // pieces for k in range(pieces + 1)]
            cuts += [(Segment(index, ends[k], ends[k + 1]),) for k in range(pieces)]
        elif size:
            packed.append(Segment(index, 0, size))
            packed_bytes += size
            if packed_bytes >= CHUNK_BYTES // 2:
                cuts.append(tuple(packed))
                packed, packed_bytes = [], 0
    if packed:
        cuts.append(tuple(packed))
    load = dict.fromkeys(survivors, 0)
    chunks = []
    for index, segments in enumerate(cuts):
        sender = min(survivors, key=lambda rank: load[rank])
        chunks.append(StreamChunk(index, sender, segments))
        load[sender] += chunks[-1].nbytes
    return chunks
