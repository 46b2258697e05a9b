"""States to save, and the shortest way to save them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_saver as dcp

from pliant.checkpoint.dcp.index import Contents
from pliant.checkpoint.dcp.layout import name_of
from pliant.checkpoint.dcp.manifest import Manifest
from pliant.checkpoint.dcp.shares import publish, write_share
from pliant.checkpoint.store.base import Storage


def contents(seed: int = 0, *, rows: int = 40) -> Contents:
    """Return a small state with every awkward kind of tensor."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    tensors = {
        "model.linear.weight": randn(rows, 7),
        "model.linear.bias": randn(7).to(torch.bfloat16),
        "model.turned": randn(5, 3).t(),
        "model.strided": randn(6, 8)[::2, 1::3],
        "model.counter": torch.tensor(seed),
        "model.empty": torch.empty(0, 4),
        "model.flags": randn(9) > 0,
        "optim.state.linear.weight.exp_avg": randn(rows, 7).double(),
        "extra.phase": randn(4).to(torch.complex64),
    }
    objects: dict[str, Any] = {
        "pliant.document": b"\x00\xff document",
        "optim.param_groups.0.lr": 0.125,
        "optim.param_groups.0.betas": (0.9, 0.999),
    }
    return Contents(tensors=tensors, objects=objects)


def save(
    storage: Storage,
    committed: int = 500,
    *,
    state: Contents | None = None,
    lineage: int = 1,
    num_shares: int = 2,
    generation: int = 3,
    job: str = "gpt",
    aliases: dict[str, str] | None = None,
) -> Manifest:
    """Write all shares one after the other, and publish."""
    name = name_of(committed, lineage)
    state = contents(committed) if state is None else state
    for rank in range(num_shares):
        write_share(storage, name, state, rank=rank, num_shares=num_shares, generation=generation)
    return publish(
        storage,
        name,
        generation=generation,
        num_shares=num_shares,
        job=job,
        identity={"seed": 1},
        aliases=aliases,
    )


def plain_save(state: dict[str, Any], directory: Path) -> None:
    """Save a nested state dict as plain torch does, in one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is one process
        dcp.save(state, checkpoint_id=directory, no_dist=True)


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal, tensors to the byte."""
    if not isinstance(left, torch.Tensor):
        return bool(left == right)
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    sides = [side.contiguous().reshape(-1).view(torch.uint8) for side in (left, right)]
    return left.numel() == 0 or torch.equal(*sides)


def differing(found: dict[str, Any], state: Contents) -> list[str]:
    """Return the names of items that are not what was saved."""
    expected = {**state.tensors, **state.objects}
    assert found.keys() == expected.keys()
    return [name for name, value in expected.items() if not same(found[name], value)]
