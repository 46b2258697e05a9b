"""FSDP: the gradients of ``fully_shard``, slot by slot, before anybody has added them.

Owns what of FSDP2 is private, and nothing else knows: the base class of a custom reduce-scatter.
Seen to work with torch 2.11 and 2.15 (``tests/engine/sharding/test_fsdp.py``).  Must not know the
order of slots, sums, or replicas.

    backward of FSDP  --whole gradients of this worker's slot-->  all-to-all
        every worker: its own shard, of each worker's slot  -->  leaves_of(a parameter's gradient)

FSDP itself would add the slots in an order that depends on how many workers there are.  The leaves
are divided by nothing: weights are applied by the worker whose slot it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from pliant.core.errors import ConfigError, UsageError
from pliant.engine.device import host
from pliant.engine.local_tensors import local_of, sharding_modules
from pliant.engine.sharding.device_mesh import is_over_shards
from pliant.engine.sharding.fsdp_settings import groups_of


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
        said = [torch.zeros(2, dtype=torch.int64) for _ in range(group.size())]
        dist.all_gather(said, torch.tensor([number, whole.numel()]), group=group)
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
