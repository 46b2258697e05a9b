"""Shared memory: reduce buckets by reading partial sums where they lie, in the members' windows.

Owns where partials and shards lie in a window, and when which of them may be read and written.
Must not know how windows are made, autograd, what a slot is.

The partials are added up in the window from the start, so nothing is copied to send it:

    own partials complete -> MEETING 1 -> fold own shard from everybody's partials, write it to the
    reduced buffer and to the own window -> MEETING 2 -> copy the others' shards -> look at marks

    two members, at most three partials: fold everything into the reduced buffer between the
    meetings, which costs less than the second copy

A meeting is the smallest collective of the group: a member that dies breaks it within
milliseconds, as any other.  The result is complete in private memory before anybody votes.  What
may be overwritten when, within a generation:

    a partial, by the next step      ``finish`` has returned, so all were in meeting 2: all folded
    a shard, by the next step        after meeting 1, to which nobody comes who still copies

Between generations the marks of the windows stand guard; see ``engine.comm.windows``.

Memory of a member, in gradients: its partials, which replace those outside of a window, and 1/W.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pliant.engine.comm.communicator import Communicator, SharedMemory, WindowSize
from pliant.engine.device import host
from pliant.engine.reduce.buckets import Bucket, Layout
from pliant.engine.reduce.plan import BlockwiseFold, ReductionPlan, as_real, shard_sizes

Partials = Sequence[torch.Tensor]
"""What one member has added up of a bucket."""

SMALL_BYTES = 32 * 1024
"""Up to here one exchange of everything through sockets is faster than two meetings."""

_MAX_DIRECT = 3
"""Partials of two members up to which each of them folds everything."""

_ALIGN = 64
"""Regions of a window begin at multiples of this many bytes: a cache line."""


@dataclass(frozen=True, slots=True)
class Regions:
    """Where things lie in the window of one rank: shards of all buckets, then partials.

    The shards' places do not depend on the plan, so two reductions over one group, one after the
    other, never write partials over shards that are still read.
    """

    carried: dict[int, int]
    """First byte of a whole bucket, for the shards that this rank keeps for its host where there
    are several (``engine.reduce.hostwise``): each at its own place."""

    shards: dict[int, int]
    """First byte of this rank's shard of a bucket."""

    partials: dict[int, list[int]]
    """First bytes of this rank's partials of a bucket."""

    window_size: WindowSize

    @classmethod
    def of(
        cls, layout: Layout, plan: ReductionPlan, rank: int, num_partials: int | None = None
    ) -> Regions:
        """``num_partials``: of this rank, where it is not as the plan says."""
        num_partials = plan.partials[rank] if num_partials is None else num_partials
        size, end = len(plan.partials), 0
        shards: dict[int, int] = {}
        partials: dict[int, list[int]] = {}
        buckets = through_windows(layout)
        carried: dict[int, int] = {}
        for bucket in buckets if size > 1 else ():
            carried[bucket.index] = end
            end += _aligned(_nbytes(bucket))
        unused = end
        for bucket in buckets if size > 1 else ():
            shards[bucket.index] = end
            root = as_real(torch.empty(bucket.numel, dtype=bucket.dtype, device="meta"))
            end += _aligned(shard_sizes(root.numel(), size)[0] * root.itemsize)
        reserved = end
        for bucket in buckets:
            partials[bucket.index] = []
            for _ in range(num_partials):
                partials[bucket.index].append(end)
                end += _aligned(_nbytes(bucket))
        idle = reserved if _is_direct(plan) else unused
        return cls(carried, shards, partials, WindowSize(nbytes=end, reserved=idle))

    def partials_in(self, memory: torch.Tensor, bucket: Bucket) -> tuple[torch.Tensor, ...]:
        """Return this rank's partials of a bucket, ``memory`` being its window."""
        return tuple(
            memory[start : start + _nbytes(bucket)].view(bucket.dtype)
            for start in self.partials[bucket.index]
        )


def window_size(
    layout: Layout, plan: ReductionPlan, rank: int, *, most_partials: int = 1
) -> WindowSize:
    """Return how much memory a member needs in its window.

    ``most_partials``: how many it may come to have by other plans over the same group.
    """
    planned = Regions.of(layout, plan, rank).window_size
    most = max(most_partials, plan.partials[rank])
    whole = Regions.of(layout, plan, rank, most).window_size
    return replace(whole, spare=whole.nbytes - planned.nbytes)


def fit(windows: SharedMemory, layout: Layout, plan: ReductionPlan) -> bool:
    """Whether every window that others read is large enough; all members conclude the same."""
    return all(
        window_size(layout, plan, rank).nbytes <= windows.sizes[rank]
        for host in windows.hosts
        for rank in host
        if len(host) > 1 or len(windows.hosts) == 1
    )


