"""Shard sums: finds an optimizer that adds up over the parts of a sharded parameter.

Owns that one look.  What an optimizer does to each value by itself has the bits of a model that is
whole, and so has what it computes of a gradient that it has made whole (``full_tensor``).  A norm
or a product of matrices that torch adds up over the workers of a replica has others, which depend
on how many there are.  Must not know which optimizer does what.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from pliant.core.errors import UsageError
from pliant.engine.device import host
from pliant.engine.local_tensors import is_sharded_type
from pliant.engine.reduce.buckets import BucketEntry, Layout
from pliant.engine.reduce.plan import as_real
from pliant.engine.sharding.device_mesh import is_over_shards, made_mesh, shard_group

SUMS = ("sum", "avg")
"""Reductions whose bits depend on who has added what, as torch's functional collectives call them;
a maximum is the same for all."""

SUM_KINDS = ("SUM", "AVG", "PRODUCT", "PREMUL_SUM")
"""The same in ``torch.distributed``'s own calls."""

TAKEN = "aten._local_scalar_dense.default"
"""How torch takes a number out of a tensor: ``float(tensor)``."""


@contextmanager
def refuse_shard_sums(optimizer: object) -> Iterator[None]:
    """Refuse a step of this optimizer that adds up over ``shard``.

    Raises:
        UsageError: names the optimizer.
    """
    found = made_mesh()
    group = None if found is None else shard_group(found)
    if group is None:
        yield
        return
    with _SumFinder(type(optimizer).__name__, group):
        yield


class _SumFinder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees what sharded tensors do on each worker; itself it lets them do it."""

    def __init__(self, name: str, group: dist.ProcessGroup) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name
        self._group_name = group.group_name
        self._members = set(dist.get_process_group_ranks(group))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_sharded_type, types)):  # alone, in lists or by name
            if str(func) == TAKEN and _is_partial(args[0]):
                self._refuse()  # torch gives each worker the sum over its own part
            return NotImplemented
        if func.namespace == "_c10d_functional":
            words = [one for one in args if isinstance(one, str)]
            if self._group_name in words and any(word in SUMS for word in words):
                self._refuse()
        elif func.namespace == "c10d" and self._adds_up(args):
            self._refuse()
        return func(*args, **(kwargs or {}))

    def _adds_up(self, args: Any) -> bool:
        """Whether a collective that the optimizer calls itself adds up what the workers have."""
        boxed: list[Any] = [one for one in args if isinstance(one, torch.ScriptObject)]
        numbers = [one.op() for one in boxed if _is_boxed(one, "ReduceOp")]  # torch 2.11 to 2.15
        kinds = [dist.ReduceOp.RedOpType(number).name for number in numbers]
        groups = [dist.ProcessGroup.unbox(one) for one in boxed if _is_boxed(one, "ProcessGroup")]
        return any(kind in SUM_KINDS for kind in kinds) and any(
            len(self._members & set(dist.get_process_group_ranks(group))) > 1 for group in groups
        )

    def _refuse(self) -> None:
        raise UsageError(
            f"{self._name} adds up over the parts of a sharded parameter, so its bits depend on "
            "how many workers a replica has; use an optimizer that takes each value by itself, as "
            "AdamW and SGD do, or leave its parameters out of fully_shard"
        )


def _is_boxed(boxed: torch.ScriptObject, kind: str) -> bool:
    """Whether an object is of this class of ``torch.distributed``."""
    return str(boxed._type()).endswith(f".{kind}")  # noqa: SLF001  nothing else tells them apart


def _is_partial(sharded: Any) -> bool:
    """Whether each worker has a part of a sum."""
    return is_over_shards(sharded) and any(one.is_partial() for one in sharded.placements)


class LeafExchange:
    """What the workers of a replica that compute different slots give each other."""

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
            is_first_of_shard: whether no other speaks for those who compute the same slots.
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
        """Return what each shard says beside its leaves; every worker must call."""
        return list(self._gathered(values))

    def gather_bytes(self, payload: bytes, sizes: Sequence[int]) -> list[bytes]:
        """Return what each shard tells, of which all know the ``sizes``; every worker must call."""
        flat = torch.zeros(max(sizes), dtype=torch.uint8, device=host.LOCATION)
        flat[: len(payload)] = flat.new_tensor([*payload])
        rows = self._gathered(flat)
        return [bytes(row[:size].tolist()) for row, size in zip(rows, sizes, strict=True)]

    def gather_leaves(
        self, leaves: Mapping[int, torch.Tensor], present: Sequence[Sequence[int]]
    ) -> list[dict[int, torch.Tensor]]:
        """Return the leaves of each shard, by parameters' numbers; every worker must call.

        ``present``: which each has.
        """
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
