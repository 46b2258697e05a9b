"""Plan: who holds which partial sums of a step, and in which order they are added.

Owns the plan of one ownership and the additions it consists of.  Must not know how partial sums
travel, groups, slots' meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise

import torch

from pliant.core.step import batching
from pliant.engine.device import host

_ALIGN = 16
"""Shards begin at multiples of this many elements: 64 bytes of float32, a cache line."""

_BLOCK_BYTES = 256 * 1024
"""What is added at a time: intermediate sums stay in the cache of one core."""


@dataclass(frozen=True, kw_only=True)
class ReductionPlan:
    """Who holds which partial sums of a step, and how they are folded to the root."""

    num_slots: int
    partials: tuple[int, ...]
    """Number of partial sums (maximal subtrees) of each rank; at least one each."""

    merges: tuple[tuple[int, int], ...]
    """(left, right): add partial ``right`` to partial ``left``; the last one makes the root at 0.

    Partials are numbered through, in rank order and in slot order.
    """

    @classmethod
    def of(cls, num_slots: int, ownership: Sequence[range]) -> ReductionPlan:
        """Derive the plan from ``batching.ownership``."""
        nodes = batching.partials(num_slots, ownership)
        flat = [node for owned in nodes for node in owned]
        return cls(
            num_slots=num_slots,
            partials=tuple(map(len, nodes)),
            merges=tuple(batching.fold_plan(num_slots, flat)),
        )

    def one_each(self, hosts: Sequence[Sequence[int]] = ()) -> ReductionPlan:
        """Return the plan of fast reduction: one partial per rank, added in rank order.

        ``hosts``: ranks that are added among themselves first.
        """
        size = len(self.partials)
        hosts = hosts or (range(size),)
        inner = [(host[0], other) for host in hosts for other in host[1:]]
        outer = [(0, host[0]) for host in hosts if host[0]]
        return ReductionPlan(
            num_slots=self.num_slots, partials=(1,) * size, merges=(*inner, *outer)
        )

    @property
    def num_partials(self) -> int:
        """Number of partial sums of all ranks."""
        return sum(self.partials)

    @cached_property
    def additions(self) -> tuple[tuple[int, int, int], ...]:
        """(left, right, sum): ``merges`` without writing to a partial.

        Numbers from ``num_partials`` on are memory for sums, the first of it that of the root.
        """
        lies = list(range(self.num_partials))
        free: list[int] = []
        used = self.num_partials
        found = []
        for into, other in self.merges:
            left, right = lies[into], lies[other]
            sums = [number for number in (left, right) if number >= self.num_partials]
            if not sums and not free:
                free.append(used)
                used += 1
            target = sums[0] if sums else free.pop()
            free += sums[1:]
            found.append((left, right, target))
            lies[into] = target
        if found:
            found[-1] = (*found[-1][:2], self.num_partials)
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class HostSum:
    """What the members of one host add up among themselves; nothing, if it is a partial sum."""

    partials: tuple[int, ...]
    """Numbers of its partial sums in the whole plan."""

    plan: ReductionPlan
    """How they are added, numbered through."""


@dataclass(frozen=True, kw_only=True)
class HostwisePlan:
    """A plan in two levels: additions within a host, and those that are left.

    The additions are those of the plan, so the root has the same bits.
    """

    sums: tuple[tuple[HostSum, ...], ...]
    """Of each host, as ``outer`` numbers them through."""

    outer: ReductionPlan
    """With hosts in place of ranks."""

    @classmethod
    def of(cls, plan: ReductionPlan, hosts: Sequence[Sequence[int]]) -> HostwisePlan:
        """Cut a plan where its additions leave a host; each rank is in one of ``hosts``."""
        home = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
        ranks = [rank for rank, count in enumerate(plan.partials) for _ in range(count)]
        of_host: dict[int, int | None] = {n: home[rank] for n, rank in enumerate(ranks)}
        inner: dict[int, list[tuple[int, int]]] = {n: [] for n in of_host}
        outer: list[tuple[int, int]] = []
        for left, right in plan.merges:
            if of_host[left] is not None and of_host[left] == of_host[right]:
                inner[left] += [*inner.pop(right), (left, right)]
                continue
            of_host[left] = None
            outer.append((left, right))
        sums: list[list[HostSum]] = [[] for _ in hosts]
        order: list[list[int]] = [[] for _ in hosts]
        for first, merges in inner.items():
            host = home[ranks[first]]
            sums[host].append(_host_sum(plan, first, merges))
            order[host].append(first)
        place = {first: number for number, first in enumerate(chain.from_iterable(order))}
        return cls(
            sums=tuple(map(tuple, sums)),
            outer=ReductionPlan(
                num_slots=plan.num_slots,
                partials=tuple(map(len, sums)),
                merges=tuple((place[left], place[right]) for left, right in outer),
            ),
        )


def _host_sum(plan: ReductionPlan, first: int, merges: Sequence[tuple[int, int]]) -> HostSum:
    partials = (first, *(right for _, right in merges))
    place = {number: index for index, number in enumerate(partials)}
    return HostSum(
        partials=partials,
        plan=ReductionPlan(
            num_slots=plan.num_slots,
            partials=(len(partials),),
            merges=tuple((place[left], place[right]) for left, right in merges),
        ),
    )


class BlockwiseFold:
    """Adds partials by a plan, block by block; they are only read."""

    def __init__(self, plan: ReductionPlan) -> None:
        self._plan = plan
        highest = max((target for _, _, target in plan.additions), default=plan.num_partials)
        self._num_inner = highest - plan.num_partials
        self._inner = self._memories(_BLOCK_BYTES, torch.device(host.LOCATION))

    def fold(
        self,
        pieces: Sequence[torch.Tensor],
        root: torch.Tensor,
        copy: torch.Tensor | None = None,
    ) -> None:
        """Write the sum of ``pieces``, numbered through, to ``root``; again to ``copy`` if given.

        All are flat, of one size and one dtype.  Not for two threads at once.  An accelerator has
        no cache to stay in: there one block is all.
        """
        numel = _BLOCK_BYTES // root.dtype.itemsize
        memories = self._inner
        if not host.is_here(root):
            numel = max(root.numel(), 1)
            memories = self._memories(numel * root.dtype.itemsize, root.device)
        inner = [memory.view(root.dtype) for memory in memories]
        parts = [torch.split(tensor, numel) for tensor in (*pieces, root)]
        copies = None if copy is None else torch.split(copy, numel)
        for number, target in enumerate(parts[-1]):
            length = target.numel()
            block = [part[number] for part in parts] + [memory[:length] for memory in inner]
            for left, right, into in self._plan.additions:
                torch.add(block[left], block[right], out=block[into])
            if copies is not None:
                copies[number].copy_(target)  # still in the cache

    def _memories(self, nbytes: int, where: torch.device) -> list[torch.Tensor]:
        return [
            torch.empty(nbytes, dtype=torch.uint8, device=where) for _ in range(self._num_inner)
        ]


def fold(plan: ReductionPlan, partials: Sequence[torch.Tensor]) -> torch.Tensor:
    """Add partials of all ranks by the plan, without a group: what every exchange must equal."""
    sums = [partial.clone() for partial in partials]
    for left, right in plan.merges:
        sums[left].add_(sums[right])
    return sums[0]


def shard_sizes(numel: int, num_shards: int) -> list[int]:
    """Cut a flat tensor into nearly equal shards at aligned places; the last ones may be empty."""
    lines = -(-numel // _ALIGN)
    base, extra = divmod(lines, num_shards)
    ends = [min(numel, _ALIGN * (base * k + min(k, extra))) for k in range(num_shards + 1)]
    return [end - start for start, end in pairwise(ends)]


def shard_cuts(numel: int, num_shards: int) -> list[slice]:
    """Return where each shard of a flat tensor lies."""
    sizes = shard_sizes(numel, num_shards)
    return [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """View complex numbers as pairs of real ones: addition is the same, and so are all sizes."""
    return torch.view_as_real(tensor).reshape(-1) if tensor.is_complex() else tensor
