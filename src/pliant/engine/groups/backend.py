"""Backend: what a connected group asks of the device.

Owns the port between a group and what moves its bytes; ``gloo`` is the one for CPUs.  Must not
know threads, deadlines or why a group ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch


class Backend(Protocol):
    """What depends on the device: a connected group of W members.

    Used by one communication thread, except for ``has_lost_a_peer``, ``cut``, ``is_silent`` and
    ``destroy``.  What the collectives return has ``get_future()``; what ``send`` and ``receive``
    return is for ``wait``.  All but those four may raise OperationFailed.
    """

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Add up ``tensor`` in place."""
        ...

    def all_to_all(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        source_splits: Sequence[int],
    ) -> Any:
        """Send piece ``r`` of ``source`` to rank ``r``; receive likewise."""
        ...

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        """Send ``tensor`` of rank ``root`` to all."""
        ...

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Any:
        """Start sending to one rank."""
        ...

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Any:
        """Start receiving from one rank."""
        ...

    def wait(self, work: Any) -> None:
        """Block until a point-to-point operation has ended; ``cut`` ends it."""
        ...

    def has_lost_a_peer(self) -> bool:
        """Whether a member's connection has ended; from any thread, returns at once."""
        ...

    def cut(self) -> None:
        """Break every connection, from any thread; returns at once."""
        ...

    def is_silent(self) -> bool:
        """Whether every connection is closed: nothing can write into a buffer any more."""
        ...

    def destroy(self) -> None:
        """Free everything; blocks until all operations have ended."""
        ...
