"""Gradient column: one parameter's leaves of a step, and where their sums go.

Owns what is known of one parameter while a step is computed.  Must not know buckets' readiness, nor
when a slot opens and closes: that is ``reduce.accumulate``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pliant.core.errors import UsageError
from pliant.engine.local_tensors import local_gradient, local_of
from pliant.engine.reduce.buckets import BucketEntry
from pliant.engine.reduce.sums import SumStack


@dataclass(slots=True, eq=False)
class GradientColumn:
    """One parameter: where its leaves come from and where its sums go."""

    index: int
    parameter: torch.nn.Parameter
    bucket: int
    dtype: torch.dtype
    entry: BucketEntry
    is_sharded: bool
    stack: SumStack = field(default_factory=SumStack)
    outs: list[torch.Tensor] = field(default_factory=list)
    zeroed: list[bool] = field(default_factory=list)
    fired: bool = False
    is_deferred: bool = False
    """Merge when the backward has ended: its hook was seen to fire twice, or the sums are shared
    with other workers."""
    is_merged: bool = False
    """Whether the open slot's leaf was merged when the hook fired."""
    is_plain: bool = False
    """Whether its leaves are its gradients as they are, to be merged when the hook fires."""
    is_tracked: bool = False
    """Whether it required a gradient at the step's start."""
    pending: torch.Tensor | None = None
    of_slots: Sequence[torch.Tensor] | None = None
    """Leaves of all slots of a pass, where they arrived together."""
    version: int = 0
    """Of its values at the step's start: it counts changes in place."""
    address: int = 0
    """Of those values."""
    start: torch.Tensor | None = None
    """Those values, so that no other tensor can have their address while the step is computed."""

    @property
    def local(self) -> torch.Tensor:
        """What lies here of the parameter."""
        return local_of(self.parameter) if self.is_sharded else self.parameter


def checked_leaf(gradient: torch.Tensor, column: GradientColumn) -> torch.Tensor:
    """Return the part of a gradient that lies here.

    Raises:
        UsageError: it is sparse.
    """
    leaf = local_gradient(gradient, column.parameter) if column.is_sharded else gradient
    if leaf.layout is not torch.strided:
        raise UsageError(
            f"the gradient of {column.entry.name!r} is sparse; sparse gradients are not "
            "supported (use sparse=False in the embedding)"
        )
    return leaf


def zero_frozen(column: GradientColumn) -> None:
    """Make a frozen parameter's part of the flat buffers +0.0, once."""
    for part, out in enumerate(column.outs):
        if not column.zeroed[part]:
            out.zero_()
            column.zeroed[part] = True
