"""Shard sums: finds an optimizer that adds up over the parts of a sharded parameter.

Owns that one look.  What an optimizer does to each value by itself has the bits of a model that is
whole, and so has what it computes of a gradient that it has made whole (``full_tensor``).  A norm
or a product of matrices that torch adds up over the workers of a replica has others, which depend
on how many there are.  Must not know which optimizer does what.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from pliant.core.errors import UsageError
from pliant.engine.local_tensors import is_sharded
from pliant.engine.replica.device_mesh import is_over_shards, made_mesh, shard_group

SUMS = ("sum", "avg")
"""Reductions whose bits depend on who has added what; a maximum is the same for all."""

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
    with _SumFinder(type(optimizer).__name__, group.group_name):
        yield


class _SumFinder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees what sharded tensors do on each worker; itself it lets them do it."""

    def __init__(self, name: str, group_name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._name = name
        self._group_name = group_name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        words = [one for one in args if isinstance(one, str)]
        if any(map(is_sharded, args)):
            if str(func) == TAKEN and _is_partial(args[0]):
                self._refuse()  # torch gives each worker the sum over its own part
            return NotImplemented
        is_sum = func.namespace == "_c10d_functional" and any(word in SUMS for word in words)
        if is_sum and self._group_name in words:
            self._refuse()
        return func(*args, **(kwargs or {}))

    def _refuse(self) -> None:
        raise UsageError(
            f"{self._name} adds up over the parts of a sharded parameter, so its bits depend on "
            "how many workers a replica has; use an optimizer that takes each value by itself, as "
            "AdamW and SGD do, or leave its parameters out of fully_shard"
        )


def _is_partial(sharded: Any) -> bool:
    """Whether each worker has a part of a sum."""
    return is_over_shards(sharded) and any(one.is_partial() for one in sharded.placements)
