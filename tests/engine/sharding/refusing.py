"""Makes sessions of sharded models that are refused; prints each sentence.

python tests/engine/sharding/refusing.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    fully_shard,
)
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import pliant
from pliant.core.errors import ConfigError, UsageError
from pliant.engine import several_workers as workers
from pliant.engine.sharding import fsdp
from pliant.engine.sharding.fsdp import groups_of

MESH = pliant.mesh(shard=1)


def network(mesh: Any = MESH, **more: Any) -> nn.Module:
    model = nn.Linear(4, 3)
    fully_shard(model, mesh=mesh["shard"], **more)
    return model


def train(model: nn.Module, tail: Callable[[Any, Any], object] | None = None, **more: Any) -> None:
    kind = more.pop("kind", torch.optim.SGD)
    optimizer = kind(model.parameters(), lr=0.1, **more.pop("options", {}))
    with pliant.Session(
        model=model,
        optimizer=optimizer,
        dataset=torch.zeros(8, 4),
        global_batch_size=4,
        micro_batch_size=2,
        **more,
    ) as session:
        for step in session.steps(3):
            for batch in step:
                step.backward(model(batch).square().mean() + model(batch + 1).sum())
            if tail is not None:
                tail(session, step)


def install(model: nn.Module) -> None:
    fsdp.SlotGradients(lambda: 1.0).install(model)


def elsewhere() -> None:
    """Shard over a mesh that is not that of this replica, as far as can be seen."""
    with mock.patch.object(workers, "is_over_mesh", return_value=False):
        train(network())


class Short(torch.optim.SGD):
    """Keeps of each parameter what is smaller than it."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["first"] = parameter.detach()[:1].clone()
        return super().step(closure)


def hooked() -> None:
    """Hook a gradient, of which FSDP does not know."""
    model: Any = network()
    model.weight.register_hook(lambda gradient: gradient * 2)
    train(model)


def copies() -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "shard"))
    model = nn.Linear(4, 3)
    fully_shard(model, mesh=mesh)
    install(model)


def groups() -> None:
    """A module whose setter refuses, as one of several groups of parameters does."""
    model: Any = network()

    def refuse(comm: object) -> None:
        raise RuntimeError("several groups")

    type(model).set_custom_reduce_scatter = lambda self, comm: refuse(comm)
    try:
        install(model)
    finally:
        del type(model).set_custom_reduce_scatter


def replicated() -> None:
    """Have copies of a model added up by torch."""
    from torch.distributed._composable.replicate_with_fsdp import replicate

    model = nn.Linear(4, 3)
    replicate(model, mesh=MESH["shard"])
    install(model)


def cut() -> None:
    """Cut an operation over those who compute different micro-batches."""
    model = nn.Linear(4, 3)
    parallelize_module(model, MESH["shard"], ColwiseParallel())
    fsdp.refuse_others(model, ["weight"])


def shown_before() -> None:
    """Run a forward before there is a session, which leaves the weights whole: that is fine."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.zeros(1, 4))
    pliant.Session(
        model=model,
        optimizer=optimizer,
        dataset=torch.zeros(8, 4),
        global_batch_size=4,
        micro_batch_size=2,
    )
    raise UsageError("nothing is wrong with a forward before")


def divided() -> None:
    """Divide gradients before there is a session."""
    model: Any = network()
    model.set_gradient_divide_factor(2.0)
    train(model)


def held_back() -> None:
    """Keep back the gradients of all steps but the first."""
    model: Any = network()
    train(model, lambda session, step: model.set_requires_gradient_sync(False))


def unfinished() -> None:
    """Let gradients come with a call of the script's own."""
    model: Any = network()
    model.set_manual_backward_finalization(True)
    train(model)


def added_up() -> None:
    """Let FSDP add up by itself, after a step."""
    model: Any = network()

    class Own(type(groups_of(model)[0]._reduce_scatter_comm)):  # type: ignore[misc]
        """The script's own."""

    train(model, lambda session, step: model.set_custom_reduce_scatter(Own()))


CASES: list[Callable[[], object]] = [
    lambda: train(network(), kind=torch.optim.AdamW, options={"fused": True}),
    lambda: train(network(), lambda session, step: step.grad_norm),
    lambda: train(FullyShardedDataParallel(nn.Linear(4, 3), device_id=torch.device("cpu"))),
    lambda: train(network(), kind=Short),
    elsewhere,
    copies,
    lambda: install(network(offload_policy=CPUOffloadPolicy(pin_memory=False))),
    groups,
    hooked,
    replicated,
    cut,
    shown_before,
    divided,
    held_back,
    added_up,
]
if hasattr(FSDPModule, "set_manual_backward_finalization"):  # torch 2.11 has none
    CASES.append(unfinished)


def main() -> None:
    for case in CASES:
        try:
            case()
        except (ConfigError, UsageError) as error:
            sys.stdout.write(f"said: {error}\n")
        else:
            sys.stdout.write("said: nothing\n")


if __name__ == "__main__":
    main()
