"""Transfer: whole members give their state to joiners over the new generation's group.

Owns the canonical byte stream of a document and a list of tensors, its chunks, their digests
and who sends which.  Must not know: what the tensors are for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pliant.engine.groups import Group, Ticket


class TransferRefused(Exception):
    """The survivors' states do not belong together or a digest does not match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Which state this is; every chunk is bound to it."""

    generation: int
    step: int
    """Committed steps."""
    lineage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """What a tensor of the stream looks like at the sender."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """Dense strides; they define the order of its elements in the stream."""

    def empty(self) -> torch.Tensor:
        """Allocate a tensor like it."""
        raise NotImplementedError


def send_state(
    group: Group,
    *,
    stamp: Stamp,
    survivors: Sequence[int],
    joiners: Sequence[int],
    value: Any,
) -> Ticket[None]:
    """Offer this survivor's state; every survivor calls it, every joiner ``receive_state``.

    Returns at once; the state's tensors must not change before the ticket is done.  A later
    collective of the group (a bucket of the next step) runs after it, so parameters and
    optimizer state are safe until the next commit; pass clones of what the forward changes.

    Args:
        survivors, joiners: ranks, the same on all members.
        value: anything the codec takes; its tensors go to the stream.
    """
    raise NotImplementedError


def receive_state(
    group: Group,
    *,
    stamp: Stamp,
    survivors: Sequence[int],
    joiners: Sequence[int],
    allocate: Callable[[Any, Sequence[TensorSpec]], Sequence[torch.Tensor]],
) -> Any:
    """Receive the state on a joiner; return the value, its tensors being what ``allocate`` gave.

    Args:
        allocate: gets the document with ``TensorRef`` leaves and the specs, returns one
            destination per spec (own storage, e.g. the parameters; same dtype and shape).
            Runs on the communication thread.

    Raises:
        GroupBroken: a peer failed or the group was abandoned; the copy is not complete.
        TransferRefused: stamps, documents or digests disagree; the copy is not complete.
    """
    raise NotImplementedError
