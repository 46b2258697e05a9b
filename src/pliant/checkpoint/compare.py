"""Comparing two checkpoints, tensor by tensor; either may be foreign.

Owns what counts as a difference: bytes, so that -0 differs from 0 and a NaN equals itself.  Must
not know what the items mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pliant.checkpoint.dcp.layout import DOCUMENT
from pliant.checkpoint.dcp.manifest import Item
from pliant.checkpoint.dcp.read import StoredCheckpoint, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One item that is not the same in both."""

    name: str
    what: str
    """``"only in A"``, ``"only in B"``, ``"shape"``, ``"type"``, ``"values"``."""
    detail: str
    num_differing: int = 0
    """Elements, if the values differ."""
    num_elements: int = 0
    largest: float | None = None
    """Largest absolute difference; ``None`` where it has no meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison found."""

    num_compared: int
    differences: tuple[Difference, ...]


def diff(a: StoredCheckpoint, b: StoredCheckpoint, *, trust: bool = False) -> Comparison:
    """Compare all tensors and objects of two checkpoints.

    One item is read at a time.  ``pliant.document`` is left out: it lists the others.
    """
    names = sorted({*a.items, *b.items} - {DOCUMENT})
    found = tuple(_differences(a, b, names, trust=trust))
    return Comparison(num_compared=len(names), differences=found)


def _differences(
    a: StoredCheckpoint, b: StoredCheckpoint, names: list[str], *, trust: bool
) -> Iterator[Difference]:
    for name in names:
        one, other = a.items.get(name), b.items.get(name)
        if other is None:
            yield Difference(name=name, what="only in A", detail=_told(a.items[name]))
        elif one is None:
            yield Difference(name=name, what="only in B", detail=_told(other))
        elif (one.kind, one.shape) != (other.kind, other.shape):
            shapes = f"{_told(one)} in A, {_told(other)} in B"
            yield Difference(name=name, what="shape", detail=shapes)
        elif one.dtype != other.dtype:
            yield Difference(name=name, what="type", detail=f"{one.dtype} in A, {other.dtype} in B")
        elif not _same_digests(one, other):
            (left,) = load(a, [name], trust=trust).values()
            (right,) = load(b, [name], trust=trust).values()
            found_difference = _compared(name, left, right)
            if found_difference is not None:
                yield found_difference


def _same_digests(one: Item, other: Item) -> bool:
    """Return whether both are the same bytes, as far as their manifests tell without reading."""

    def chunks(item: Item) -> list[Any]:
        return sorted((chunk.offsets, chunk.sizes, chunk.digest or "") for chunk in item.chunks)

    return chunks(one) == chunks(other) and all(chunk.digest for chunk in one.chunks)


def _compared(name: str, left: Any, right: Any) -> Difference | None:
    if not isinstance(left, torch.Tensor):
        if repr(left) == repr(right):  # in which a NaN equals itself
            return None
        return Difference(name=name, what="values", detail=f"{left!r} in A, {right!r} in B"[:200])
    sides = [
        side.contiguous().reshape(-1).view(torch.uint8).reshape(left.numel(), -1)
        for side in (left, right)
    ]
    unequal = (sides[0] != sides[1]).any(dim=1)
    num_differing = int(unequal.sum())
    if not num_differing:
        return None
    largest = None
    if not left.dtype.is_complex:
        gap = (left.double() - right.double()).abs().flatten()[unequal]
        largest = float(gap.nan_to_num(nan=float("inf")).max())
    return Difference(
        name=name,
        what="values",
        detail=f"{num_differing} of {left.numel()} elements differ",
        num_differing=num_differing,
        num_elements=left.numel(),
        largest=largest,
    )


def _told(item: Item) -> str:
    return f"{item.dtype} {list(item.shape)}" if item.kind == "tensor" else "an object"
