"""One of two processes that shard a model; prints what each slot's gradient is.

python tests/engine/sharding/sharding.py DIRECTORY RANK [KIND]

KIND: of the devices, one per process.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from pliant.core.errors import UsageError
from pliant.engine.device import here
from pliant.engine.local_tensors import local_of, part_of, sharded_like, whole_of
from pliant.engine.sharding import device_mesh, whole_draws
from pliant.engine.sharding.fsdp import SlotGradients
from pliant.engine.sharding.shard_sums import refuse_shard_sums
from pliant.engine.state.optimizer_state import refuse_kept_gradients

FACTORS = (0.5, 3.0)


def main() -> None:
    directory, rank = Path(sys.argv[1]), int(sys.argv[2])
    kind, backend = sys.argv[3] if len(sys.argv) > 3 else "cpu", "gloo"
    torch.set_num_threads(1)
    if kind != "cpu":
        from tests.accelerator import sim

        sim.install()
        torch.accelerator.set_device_index(rank)
        torch.set_default_device(kind)
        here.choose([torch.zeros(1)])
        backend = f"cpu:gloo,{kind}:{dist.get_default_backend_for_device(kind)}"
    store = FileStore(str(directory / "store"), 2)
    dist.init_process_group(backend, store=store, rank=rank, world_size=2)
    mesh = init_device_mesh(kind, (2,), mesh_dim_names=("shard",))
    torch.manual_seed(3)
    whole = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))  # shards are uneven
    model = copy.deepcopy(whole)
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    gradients = SlotGradients(lambda: FACTORS[rank])
    gradients.install(model)
    found: dict[str, list[torch.Tensor]] = {}
    for name, parameter in model.named_parameters():

        def take(parameter: torch.Tensor, name: str = name) -> None:
            assert parameter.grad is not None
            found[name] = [leaf.clone() for leaf in gradients.leaves_of(parameter.grad) or ()]
            parameter.grad = None

        parameter.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]
    slots = [torch.arange(20.0).reshape(4, 5).sin() * (slot + 1) for slot in (0, 1)]
    model(slots[rank]).square().mean().backward()

    for slot, batch in enumerate(slots):
        whole.zero_grad()
        whole(batch).square().mean().backward()
        for name, parameter in model.named_parameters():
            expected = whole.get_parameter(name).grad
            assert expected is not None
            mine = (expected * FACTORS[slot]).chunk(2)
            own = mine[rank] if rank < len(mine) else expected[:0]
            assert torch.equal(found[name][slot], own), (slot, name)
            assert local_of(parameter).shape == own.shape
            part = part_of(parameter, {"shard": rank})
            assert part is not None
            assert (part.shape, part.sizes, part.is_first) == (expected.shape, own.shape, True)
            assert part.begins[0] == (mine[0].shape[0] if rank else 0)
            assert torch.equal(whole_of(parameter), whole.get_parameter(name))
    sys.stdout.write(f"equal {sorted(found)}\n")
    cast(mesh, slots[rank])
    skip(mesh, slots[rank], is_short=rank == 1)
    penalise(mesh, slots[rank])
    add_up(mesh)
    hold_nothing(mesh)
    draw(mesh)


def draw(mesh: Any) -> None:
    """Initialise a model that was never whole; both have the numbers of one that is."""
    whole_draws.install()
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(5, 7), nn.Linear(6, 3))  # shards by rows are uneven
    whole = copy.deepcopy(model).to_empty(device=mesh.device_type)
    fully_shard(model[0], mesh=mesh)
    fully_shard(model[1], mesh=mesh, shard_placement_fn=lambda one: Shard(one.ndim - 1))
    model.to_empty(device=mesh.device_type)
    each: Any
    for each in (whole, model):
        torch.manual_seed(4)
        nn.init.trunc_normal_(each[0].weight, std=0.02)
        nn.init.kaiming_uniform_(each[1].weight)
        with torch.no_grad():
            each[0].bias.copy_(torch.randn_like(each[0].bias))
            each[1].bias.exponential_()
    for name, parameter in model.named_parameters():
        assert torch.equal(whole_of(parameter), whole.get_parameter(name)), name
    whole_draw = drawn_by_values(whole)
    for mine, expected in zip(drawn_by_values(model), whole_draw, strict=True):
        assert torch.equal(whole_of(mine), expected)
    sys.stdout.write(f"drawn whole, but for {' and '.join(refused_draws(model))}\n")


def refused_draws(model: Any) -> Iterator[str]:
    """Yield the names of what is refused."""
    weights = model[0].weight.detach().abs()
    rrelu: Any = partial(nn.functional.rrelu, training=True)
    for drawn in (rrelu, partial(torch.multinomial, num_samples=2)):
        try:
            drawn(weights)
        except UsageError as error:
            name, _, rest = str(error).partition(" ")
            assert rest.startswith("of a sharded tensor draws according to the values of other")
            yield name


def drawn_by_values(model: Any) -> list[torch.Tensor]:
    """Return what is drawn according to the numbers of tensors, of uneven parts as well."""
    torch.manual_seed(6)
    found = []
    for each in (model[0].weight, model[1].weight, model[0].bias):
        chances = each.detach().abs().clamp(max=1)
        found += [torch.bernoulli(chances), nn.functional.dropout(each, 0.4)]
        found += torch.native_dropout(each, 0.4, True)
        found.append(torch.bernoulli(chances.double()))
    return [one.detach() for one in found]


def cast(mesh: Any, batch: torch.Tensor) -> None:
    """Let FSDP add up in 16 bits."""
    model = nn.Sequential(nn.Linear(5, 4))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    gradients = SlotGradients(lambda: 1.0)
    gradients.install(model)
    model(batch).square().mean().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        try:
            gradients.leaves_of(parameter.grad)
        except UsageError as error:
            sys.stdout.write(f"{error}\n")
            return


def skip(mesh: Any, batch: torch.Tensor, *, is_short: bool) -> None:
    """Use a layer on one worker only."""
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    model.forward = lambda x: model[0](x) if is_short else model[1](model[0](x))  # type: ignore[method-assign]
    fully_shard(model, mesh=mesh)
    SlotGradients(lambda: 1.0).install(model)
    try:
        model(batch).square().mean().backward()
    except UsageError as error:
        sys.stdout.write(f"{error}\n")


def penalise(mesh: Any, batch: torch.Tensor) -> None:
    """Let a loss have a penalty on weights, which are parts outside of a forward."""
    model = nn.Sequential(nn.Linear(5, 5))
    fully_shard(model, mesh=mesh)
    gradients = SlotGradients(lambda: 1.0)
    gradients.install(model)
    model(batch).square().mean().backward()
    for parameter in model.parameters():
        assert gradients.leaves_of(parameter.grad) is not None  # type: ignore[arg-type]
        parameter.grad = None
    weight: Any = next(model.parameters())
    weight.to_local().square().sum().backward()
    try:
        gradients.leaves_of(weight.grad)
    except UsageError as error:
        sys.stdout.write(f"{error}\n")


class Normed(torch.optim.SGD):
    """Looks at the norm of each gradient, of which torch gives a worker that of its part."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.norm = float(parameter.grad.norm())
        return super().step(closure)


