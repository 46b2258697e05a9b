"""Bucket layout: how the gradients of one model lie in flat buffers.

Owns one function of the model alone: which parameter lies at which offset of
which bucket.  All members of a generation must agree on it before their first
collective (a size mismatch ends the process inside gloo), so it has a digest
and can explain the first difference between two layouts.

Must not know: groups, slots, who owns what, the values of any tensor.

Buckets are filled in reverse parameter order, the order in which backward
finishes.  16-bit parameters have float32 leaves; float64 and complex ones have
buckets of their own.  Inside a bucket every parameter is packed in its own
memory order (channels_last stays channels_last), so that a view of the buffer
has the parameter's strides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

BUCKET_BYTES = 10 * 1024 * 1024
"""Aimed size of a bucket.  Gloo's throughput is flat from about 4 MB; larger overlaps less."""

_LEAVES = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}


def leaf_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients of ``dtype`` parameters are added."""
    return _LEAVES.get(dtype, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One parameter inside a bucket."""

    name: str
    offset: int
    """First element in the flat buffer."""
    numel: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """Dense strides in the parameter's own memory order."""

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """Return this parameter's part of a flat buffer, shaped and strided like it."""
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One flat buffer's worth of parameters."""

    index: int
    dtype: torch.dtype
    """Dtype of the leaves: never a 16-bit one."""
    numel: int
    entries: tuple[Entry, ...]

    def empty(self) -> torch.Tensor:
        """Return a new flat buffer with arbitrary content."""
        return torch.empty(self.numel, dtype=self.dtype)

    def zeros(self) -> torch.Tensor:
        """Return a new flat buffer of +0.0, the value of an absent leaf."""
        return torch.zeros(self.numel, dtype=self.dtype)

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return every parameter's view of a flat buffer by name."""
        return {entry.name: entry.view(flat) for entry in self.entries}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Every bucket of one model, plus one float64 bucket of extras at the end."""

    parameters: tuple[tuple[str, str, tuple[int, ...], tuple[int, ...]], ...]
    """(name, dtype, shape, dense strides), in the model's order."""
    buffers: tuple[tuple[str, str, tuple[int, ...], tuple[int, ...]], ...]
    """The same of the model's buffers; they are in the digest, not in the buckets."""
    buckets: tuple[Bucket, ...]
    """Buckets of parameters, then, when ``extras`` > 0, the extras bucket."""
    extras: int
    """Float64 values per slot that travel beside the gradients (loss, weight, presence, ...)."""

    @classmethod
    def of(
        cls,
        parameters: Iterable[tuple[str, torch.Tensor]],
        *,
        buffers: Iterable[tuple[str, torch.Tensor]] = (),
        extras: int = 0,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> Layout:
        """Lay out all parameters, whether or not they require a gradient now.

        Args:
            parameters: as ``model.named_parameters()`` gives them.
            buffers: as ``model.named_buffers()`` gives them.
            extras: length of the float64 bucket that is appended; 0 for none.
            bucket_bytes: a bucket is closed when it has reached this size.
        """
        raise NotImplementedError

    @property
    def extras_index(self) -> int:
        """Index of the extras bucket, the last one."""
        raise NotImplementedError

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits; equal if and only if ``describe()`` is equal."""
        raise NotImplementedError

    def describe(self) -> dict[str, object]:
        """Return what defines the layout, as JSON values."""
        raise NotImplementedError


def first_difference(mine: dict[str, object], theirs: dict[str, object]) -> str | None:
    """Name the first parameter in which two descriptions differ, in one sentence.

    Both arguments are what ``Layout.describe`` gave, possibly after a trip through JSON.
    """
    raise NotImplementedError
