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

SMALL_BYTES = 65536
"""A hook between two kernels costs 5 to 20 us; to read this much once more costs less."""


@dataclass(slots=True, eq=False)
class GradientColumn:
    """One parameter: where its leaves come from and where its sums go."""

    index: int
    parameter: torch.nn.Parameter
    bucket: int
    dtype: torch.dtype
    entry: BucketEntry
    is_sharded: bool
    has_hook: bool = False
    """Whether a hook takes its gradient in this step; else that is done for a whole bucket."""
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
    can_lend: bool = False
    """Whether autograd may add leaves to its sums; see ``lend``."""
    is_lent: bool = False
    """Whether its newest sum lies in ``.grad``."""
    pending: torch.Tensor | None = None
    of_slots: Sequence[torch.Tensor] | None = None
    """Leaves of all slots of a pass, where they arrived together."""
    version: int = 0
    """Of its values at the step's start: it counts changes in place."""
    address: int = 0
    """Of those values."""
    start: torch.Tensor | None = None
    """Those values, so that no other tensor can have their address while the step is computed."""

    def check_unchanged(self) -> None:
        """Refuse what would change the step's sums for those slots only that come later.

        Raises:
            UsageError: it was frozen, unfrozen or written to since the step's start.
        """
        if self.parameter.requires_grad is not self.is_tracked:
            raise UsageError(
                f"requires_grad of {self.entry.name!r} changed inside the loop over a step; "
                "change it before that loop, or after it"
            )
        local = self.local
        is_rebound = self.start is not None and local.data_ptr() != self.address
        if is_rebound or local._version != self.version:  # noqa: SLF001  # see ``begin`` of the sums
            raise UsageError(
                f"the values of {self.entry.name!r} changed inside the loop over a step; "
                "change them before that loop, or after it"
            )

    def lend(self) -> None:
        """Have autograd add the coming leaf to the newest sum, if there is one of our own.

        It does so in place, as soon as the leaf is there, without Python.
        """
        if self.can_lend and self.is_plain and (newest := self.stack.take_owned()) is not None:
            self.parameter.grad = newest
            self.is_lent = True

    def take_back(self) -> None:
        """Take back what was lent and to which no leaf came."""
        if self.is_lent and self.parameter.grad is not None:
            self.stack.put_back(self.parameter.grad)
        if self.is_lent:
            self.is_lent, self.parameter.grad = False, None

    @property
    def is_small(self) -> bool:
        """Whether its leaf waits for others without loss."""
        return self.entry.numel * self.dtype.itemsize <= SMALL_BYTES

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