class ThroughWindows(ABC):
    """The windows of one group, divided up for one layout and plan."""

    def __init__(
        self, windows: SharedMemory, layout: Layout, plan: ReductionPlan, rank: int
    ) -> None:
        """Divide, and take the own into use; all members of the group must do the same."""
        windows.enter()
        self._windows = windows
        self._buckets = {bucket.index: bucket for bucket in through_windows(layout)}
        self._regions = [Regions.of(layout, plan, r) for r in range(len(plan.partials))]
        is_lent = window_size(layout, plan, rank).nbytes <= windows.memories[rank].numel()
        self.lent: tuple[tuple[torch.Tensor, ...], ...] = tuple(
            self._partials(bucket, rank) if is_lent and self.serves(bucket.index) else ()
            for bucket in layout.buckets
        )
        """Where this member's partials of each bucket belong; none for buckets not reduced here.

        Partials that lie elsewhere are copied.
        """

    def serves(self, bucket_index: int) -> bool:
        """Whether this bucket is reduced here."""
        return bucket_index in self._buckets

    def reduce(
        self,
        comm: Communicator,
        bucket_index: int,
        partials: Sequence[torch.Tensor],
        reduced: torch.Tensor,
    ) -> None:
        """Reduce one bucket into ``reduced``, as part of a job of the communication thread."""
        self._reduce(comm, self._buckets[bucket_index], partials, as_real(reduced))
        self._windows.check()

    @abstractmethod
    def _reduce(
        self, comm: Communicator, bucket: Bucket, partials: Partials, root: torch.Tensor
    ) -> None:
        """Reduce one bucket into ``root``; the marks of the windows are looked at afterwards."""

    def _partials(self, bucket: Bucket, rank: int) -> tuple[torch.Tensor, ...]:
        return self._regions[rank].partials_in(self._windows.memories[rank], bucket)


class Shared(ThroughWindows):
    """All members are of one host, and all windows ``fit``."""

    def __init__(
        self, windows: SharedMemory, layout: Layout, plan: ReductionPlan, rank: int
    ) -> None:
        """As the windows are divided; all members of the group must do the same."""
        super().__init__(windows, layout, plan, rank)
        self._plan = plan
        self._blockwise = BlockwiseFold(plan)

    def _reduce(
        self, comm: Communicator, bucket: Bucket, partials: Partials, root: torch.Tensor
    ) -> None:
        put_in_place(self._windows, self.lent[bucket.index], partials)
        comm.meet()
        pieces = [
            as_real(partial)
            for rank in range(comm.size)
            for partial in self._partials(bucket, rank)
        ]
        if _is_direct(self._plan):
            self._blockwise.fold(pieces, root)
            comm.meet()
        else:
            self._by_shards(comm, bucket.index, pieces, root)

    def _by_shards(
        self,
        comm: Communicator,
        bucket_index: int,
        pieces: Sequence[torch.Tensor],
        root: torch.Tensor,
    ) -> None:
        sizes = shard_sizes(root.numel(), comm.size)
        targets = torch.split(root, sizes)
        mine = [torch.split(piece, sizes)[comm.rank] for piece in pieces]
        with self._windows.writing():
            own = self._shard(bucket_index, comm.rank, targets[comm.rank])
            self._blockwise.fold(mine, targets[comm.rank], copy=own)
        comm.meet()
        for rank, target in enumerate(targets):
            if rank != comm.rank:
                target.copy_(self._shard(bucket_index, rank, target))

    def _shard(self, bucket_index: int, rank: int, like: torch.Tensor) -> torch.Tensor:
        start = self._regions[rank].shards[bucket_index]
        memory = self._windows.memories[rank]
        return memory[start : start + like.nbytes].view(like.dtype)


def put_in_place(
    windows: SharedMemory, places: Sequence[torch.Tensor], partials: Sequence[torch.Tensor]
) -> None:
    """Copy what was added up elsewhere to where the others read it."""
    for place, partial in zip(places, partials, strict=True):
        if host.address_of(place) != host.address_of(partial):
            with windows.writing():
                place.copy_(partial)


def through_windows(layout: Layout) -> list[Bucket]:
    """Return the buckets for which it pays; the extras have memory of their own."""
    last = layout.extras_index if layout.extras else len(layout.buckets)
    return [bucket for bucket in layout.buckets[:last] if _nbytes(bucket) > SMALL_BYTES]


def _is_direct(plan: ReductionPlan) -> bool:
    return len(plan.partials) == 2 and plan.num_partials <= _MAX_DIRECT


def _nbytes(bucket: Bucket) -> int:
    return bucket.numel * bucket.dtype.itemsize


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN
