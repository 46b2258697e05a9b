"""FSDP: the gradients of ``fully_shard``, slot by slot, before anybody has added them.

Owns what of FSDP2 is private, and nothing else knows: the base class of a custom reduce-scatter.
Seen to work with torch 2.11 and 2.15 (``tests/engine/sharding/test_fsdp.py``).  Must not know the
order of slots, sums, or replicas.

    backward of FSDP  --whole gradients of this worker's slot-->  all-to-all
        every worker: its own shard, of each worker's slot  -->  leaves_of(a parameter's gradient)

FSDP itself would add the slots in an order that depends on how many workers there are.  The leaves
are divided by nothing: weights are applied by the worker whose slot it is.

On an accelerator all of this is queued on a stream of FSDP's: who keeps a leaf beyond the hook
joins that (``GradientColumn.join_kept``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from pliant.core.errors import ConfigError, UsageError
from pliant.engine.device import host
from pliant.engine.local_tensors import local_of, sharding_modules
from pliant.engine.sharding.device_mesh import is_over_shards


class SlotGradients:
    """Of one model; ``install`` once, then ``leaves_of`` in the hook of each parameter."""

    def __init__(self, factor: Callable[[], float]) -> None:
        """``factor``: by which this worker's slot counts, during its backward."""
        self._factor = factor
        self._rows: torch.Tensor | None = None
        """What came last, by shard: FSDP calls the hooks of its parameters before the next."""
        self._sum: torch.Tensor | None = None
        """What FSDP has of it; held, so that nothing else comes to lie there."""

    def install(self, model: torch.nn.Module) -> None:
        """Have FSDP give gradients here.

        Raises:
            ConfigError: a part of the model is sharded in a way that is not supported.
        """
        from torch.distributed.fsdp import FSDPModule

        for number, (name, module) in enumerate(model.named_modules()):
            if not isinstance(module, FSDPModule):
                continue
            _refuse_kinds(name or "the model", module)
            try:
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
                module.set_custom_reduce_scatter(self._reduce_scatter(number))
            except (RuntimeError, AssertionError, ValueError) as error:
                raise ConfigError(
                    f"{name or 'the model'!r} is sharded in a way that pliant cannot follow: "
                    f"{str(error).splitlines()[0]}"
                ) from error

    def leaves_of(self, gradient: torch.Tensor) -> list[torch.Tensor] | None:
        """Return what each shard's slot gives to the part of a parameter that lies here.

        None: it is of a parameter that is not sharded over them.

        Raises:
            UsageError: FSDP has made another tensor of it, or it is not FSDP's.
        """
        if not is_over_shards(gradient):
            return None
        local = local_of(gradient)
        if self._rows is None or self._sum is None or not _is_in(local, self._sum):
            raise UsageError(_why_not(local, self._rows))
        return [
            row.as_strided(
                local.shape, local.stride(), row.storage_offset() + local.storage_offset()
            )
            for row in self._rows.unbind(0)
        ]

    def _exchange(
        self, number: int, output: torch.Tensor, whole: torch.Tensor, group: dist.ProcessGroup
    ) -> None:
        said = [
            torch.zeros(2, dtype=torch.int64, device=host.LOCATION) for _ in range(group.size())
        ]
        dist.all_gather(
            said, torch.tensor([number, whole.numel()], device=host.LOCATION), group=group
        )
        if len({tuple(one.tolist()) for one in said}) > 1:
            raise UsageError(
                "a sharded parameter was used in one micro-batch and not in another that was "
                "computed at the same time; use every parameter in each, or leave that part of "
                "the model out of fully_shard"
            )
        if (factor := self._factor()) != 1.0:
            whole.mul_(factor)
        rows = torch.empty_like(whole)
        dist.all_to_all_single(rows, whole, group=group)
        rows = rows.view(group.size(), -1)
        output.copy_(rows[group.rank()])
        self._rows, self._sum = rows, output

    def _reduce_scatter(self, number: int) -> Any:
        from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

        exchange = self._exchange

        class SlotReduceScatter(ReduceScatter):
            """Keeps every slot's part by itself."""

            def allocate(
                self, size: Any, *, dtype: torch.dtype, device: torch.device
            ) -> torch.Tensor:
                return torch.empty(*size, dtype=dtype, device=device)

            def __call__(
                self,
                output_tensor: torch.Tensor,
                input_tensor: torch.Tensor,
                group: dist.ProcessGroup,
                op: Any,
                async_op: bool = False,
            ) -> None:
                del op, async_op
                exchange(number, output_tensor, input_tensor, group)

        return SlotReduceScatter()


def refuse_others(model: torch.nn.Module, sharded: Iterable[str]) -> None:
    """Refuse parameters that are sharded over those who compute different slots, but not by FSDP.

    Raises:
        ConfigError: names one.
    """
    groups = [group for module in sharding_modules(model) for group in groups_of(module)]
    own = {id(one.sharded_param) for group in groups for one in group.fsdp_params}
    for name in sharded:
        if id(model.get_parameter(name)) not in own:
            raise ConfigError(
                f'parameter {name!r} is sharded over mesh["shard"] and not by fully_shard; workers '
                "compute different micro-batches there, so give parallelize_module another "
                'dimension: mesh["tp"]'
            )


def _is_in(part: torch.Tensor, memory: torch.Tensor) -> bool:
    """Whether a tensor is a part of another one's memory."""
    return host.storage_of(part) == host.storage_of(memory)


def _why_not(gradient: torch.Tensor, rows: torch.Tensor | None) -> str:
    """Return why a gradient is not what FSDP has given."""
    if rows is not None and rows.dtype != gradient.dtype:
        return (
            "the gradients of a sharded parameter were cast after they were reduced; say "
            "MixedPrecisionPolicy(reduce_dtype=torch.float32) for fully_shard"
        )
    return (
        "the loss of a micro-batch goes back to a sharded parameter by another way than the "
        "forward of its module, as a penalty on weights does; compute that in the forward of the "
        "module that fully_shard was given, or use weight_decay= of the optimizer"
    )


def _refuse_kinds(name: str, module: Any) -> None:
    """Refuse what FSDP2 can do and this cannot follow."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo, FSDPMeshInfo

    for group in groups_of(module):
        if isinstance(group.mesh_info, DDPMeshInfo):
            is_sharded_too = isinstance(group.mesh_info, FSDPMeshInfo)
            what = "sharded over a mesh of two dimensions" if is_sharded_too else "under replicate"
            raise ConfigError(
                f"{name!r} is {what}, which adds up copies by itself; give fully_shard one "
                'dimension, mesh["shard"]: pliant has the copies, its replicas'
            )
        if any(parameter.offload_to_cpu for parameter in group.fsdp_params):
            raise ConfigError(
                f"{name!r} has a CPUOffloadPolicy, which is not possible; leave it out"
            )


OWN_ADDERS = ("DefaultReduceScatter", "ProcessGroupAllocReduceScatter", "SlotReduceScatter")
"""Who adds up where the script has no class of its own: FSDP itself, or an earlier session."""


class FsdpSettings:
    """Of one model, as they are when this is made; ``check`` before each backward."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Look at them."""
        self._groups = [
            (name, module, group, group._reduce_scatter_comm)  # noqa: SLF001  see the module's text
            for name, module, group in _named_groups(model)
        ]

    def on_loss(self, loss: object) -> None:
        """Make sure that no gradient is kept back or changed.

        Raises:
            UsageError: names the module, and what it was told.
        """
        for name, module, group, adder in self._groups:
            if said := _told(module, group, adder):
                raise UsageError(_sentence(name, said))


def refuse_told(model: torch.nn.Module) -> None:
    """Refuse a model that was told so before there is a session.

    Raises:
        ConfigError: names the module, and what it was told.
    """
    for name, module, group in _named_groups(model):
        if said := _told(module, group, None):
            raise ConfigError(_sentence(name, said))


def groups_of(module: Any) -> list[Any]:
    """Return what FSDP does together of a module that it shards: a group for each mesh."""
    state = module._get_fsdp_state()  # noqa: SLF001  see the module's text
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)  # noqa: SLF001
    group = state._fsdp_param_group  # noqa: SLF001  of a torch that has one at most
    return [] if group is None else [group]


def _named_groups(model: torch.nn.Module) -> Iterator[tuple[str, Any, Any]]:
    sharding = set(sharding_modules(model))
    for name, module in model.named_modules():
        for group in groups_of(module) if module in sharding else ():
            yield name or "the model", module, group


def _told(module: Any, group: Any, adder: object) -> str:
    """Return what a group was told that is refused; ``adder``: who adds up, None: FSDP itself."""
    if not group.reduce_grads:
        return "set_requires_gradient_sync(False)"
    backward = module._get_fsdp_state()._state_ctx  # noqa: SLF001  see the module's text
    if getattr(backward, "manual_backward_finalization", False):  # torch 2.11 has none
        return "set_manual_backward_finalization(True)"
    if group.gradient_divide_factor not in (None, 1.0):
        return f"set_gradient_divide_factor({group.gradient_divide_factor:g})"
    now = group._reduce_scatter_comm  # noqa: SLF001  see the module's text
    is_own = type(now).__name__ in OWN_ADDERS if adder is None else now is adder
    return "" if is_own else "set_custom_reduce_scatter(...)"


def _sentence(name: str, said: str) -> str:
    return (
        f"{name!r} was told {said}, and so would have another gradient of a micro-batch; leave it "
        "out: the session adds up micro-batches by itself, and weighs them by "
        "step.backward(loss, weight=...)"
    )
