"""Communicator: what the members of one generation can do together, and how that ends.

Owns the collectives that a step is made of, in terms of sending and receiving between two members.
Must not know how bytes travel, what tensors mean, jobs, or who ends a generation.

All members make the same calls in the same order, each on one thread; ``abandon`` may come from any
thread at any time.  What has been posted is only ever read (sends) or written (receives) until
``wait`` has returned for it or ``abandon`` has.  Tensors are contiguous and in the memory that the
implementation moves; a piece without elements is one as well, for both sides.  Of an accelerator's
memory ``wait`` only says that what this thread queues from now on comes behind it: ``settled``.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from pliant.core.errors import PliantError
from pliant.engine.device import host

Piece = tuple[int, torch.Tensor]
"""A member's rank, and what goes to it or comes from it."""


class GroupBroken(PliantError):  # noqa: N818  an event of a run, not a mistake
    """The group of one generation is of no more use: a peer failed, or it was abandoned."""

    def __init__(self, generation: int, reason: str, *, unreached: tuple[str, ...] = ()) -> None:
        """``unreached``: members to which no connection can be made from here."""
        super().__init__(f"group of generation {generation}: {reason}")
        self.generation = generation
        self.reason = reason
        self.unreached = unreached


class LeftAlone(GroupBroken):
    """Another member has gone on without giving what this one waits for."""


class OperationFailed(Exception):  # noqa: N818  becomes GroupBroken
    """A job found that its group is of no more use; the text is one sentence."""


class GroupEnd:
    """Whether a group has ended, and why; any thread may set it."""

    __slots__ = ("_lock", "ended", "generation", "reason")

    def __init__(self, generation: int) -> None:
        self._lock = threading.Lock()
        self.generation = generation
        self.ended = False
        self.reason: str | None = None
        """Why it is of no more use; None while it is whole, and if it was retired."""

    def set(self, reason: str | None) -> None:
        """End the group, broken if there is a reason; the first one counts."""
        with self._lock:
            if reason is not None and self.reason is None:
                self.reason = reason
            self.ended = True

    def error(self) -> GroupBroken:
        """Return what whoever still uses the group is to get."""
        return GroupBroken(self.generation, self.reason or "it is no longer in use")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSize:
    """How much memory a worker needs in its window."""

    nbytes: int
    reserved: int = 0
    """Bytes at its start that are perhaps never used: they get memory when they are."""
    spare: int = 0
    """The same at its end."""


class SharedMemory(ABC):
    """Memory of the members of one host, which they read in place; each writes its own."""

    def __init__(
        self,
        *,
        memories: tuple[torch.Tensor, ...],
        hosts: tuple[tuple[int, ...], ...],
        sizes: tuple[int, ...],
    ) -> None:
        self.memories = memories
        """Flat bytes, in rank order; empty for members that cannot be read here."""
        self.hosts = hosts
        """Ranks that read each other's memory, each rank in one."""
        self.sizes = sizes
        """Bytes of each member's memory, 0 for none."""

    @abstractmethod
    def enter(self) -> None:
        """Use this member's memory for this generation from now on.

        For the thread that fills it, when no member of an earlier generation whose result may
        still count can be reading: after its last commit, or after it was abandoned.
        """

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """Write into this member's memory on the communication thread.

        Raises:
            OperationFailed: it serves another generation by now.
        """

    @abstractmethod
    def check(self) -> None:
        """Make sure that everything read so far was of this generation.

        Raises:
            OperationFailed: a member has gone on without this one.
        """


