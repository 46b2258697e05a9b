"""Hostwise: reduce buckets over members of several hosts, each of which adds up its own first.

Owns which member carries which shard of a bucket for its host, and when what is read, sent and
copied.  Must not know how windows are made, which additions there are, what a slot is.

A bucket is cut into a shard for each member, its owner.  On the owner's host the owner carries the
shard, on each other host one of the members, in turn:

    own partials complete -> MEETING of the host -> of each carried shard: add up the sums of the
    host from its windows, send them to the owner -> fold the own shard from the sums of all hosts,
    send it to its carriers -> copy it, and what came, to the own window -> MEETING of the host ->
    copy the other shards from the windows of the host -> look at marks

So a sum leaves its host once, and a shard comes to a host once.  A host of one member reads no
window and meets nobody.  What may be overwritten when is as in ``engine.reduce.shared_memory``,
host by host; what is read to be sent has been sent before the second meeting.  A member that was
stopped before it had sent everything has let nobody complete the bucket, so nobody has voted.

Memory of a member, in gradients: its partials; 1/m for the shards that it carries, of m members of
its host, and as much for each sum of the host that is added up; and what it receives for its shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from pliant.engine.comm.communicator import Communicator, SharedMemory, Transfer
from pliant.engine.device.memory import Scratch
from pliant.engine.reduce.buckets import Bucket, Layout
from pliant.engine.reduce.plan import (
    BlockwiseFold,
    HostwisePlan,
    ReductionPlan,
    as_real,
    shard_cuts,
)
from pliant.engine.reduce.shared_memory import Partials, ThroughWindows, put_in_place


class Hostwise(ThroughWindows):
    """The members are of several hosts."""

    def __init__(
        self, windows: SharedMemory, layout: Layout, plan: ReductionPlan, rank: int
    ) -> None:
        """As the windows are divided; all members of the group must do the same."""
        super().__init__(windows, layout, plan, rank)
        self._hosts = windows.hosts
        (self._home,) = (index for index, host in enumerate(self._hosts) if rank in host)
        self._mine = self._hosts[self._home]
        self._carriers = carriers(self._hosts)
        mine = [number for number, by in enumerate(self._carriers[self._home]) if by == rank]
        self._carried = sorted(mine, key=lambda number: number == rank)
        """Shards, the own one last: others wait for the sums of the rest."""
        self._first = list(accumulate(plan.partials, initial=0))
        levels = HostwisePlan.of(plan, self._hosts)
        self._sums = levels.sums[self._home]
        self._inner = [BlockwiseFold(each.plan) for each in self._sums]
        self._outer = BlockwiseFold(levels.outer)
        self._num_sums = levels.outer.partials
        self._scratch = Scratch()

    def _reduce(
        self, comm: Communicator, bucket: Bucket, partials: Partials, root: torch.Tensor
    ) -> None:
        cuts = shard_cuts(root.numel(), comm.size)
        found = self._gathered(comm, bucket, partials)
        shard, sent = root[cuts[comm.rank]], self._fold(comm, found, cuts, root)
        away = [number for number in self._carried if number != comm.rank]
        elsewhere = sorted({by[comm.rank] for by in self._carriers} - {comm.rank})
        result = comm.post(
            sends=[(rank, shard) for rank in elsewhere],
            receives=[(number, root[cuts[number]]) for number in away],
        )
        comm.wait(*sent, result)
        if len(self._mine) > 1:
            self._spread(comm, bucket, cuts, root)

    def _gathered(
        self, comm: Communicator, bucket: Bucket, partials: Sequence[torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """Return the partials of this host by their numbers, once they are complete."""
        first = self._first
        if len(self._mine) == 1:
            return dict(enumerate(map(as_real, partials), first[comm.rank]))
        put_in_place(self._windows, self.lent[bucket.index], partials)
        comm.meet(self._mine)
        theirs = ((first[rank], self._partials(bucket, rank)) for rank in self._mine)
        return {
            number: as_real(each)
            for start, those in theirs
            for number, each in enumerate(those, start)
        }

    def _fold(
        self,
        comm: Communicator,
        found: dict[int, torch.Tensor],
        cuts: Sequence[slice],
        root: torch.Tensor,
    ) -> list[Transfer]:
        """Fold the own shard into its place; return what of the others is still being sent."""
        lengths = [cut.stop - cut.start for cut in cuts]
        senders = [
            by[comm.rank]
            for host, by in enumerate(self._carriers)
            for _ in range(self._num_sums[host])
            if host != self._home
        ]
        num_added = sum(len(each.partials) > 1 for each in self._sums)
        sizes = [lengths[comm.rank]] * len(senders)
        sizes += [lengths[number] for number in self._carried for _ in range(num_added)]
        memory = iter(torch.split(self._scratch.provide(sum(sizes), root), sizes))
        theirs = [next(memory) for _ in senders]
        arriving = comm.post(receives=zip(senders, theirs, strict=True))
        sent: list[Transfer] = []
        pieces: list[torch.Tensor] = []
        for number in self._carried:
            sums = self._added(found, cuts[number], memory)
            if number != comm.rank:
                sent.append(comm.post(sends=[(number, each) for each in sums]))
                continue
            before = sum(self._num_sums[: self._home])
            pieces = [*theirs[:before], *sums, *theirs[before:]]
        comm.wait(arriving)
        self._outer.fold(pieces, root[cuts[comm.rank]])
        return sent

    def _added(
        self, found: dict[int, torch.Tensor], cut: slice, memory: Iterator[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Add up this host's sums of a shard; a sum that is a partial stays where it lies."""
        added = []
        for each, fold in zip(self._sums, self._inner, strict=True):
            pieces = [found[number][cut] for number in each.partials]
            if len(pieces) > 1:
                target = next(memory)
                fold.fold(pieces, target)
                pieces = [target]
            added += pieces
        return added

    def _spread(
        self, comm: Communicator, bucket: Bucket, cuts: Sequence[slice], root: torch.Tensor
    ) -> None:
        """Give the members of this host the shards that this one carries, and take theirs."""
        with self._windows.writing():
            kept = self._kept(bucket, comm.rank, root)
            for number in self._carried:
                kept[cuts[number]].copy_(root[cuts[number]])
        comm.meet(self._mine)
        for number, rank in enumerate(self._carriers[self._home]):
            if rank != comm.rank:
                root[cuts[number]].copy_(self._kept(bucket, rank, root)[cuts[number]])

    def _kept(self, bucket: Bucket, rank: int, like: torch.Tensor) -> torch.Tensor:
        start, memory = self._regions[rank].carried[bucket.index], self._windows.memories[rank]
        return memory[start : start + like.nbytes].view(like.dtype)


def carriers(hosts: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return by host, for each shard, which of its members carries it."""
    size, found = sum(map(len, hosts)), []
    for host in hosts:
        away = (number for number in range(size) if number not in host)
        turns = {number: host[turn % len(host)] for turn, number in enumerate(away)}
        found.append(tuple(turns.get(number, number) for number in range(size)))
    return tuple(found)
