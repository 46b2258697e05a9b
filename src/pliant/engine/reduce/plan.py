"""Plan: who holds which partial sums of a step, and in which order they are added.

Owns the plan of one ownership and the additions it consists of.  Must not know how partial sums
travel, groups, slots' meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch

from pliant.core.step import batching

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

    def one_each(self) -> ReductionPlan:
        """Return the plan of fast reduction: one partial per rank, added in rank order."""
        size = len(self.partials)
        return ReductionPlan(
            num_slots=self.num_slots,
            partials=(1,) * size,
            merges=tuple((0, other) for other in range(1, size)),
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


class BlockwiseFold:
    """Adds partials by a plan, block by block; they are only read."""

    def __init__(self, plan: ReductionPlan) -> None:
        self._plan = plan
        highest = max((target for _, _, target in plan.additions), default=plan.num_partials)
        self._inner = [
            torch.empty(_BLOCK_BYTES, dtype=torch.uint8) for _ in range(highest - plan.num_partials)
        ]

    def fold(
        self,
        pieces: Sequence[torch.Tensor],
        root: torch.Tensor,
        copy: torch.Tensor | None = None,
    ) -> None:
        """Write the sum of ``pieces``, numbered through, to ``root``; again to ``copy`` if given.

        All are flat, of one size and one dtype.  Not for two threads at once.
        """
        numel = _BLOCK_BYTES // root.dtype.itemsize
        inner = [memory.view(root.dtype) for memory in self._inner]
        parts = [torch.split(tensor, numel) for tensor in (*pieces, root)]
        copies = None if copy is None else torch.split(copy, numel)
        for number, target in enumerate(parts[-1]):
            length = target.numel()
            block = [part[number] for part in parts] + [memory[:length] for memory in inner]
            for left, right, into in self._plan.additions:
                torch.add(block[left], block[right], out=block[into])
            if copies is not None:
                copies[number].copy_(target)  # still in the cache


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


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """View complex numbers as pairs of real ones: addition is the same, and so are all sizes."""
    return torch.view_as_real(tensor).reshape(-1) if tensor.is_complex() else tensor