class Transfer:
    """What one ``post`` has started."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = 0
        """Pieces that have not been moved yet."""

    def add(self) -> None:
        """Take note of a piece."""
        self.pending += 1

    def moved(self) -> None:
        """Take note that one has been moved."""
        self.pending -= 1


class Communicator(ABC):
    """The members of one generation, connected, as one of them sees them."""

    def __init__(self, generation: int, *, rank: int, size: int) -> None:
        self.end = GroupEnd(generation)
        self.rank = rank
        """replica_rank of this member."""
        self.size = size
        """Number of members."""
        self.others = tuple((rank + distance) % size for distance in range(1, size))
        """Ranks of the others, the next one first: so nobody is everybody's first."""
        self.shared: SharedMemory | None = None
        """What members read in place; None: it is all moved by ``post``."""
        self.device: torch.device | None = None
        """The accelerator whose memory it moves, too; None: it moves host memory only."""
        self.moved_by = ""
        """By what that is moved; empty: by nothing."""

    # --- what an implementation does ------------------------------------------------------

    @abstractmethod
    def post(self, *, sends: Iterable[Piece] = (), receives: Iterable[Piece] = ()) -> Transfer:
        """Start moving; pieces between two members arrive in the order in which they are posted.

        Raises:
            GroupBroken: a member is gone, or the communicator was abandoned.
        """

    @abstractmethod
    def wait(self, *transfers: Transfer) -> None:
        """Return when all of these have been moved.

        Raises:
            GroupBroken: a member is gone, its pieces have other sizes, the communicator was
                abandoned, or a collective's longest time has passed.
        """

    def settled(self) -> None:  # noqa: B027 - host memory is complete by then
        """Return when all that was posted, and computed behind it, is complete in memory.

        Host memory is, once ``wait`` has returned.

        Raises:
            GroupBroken: as ``wait``; then nothing is known of what was posted.
        """

    @abstractmethod
    def share(self, name: str, payload: bytes) -> list[bytes]:
        """Return what each member gives under ``name``, in rank order.

        Named, so that what a member gives under another name is never misread.

        Raises:
            LeftAlone: a member has gone on to something else without giving it.
            GroupBroken: as ``wait``.
        """

    @abstractmethod
    def abandon(self, reason: str) -> None:
        """End at once, from any thread; whoever waits raises GroupBroken, here and elsewhere.

        When it returns, nothing that was posted is read or written any more.  Only the first
        reason counts.
        """

    @abstractmethod
    def close(self) -> None:
        """Give everything back, on the thread that uses it.

        If it was not abandoned, what was sent still arrives.
        """

    # --- what follows from it -------------------------------------------------------------

    def share_memory(self, shared: SharedMemory | None) -> None:
        """Set what members read in place; None gives it back."""
        self.shared = shared

    def check(self) -> None:
        """Raise GroupBroken if it has ended; long jobs call it now and then."""
        if self.end.ended:
            raise self.end.error()

    def check_members(self) -> None:
        """Do the same, and see whether a member is gone, as far as that shows by itself."""
        self.check()

    def broken(self, reason: str) -> GroupBroken:
        """Return the error to raise: the reason of the end, else this one."""
        return GroupBroken(self.end.generation, self.end.reason or reason)

    def all_to_all(self, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
        """Send ``sources[r]`` to rank ``r`` and receive ``targets[r]`` from it.

        Sizes may differ; what is this member's own stays where it is.
        """
        self.wait(
            self.post(
                sends=[(rank, sources[rank]) for rank in self.others],
                receives=[(rank, targets[rank]) for rank in self.others],
            )
        )

    def all_gather(self, shards: Sequence[torch.Tensor]) -> None:
        """Send the own shard to all, and receive theirs in their places."""
        self.all_to_all([shards[self.rank]] * self.size, shards)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Send ``tensor`` of rank ``root`` to all."""
        if self.rank == root:
            self.wait(self.post(sends=[(rank, tensor) for rank in self.others]))
        else:
            self.wait(self.post(receives=[(root, tensor)]))

    def swap(self, mine: torch.Tensor, theirs: torch.Tensor) -> None:
        """Exchange tensors of one size with the other of two members."""
        self.all_to_all([mine, mine], [theirs, theirs])

    def rows(self, row: torch.Tensor) -> torch.Tensor:
        """Return every member's small vector (one dimension, equal length and dtype) as rows."""
        gathered = row.repeat(self.size, 1)
        self.all_gather(gathered.unbind())
        return gathered

    def meet(self, ranks: Iterable[int] | None = None) -> None:
        """Return when all members have come to this call; the smallest collective there is.

        What a member wrote before it, the others see after it.  ``ranks``: only these meet, this
        member among them.
        """
        others = self.others if ranks is None else [rank for rank in ranks if rank != self.rank]
        token = torch.zeros(1, dtype=torch.uint8, device=host.LOCATION)
        heard = torch.empty(len(others), 1, dtype=torch.uint8, device=host.LOCATION).unbind()
        sends = [(rank, token) for rank in others]
        self.wait(self.post(sends=sends, receives=zip(others, heard, strict=True)))


class SingleCommunicator(Communicator):
    """Of a member without others: everything has happened already."""

    def __init__(self, generation: int) -> None:
        super().__init__(generation, rank=0, size=1)

    def post(self, *, sends: Iterable[Piece] = (), receives: Iterable[Piece] = ()) -> Transfer:
        """Move nothing: there is nobody."""
        self.check()
        return Transfer()

    def wait(self, *transfers: Transfer) -> None:
        """Return."""
        self.check()

    def share(self, name: str, payload: bytes) -> list[bytes]:
        """Return what it was given."""
        self.check()
        return [payload]

    def abandon(self, reason: str) -> None:
        """Be of no more use."""
        self.end.set(reason)

    def close(self) -> None:
        """Give nothing back."""
