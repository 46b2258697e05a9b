"""One of two processes that write the weights of a model of which each has a part.

python tests/engine/state/writing.py DIRECTORY RANK
"""

from __future__ import annotations

import copy
import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pliant.core.errors import UsageError
from pliant.engine.sharding.stages import Stages
from pliant.engine.state.tagged_codec import encode
from pliant.engine.state.whole_weights import WeightsFile


class Layers(nn.Module):
    """Two of a kind in several types, one weight under two names, and what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.norm = nn.BatchNorm1d(7)
        self.last = nn.Linear(5, 1).bfloat16()
        self.again = nn.Linear(5, 7)
        self.again.weight = self.first.weight
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("flag", torch.tensor(data=True))

    def get_extra_state(self) -> Any:
        return {"seen": (1, "a"), "mean": torch.arange(3)}

    def set_extra_state(self, state: Any) -> None:
        del state


def write(model: nn.Module, stages: Stages, rank: int, target: Path) -> None:
    WeightsFile(model, stages, is_first=rank == 0).write(target)


def assert_same(written: Path, whole: nn.Module) -> None:
    """Compare with what is written of a model that is whole."""
    expected = written.with_name("whole.pt")
    write(whole, Stages(), 0, expected)
    found, own = (torch.load(path, weights_only=True) for path in (written, expected))
    assert found.keys() == own.keys()
    assert dict(found._metadata) == dict(own._metadata)
    for name, value in own.items():
        (document, tensors), (other, others) = encode(found[name]), encode(value)
        assert document == other, name
        assert all(map(torch.equal, tensors, others)), name
    pairs = [(n, m) for n in own for m in own if n.endswith("weight") and m.endswith("weight")]
    for name, other in pairs:
        is_one = own[name].data_ptr() == own[other].data_ptr()
        assert (found[name].data_ptr() == found[other].data_ptr()) is is_one, (name, other)


def sharded(mesh: Any, directory: Path, rank: int) -> None:
    """Both have a part of each parameter, and rank 1 nothing of the one row."""
    whole = Layers()
    model = copy.deepcopy(whole)
    fully_shard(model.last, mesh=mesh)
    fully_shard(model, mesh=mesh)
    write(model, Stages(), rank, directory / "deep" / "parts.pt")
    if rank == 0:
        write(whole, Stages(), 0, directory / "whole.pt")
        write(whole, Stages(), 0, directory / "whole.pt")
        written, expected = directory / "deep" / "parts.pt", directory / "whole.pt"
        assert written.read_bytes() == expected.read_bytes()
        assert [one.name for one in (directory / "deep").iterdir()] == ["parts.pt"]
        sys.stdout.write("sharded: the same file\n")


def staged(directory: Path, rank: int) -> None:
    """Each has some layers, under the names that they have in the whole model."""
    whole = nn.ModuleDict({"a": Layers(), "b": Layers(), "c": nn.Linear(2, 2)})
    model = nn.ModuleDict({name: whole[name] for name in (("a", "c"), ("b",))[rank]})
    write(model, Stages(dist.group.WORLD), rank, directory / "stages.pt")
    if rank == 0:
        assert_same(directory / "stages.pt", whole)
        sys.stdout.write("staged: the same weights\n")


def alike(directory: Path, rank: int) -> None:
    """Both stages call their layer the same."""
    try:
        write(nn.Linear(2, 2), Stages(dist.group.WORLD), rank, directory / "alike.pt")
    except UsageError as error:
        sys.stdout.write(f"{error}\n")
    assert not (directory / "alike.pt").exists()


def full(mesh: Any, directory: Path, rank: int) -> None:
    """There is no room for a tensor: worker 0 is told, and nobody waits for it."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(8)) for _ in range(4)])
    fully_shard(model, mesh=mesh)
    error = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch.object(os, "posix_fallocate", side_effect=error):
        try:
            write(model, Stages(), rank, directory / "full" / "weights.pt")
        except OSError as told:
            sys.stdout.write(f"{told.strerror}\n")
    dist.barrier()
    assert not list((directory / "full").iterdir())


def nowhere(mesh: Any, directory: Path, rank: int) -> None:
    """There can be no file: worker 0 is told, and nobody waits for it."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(8)) for _ in range(4)])
    fully_shard(model, mesh=mesh)
    try:
        write(model, Stages(), rank, directory / "stages.pt" / "weights.pt")
    except OSError as error:
        sys.stdout.write(f"{error.strerror}\n")
    dist.barrier()


def large(mesh: Any, directory: Path, rank: int) -> None:
    """Worker 0 has few of 32 tensors of 4 MB in memory of its own when all are there.

    Where they lie has no name: whoever is killed then leaves the new file at most.
    """
    model = nn.ParameterList([nn.Parameter(torch.zeros(1 << 20)) for _ in range(32)])
    fully_shard(model, mesh=mesh)
    before, found = own_memory(), []

    def weigh(weights: Any, file: Any) -> None:
        del file
        assert sum(one.numel() for one in weights.values()) == 32 << 20
        ctypes.CDLL(None).malloc_trim(0)  # what is freed stays with the allocator
        found.append(own_memory() - before)
        assert len(list(directory.glob(".*"))) == 1

    with mock.patch.object(torch, "save", weigh):
        write(model, Stages(), rank, directory / "large.pt")
    if rank == 0:
        sys.stdout.write(f"large: {'held as mapped' if found[0] < 48 << 10 else found}\n")


def own_memory() -> int:
    """Return what this process has that is no file, in KB, and that was not freed."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("RssAnon:") + 1])


def main() -> None:
    directory, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    store = FileStore(str(directory / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    torch.manual_seed(3)
    sharded(mesh, directory, rank)
    staged(directory, rank)
    alike(directory, rank)
    full(mesh, directory, rank)
    nowhere(mesh, directory, rank)
    large(mesh, directory, rank)
    dist.barrier()


if __name__ == "__main__":
    main()
