"""Gradient: what a step was reduced to, before it is applied.

Owns the value, how it is scaled, and the look for nan and inf.  Must not know optimizers, votes or
where the buckets come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pliant.engine.data.slots import Extras


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The gradient of a global batch, ready to be applied; the same on every replica."""

    buckets: Sequence[torch.Tensor]
    """Where it lies."""

    extras: Extras
    parts: Sequence[tuple[torch.nn.Parameter, torch.Tensor]]
    """Of those parameters that some slot touched."""

    factor: float
    """By which clipping multiplies the buckets, too; 1.0: they are scaled."""

    norm: torch.Tensor | None
    """Before clipping, if it was needed so far."""

    nonfinite: str
    """What of the step is nan or inf; empty: nothing."""


def scaled(buckets: Sequence[torch.Tensor], factor: float) -> float:
    """Multiply what is in the buckets, in place; return by what is left to multiply."""
    if factor != 1.0:
        for flat in buckets:
            flat.mul_(factor)
    return 1.0


def is_finite(flat: torch.Tensor) -> bool:
    """Whether all of it is; makes every nan the same one, since additions keep one of two."""
    if flat.sum().isfinite():  # reads it once; isfinite() of all of it takes 20 times as long
        return True
    flat.masked_fill_(flat.isnan(), math.nan)
    return bool(flat.isfinite().all())
