"""Groups: the members of one generation, connected; the only module that knows gloo.

Owns ``ProcessGroupGloo`` and ``TCPStore`` (semi-public torch), the communication
thread of a generation, waiting for collectives, breaking and burying groups.
Must not know: what the tensors mean, slots, steps, the order's policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

import torch

from pliant.engine.layout import Layout

T = TypeVar("T")


class GroupBroken(Exception):
    """The group of one generation is of no more use: a peer failed, or it was abandoned."""

    def __init__(self, generation: int, reason: str) -> None: ...


class LayoutMismatch(Exception):
    """This worker's model differs from the members'; the text is one sentence for the user."""


class StoreServer:
    """The one TCPStore server of a worker; opened at its start, lives as long as it."""

    endpoint: str
    """``host:port``, as it goes into the registration."""

    def __init__(self, address: str = "127.0.0.1") -> None: ...
    def close(self) -> None: ...


class Backend(Protocol):
    """What depends on the device.  Every method is called on the communication thread."""


class Ticket(Generic[T]):
    """The result of something submitted to a group's communication thread."""

    def wait(self, deadline_s: float | None = None) -> T:
        """Wait for the result, an abort or the deadline.

        Raises:
            GroupBroken: a peer failed, the group was abandoned, or the deadline passed.
        """
        raise NotImplementedError

    @property
    def done(self) -> bool:
        raise NotImplementedError


class Group:
    """The members of one generation, connected."""

    generation: int
    rank: int
    """replica_rank in this generation."""
    size: int
    broken: str | None
    """Why this group is of no more use; None while it is whole."""

    @staticmethod
    def build(
        *,
        generation: int,
        seats: Sequence[tuple[str, str]],
        replica: str,
        host: str,
        server: StoreServer,
        layout: Layout,
        deadline_s: float = 30.0,
        collective_s: float = 300.0,
        abort: Abort | None = None,
    ) -> Group:
        """Connect to the other members; block until done, aborted, or the deadline.

        For a background thread (also fine on the main thread: an abort returns at once).
        All members must call it with the same arguments but ``replica`` and ``server``.

        Args:
            seats: (replica, endpoint) in rank order; survivors first, so rank 0 is the reference
                for the layout.
            host: the replica whose store is the meeting point.
            collective_s: longest wait inside one collective before the group counts as broken.
            abort: set it to give up from another thread.

        Raises:
            GroupBroken: it could not be built.
            LayoutMismatch: this worker's layout differs from that of rank 0.
        """
        raise NotImplementedError

    @staticmethod
    def alone(generation: int) -> Group:
        """Return the group of a single member: no sockets, no threads."""
        raise NotImplementedError

    def submit(self, job: Callable[[Any], T]) -> Ticket[T]:
        """Queue a job for the communication thread.  All members must submit the same, in order."""
        raise NotImplementedError

    def all_gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return every member's small vector as rows in rank order.  All members must call.

        ``values``: int64 or float64, one dimension, equal length on all members.
        Used for the metadata of each step and for headers.
        """
        raise NotImplementedError

    def abandon(self, reason: str) -> None:
        """Break the group at once and from any thread; every waiter raises GroupBroken.

        Returns immediately and does nothing the second time.  Its sockets are cut and an
        undertaker destroys it in the background.  Buffers that its unfinished operations
        touch must never be used again (partials included).
        """
        raise NotImplementedError

    def retire(self) -> None:
        """Bury a group that is no longer needed, all operations complete; after a grace period."""
        raise NotImplementedError


class Abort:
    """A reason to give up, set from any thread; wakes whoever builds."""

    def set(self, reason: str) -> None:
        raise NotImplementedError
