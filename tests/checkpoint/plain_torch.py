"""What somebody without pliant runs: plain PyTorch on one side of a checkpoint.

    plain_torch.py read DIRECTORY            load a checkpoint into a model of its own, one process
    plain_torch.py sharded DIRECTORY         the same into an FSDP2-sharded model, 4 gloo processes
    plain_torch.py write DIRECTORY OUT       train that sharded model a step, save it, and its state

Prints ``same`` if the loaded state is what ``STATE`` (a file beside the checkpoint) holds.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)

WORLD = 4


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(7)
    model(torch.randn(8, 6)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, *, full: bool) -> dict[str, Any]:
    options = StateDictOptions(full_state_dict=full)
    return {
        "model": get_model_state_dict(model, options=options),
        "optim": get_optimizer_state_dict(model, optimizer, options=options),
    }


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return bool(torch.equal(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def read(directory: str) -> None:
    model, optimizer = model_and_optimizer()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    state = state_of(model, optimizer, full=False)
    state_dict_loader.load(state, checkpoint_id=directory, no_dist=True)
    expected = torch.load(Path(directory).parent / "STATE", weights_only=True)
    print("same" if equal(state, expected) else "different")
    assert not any(name.partition(".")[0] == "pliant" for name in sys.modules)


def sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (WORLD,))
    model, _ = model_and_optimizer()
    for layer in (model[0], model[3]):  # type: ignore[index]
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def in_group(rank: int, store: str, what: str, directory: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    model, optimizer = sharded()
    step(model, optimizer)
    if what == "write":
        state_dict_saver.save(state_of(model, optimizer, full=False), checkpoint_id=directory)
        whole = state_of(model, optimizer, full=True)
        if rank == 0:
            torch.save(whole, out)
    else:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        state = state_of(model, optimizer, full=False)
        state_dict_loader.load(state, checkpoint_id=directory)
        loaded = {key: gathered(value) for key, value in state.items()}
        expected = torch.load(Path(directory).parent / "STATE", weights_only=True)
        if rank == 0:
            print("same" if equal(loaded, expected) else "different", flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def gathered(value: Any) -> Any:
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, dict):
        return {key: gathered(part) for key, part in value.items()}
    if isinstance(value, list):
        return [gathered(part) for part in value]
    return value


def main() -> None:
    what, directory = sys.argv[1:3]
    if what == "read":
        read(directory)
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments = (f"{scratch}/store", what, directory, sys.argv[3] if what == "write" else "")
        start: Any = vars(torch.multiprocessing)["start_processes"]
        start(in_group, args=arguments, nprocs=WORLD, start_method="fork")


if __name__ == "__main__":
    main()
