"""Buckets: how the gradients of one model lie in flat buffers.

Owns one function of the model alone: which parameter lies at which offset of which bucket.  All
members of a generation must agree on it before their first collective, so it has a digest and can
explain the first difference between two layouts.
Must not know groups, slots, who owns what, the values of any tensor.

Buckets are filled in reverse parameter order, the order in which backward finishes.  16-bit
parameters have float32 leaves; float64 and complex ones have buckets of their own.  Inside a bucket
every parameter is packed in its own memory order (channels_last stays channels_last), so that a
view of the buffer has the parameter's strides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap, zip_longest
from typing import Any

import torch

from pliant.engine.device import host

_Where = tuple[torch.dtype, torch.device]

Described = tuple[str, str, tuple[int, ...], tuple[int, ...]]

SHARED = 0
"""Which of the extras says how many bytes of its own a slot has to tell all members."""

BUCKET_BYTES = 10 * 1024 * 1024
"""Aimed size of a bucket.  Throughput is flat from about 4 MB; larger ones overlap less."""

_LEAVES = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}


def leaf_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients of ``dtype`` parameters are added."""
    return _LEAVES.get(dtype, dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketEntry:
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
    entries: tuple[BucketEntry, ...]
    device: torch.device
    """On which its parameters are."""

    @property
    def is_in_host_memory(self) -> bool:
        """Whether its parameters are."""
        return self.device.type == host.LOCATION

    def empty(self) -> torch.Tensor:
        """Return a new flat buffer with arbitrary content."""
        return torch.empty(self.numel, dtype=self.dtype, device=self.device)

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return every parameter's view of a flat buffer by name."""
        return {entry.name: entry.view(flat) for entry in self.entries}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Every bucket of one model, plus one float64 bucket of extras at the end."""

    parameters: tuple[Described, ...]
    """(name, dtype, shape, dense strides), in the model's order."""
    buffers: tuple[Described, ...]
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
        """Lay out all of a model's named parameters, whether or not they require a gradient now.

        ``extras`` is the length of the float64 bucket that is appended; 0 for none.
        """
        parameters = list(parameters)
        buckets = _fill(parameters, bucket_bytes)
        if extras:
            entry = BucketEntry(name="", offset=0, numel=extras, shape=(extras,), stride=(1,))
            where = torch.float64, torch.device(host.LOCATION)
            buckets.append(_bucket(len(buckets), where, [entry]))
        return cls(
            parameters=tuple(starmap(_describe, parameters)),
            buffers=tuple(starmap(_describe, buffers)),
            buckets=tuple(buckets),
            extras=extras,
        )

    @property
    def extras_index(self) -> int:
        """Index of the extras bucket, the last one.

        Raises:
            ValueError: there is none, and the last one is of parameters.
        """
        if not self.extras:
            raise ValueError("this layout has no extras bucket: Layout.of(..., extras=N), N > 0")
        return len(self.buckets) - 1

    @property
    def accelerators(self) -> tuple[torch.device, ...]:
        """Devices that parameters are on, but for host memory; each once."""
        found = (bucket.device for bucket in self.buckets if not bucket.is_in_host_memory)
        return tuple(dict.fromkeys(found))

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits; equal if and only if ``describe()`` is equal."""
        text = json.dumps(self.describe(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return what defines the layout, as JSON values."""
        return {
            "parameters": [*map(_as_list, self.parameters)],
            "buffers": [*map(_as_list, self.buffers)],
            "extras": self.extras,
            "buckets": [
                [str(bucket.dtype), bucket.numel, *_said(bucket.device)] for bucket in self.buckets
            ],
        }

    def difference(self, theirs: Mapping[str, Any]) -> str | None:
        """Return how this one differs from another's description, in one sentence for the user."""
        return first_difference(self.describe(), theirs)


def first_difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Name the first parameter in which two descriptions differ, in one sentence.

    Both arguments are what ``Layout.describe`` gave, possibly after a trip through JSON.
    None if they are equal.
    """
    for kind, key in (("parameter", "parameters"), ("buffer", "buffers")):
        for here, there in zip_longest(mine[key], theirs[key]):
            if here != there:
                return _differ(kind, here, there)
    if mine["extras"] != theirs["extras"]:
        return (
            f"{mine['extras']} values travel beside the gradients of this worker, "
            f"but {theirs['extras']} beside those of the members"
        )
    if mine["buckets"] != theirs["buckets"]:
        return "this worker fills its gradient buckets in another way than the members"
    return None


def _differ(kind: str, here: Sequence[Any] | None, there: Sequence[Any] | None) -> str:
    if here is None and there is not None:
        return f"the members have a {kind} {there[0]!r} {_shape(there)} that this worker lacks"
    if there is None and here is not None:
        return f"this worker has a {kind} {here[0]!r} {_shape(here)} that the members lack"
    assert here is not None and there is not None  # noqa: S101, PT018  zip_longest
    if here[0] != there[0]:
        return (
            f"this worker has the {kind} {here[0]!r} {_shape(here)} "
            f"where the members have {there[0]!r} {_shape(there)}"
        )
    if here[1:3] != there[1:3]:
        return (
            f"{kind} {here[0]!r} is {_shape(here)} on this worker "
            f"but {_shape(there)} on the members"
        )
    return (
        f"{kind} {here[0]!r} {_shape(here)} has strides {tuple(here[3])} on this worker "
        f"but {tuple(there[3])} on the members"
    )


def _said(device: torch.device) -> list[str]:
    """Name a device for comparing: its kind; which one of them it is differs between workers."""
    return [] if device.type == host.LOCATION else [device.type]


def _shape(described: Sequence[Any]) -> str:
    return f"{described[1].removeprefix('torch.')} {list(described[2])}"


def dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the tensor's strides, or those of a packed copy where it has gaps or overlaps."""
    if tensor.is_contiguous():
        return tensor.stride()
    # empty_like keeps the order of dimensions and drops gaps and overlaps; meta allocates nothing.
    return tuple(torch.empty_like(tensor, device="meta").stride())


def _describe(name: str, tensor: torch.Tensor) -> Described:
    return name, str(tensor.dtype), tuple(tensor.shape), dense_stride(tensor)


def _as_list(described: Described) -> list[object]:
    return [*described[:2], *map(list, described[2:])]


def _fill(parameters: Sequence[tuple[str, torch.Tensor]], bucket_bytes: int) -> list[Bucket]:
    """Close a bucket when the next parameter would not fit; one is open per dtype and device."""
    filling: dict[_Where, list[BucketEntry]] = {}
    closed: list[tuple[int, _Where, list[BucketEntry]]] = []
    for position, (name, tensor) in enumerate(reversed(parameters)):
        dtype = leaf_dtype(tensor.dtype)
        where = dtype, tensor.device
        entries = filling.setdefault(where, [])
        if entries and (_end(entries) + tensor.numel()) * dtype.itemsize > bucket_bytes:
            closed.append((position, where, entries))
            entries = filling[where] = []
        entries.append(
            BucketEntry(
                name=name,
                offset=_end(entries),
                numel=tensor.numel(),
                shape=tuple(tensor.shape),
                stride=dense_stride(tensor),
            )
        )
    closed += [(len(parameters), where, entries) for where, entries in filling.items()]
    return [_bucket(index, where, entries) for index, (_, where, entries) in enumerate(closed)]


def _end(entries: Sequence[BucketEntry]) -> int:
    return entries[-1].offset + entries[-1].numel if entries else 0


def _bucket(index: int, where: _Where, entries: Sequence[BucketEntry]) -> Bucket:
    dtype, device = where
    return Bucket(
        index=index, dtype=dtype, numel=_end(entries), entries=tuple(entries), device=device
    )