class Scaled(torch.optim.SGD):
    """Scales all gradients at once, by norms that nothing but lists of tensors ever sees."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        gradients = [parameter.grad for parameter in self.param_groups[0]["params"]]
        torch._foreach_mul_(gradients, torch._foreach_norm(gradients))
        return super().step(closure)


class Reduced(torch.optim.SGD):
    """Adds up the norms of the parts by itself."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.norm = torch.stack(
            [p.grad.to_local().square().sum() for p in self.param_groups[0]["params"]]
        ).sum()
        dist.all_reduce(self.norm)
        return super().step(closure)


class Largest(torch.optim.SGD):
    """Looks at the largest value of all parts, and adds up nothing."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        gradients = [parameter.grad for parameter in self.param_groups[0]["params"]]
        self.largest = torch.stack([gradient.to_local().abs().max() for gradient in gradients])
        dist.all_reduce(self.largest, op=dist.ReduceOp.MAX)
        torch._foreach_add_(gradients, gradients, alpha=0.1)
        return super().step(closure)


class Gathered(torch.optim.SGD):
    """Looks at the norm of each whole gradient, which has the bits of a model that is whole."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.norm = float(parameter.grad.full_tensor().norm())
        return super().step(closure)


def add_up(mesh: Any) -> None:
    """Step optimizers, some of which need sums over the parts of a parameter."""
    device_mesh._made = mesh
    for kind in (Normed, torch.optim.Muon, Scaled, Reduced, Largest, Gathered, torch.optim.AdamW):
        model = nn.Linear(4, 4, bias=False)
        fully_shard(model, mesh=mesh)
        optimizer = kind(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).square().mean().backward()
        try:
            with refuse_shard_sums(optimizer):
                optimizer.step()
        except UsageError as error:
            sys.stdout.write(f"{error}\n")


def hold_nothing(mesh: Any) -> None:
    """Step where the second worker has nothing of the only row: no two of its tensors are one."""
    model = nn.Linear(4, 1)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for parameter in model.parameters():  # as an update gives each the gradient of all replicas
        own = torch.ones(local_of(parameter).shape)
        parameter.grad = sharded_like(own, parameter)
    optimizer.step()
    refuse_kept_gradients([optimizer], list(model.parameters()))


if __name__ == "__main__":
    main()
