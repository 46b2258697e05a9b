"""Leaf exchange: how the workers of a replica come to hold the leaves of all slots of a pass.

Owns the collectives between those who compute different slots.  Must not know slots' order, sums or
steps: it gives back what every shard gave.

A parameter that each worker has whole travels whole: bucket by bucket, everybody's to everybody,
over the process group of the mesh's ``shard`` dimension.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pliant.engine.reduce.buckets import BucketEntry, Layout
from pliant.engine.reduce.plan import as_real


class LeafExchange:
    """A ``LeafTeam`` over a process group."""

    def __init__(
        self,
        layout: Layout,
        group: dist.ProcessGroup | None,
        *,
        is_first_of_shard: bool,
        sharded: Collection[str] = (),
    ) -> None:
        """Of a layout.

        Args:
            layout: of the model here.
            group: of those who compute different slots; None: all compute the same.
            is_first_of_shard: whether no other speaks for those who compute the same.
            sharded: parameters whose leaves come by themselves.
        """
        self.is_sharded = bool(sharded)
        self._group: Any = group
        self.num_shards = 1 if group is None else group.size()
        self.shard = 0 if group is None else group.rank()
        self.is_first_of_shard = is_first_of_shard
        self._buckets = layout.buckets[: layout.extras_index]
        self._entries: dict[int, list[tuple[int, BucketEntry]]] = {}
        number = 0
        for bucket in self._buckets:
            self._entries[bucket.index] = []
            for entry in bucket.entries:
                if entry.name not in sharded:
                    self._entries[bucket.index].append((number, entry))
                number += 1

    def gather_values(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return what each shard says beside its leaves."""
        return list(self._gathered(values))

    def gather_leaves(
        self, leaves: Mapping[int, torch.Tensor], present: Sequence[Sequence[int]]
    ) -> list[dict[int, torch.Tensor]]:
        """Return the leaves of each shard; what only others have is received here."""
        if self.num_shards == 1:
            return [dict(leaves)]
        there = [frozenset(numbers) for numbers in present]
        anywhere = frozenset[int]().union(*there)
        found: list[dict[int, torch.Tensor]] = [{} for _ in there]
        for bucket in self._buckets:
            entries = self._entries[bucket.index]
            if anywhere.isdisjoint(number for number, _ in entries):
                continue
            flat = bucket.empty()
            for number, entry in entries:
                if number in leaves:
                    entry.view(flat).copy_(leaves[number])
            for shard, row in enumerate(self._gathered(flat)):
                for number, entry in entries:
                    if number in there[shard]:
                        found[shard][number] = entry.view(row)
        return found

    def _gathered(self, flat: torch.Tensor) -> torch.Tensor:
        """Return everybody's flat tensor, as rows by shard."""
        if self.num_shards == 1:
            return flat.unsqueeze(0)
        rows = flat.new_empty(self.num_shards, flat.numel())
        parts = [as_real(row) for row in rows.unbind(0)]
        dist.all_gather(parts, as_real(flat), group=self._group)
        return rows
