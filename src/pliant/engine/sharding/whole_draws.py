"""Whole draws: random numbers for a sharded tensor are those that the whole one would get.

Owns that one rule, and what of DTensor is private for it: the table of its operations.  Seen to
work with torch 2.15 (``tests/engine/sharding/test_fsdp.py``).  Must not know whose tensors they
are.

On the CPU torch lets each worker fill its own part, all from the same seed, so all get the same
numbers, and on an accelerator from places of its own in the row of numbers: a model that is
initialised behind ``fully_shard`` (``to_empty``, then ``nn.init``) would
begin otherwise for each number of workers.  Here each draws for the whole tensor, one at a time,
and keeps its part.
"""

from __future__ import annotations

from typing import Any

import torch

from pliant.core.errors import UsageError
from pliant.engine.local_tensors import local_of, sharded_like

FILLS = (
    "normal_.default",
    "uniform_.default",
    "bernoulli_.float",
    "exponential_.default",
    "geometric_.default",
    "log_normal_.default",
)
"""Operations that fill a tensor, whatever it held, and that torch has for sharded ones."""

LIKES = (
    "rand_like.default",
    "randn_like.default",
    "randint_like.default",
    "randint_like.low_dtype",
)
"""Operations that make another tensor of the same shape."""

BY_VALUES = ("bernoulli.default", "native_dropout.default")
"""Operations that draw once for each number, whatever it is, and go by it."""

BY_MORE = ("rrelu_with_noise.default", "rrelu_with_noise_functional.default", "multinomial.default")
"""Operations whose draws for one number depend on the others."""


def install() -> None:
    """Draw whole from now on; a second call does nothing."""
    from torch.distributed.tensor import DTensor

    kind: Any = DTensor
    handlers = kind._op_dispatcher._custom_op_handlers  # noqa: SLF001  see the module's text
    tables = (FILLS, _fill), (LIKES, _make_like), (BY_VALUES, _draw_by_values), (BY_MORE, _refuse)
    for names, handler in tables:
        for name in names:
            packet, _, overload = name.partition(".")
            handlers[getattr(getattr(torch.ops.aten, packet), overload)] = handler


def _fill(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sharded, *others = args
    local = local_of(sharded)
    if local.is_meta or local.shape == sharded.shape:
        operation(local, *others, **kwargs)
    else:
        whole = _empty_whole(sharded)
        operation(whole, *others, **kwargs)
        local.copy_(_part(whole, sharded))
    return sharded


def _make_like(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sharded, *others = args
    made = operation(_empty_whole(sharded), *others, **kwargs)
    return sharded_like(_part(made, sharded), sharded)


def _draw_by_values(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Draw for the whole, of which the other parts hold anything: they are not kept."""
    sharded, *others = args
    local = local_of(sharded)
    if local.is_meta or local.shape == sharded.shape:
        made, keep = operation(local, *others, **kwargs), _itself
    else:
        made, keep = operation(_spread(local, sharded), *others, **kwargs), _part
    if isinstance(made, torch.Tensor):
        return sharded_like(keep(made, sharded), sharded)
    return tuple(sharded_like(keep(one, sharded), sharded) for one in made)


def _refuse(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    del args, kwargs
    name = str(operation).split(".")[1]
    raise UsageError(
        f"{name} of a sharded tensor draws according to the values of other workers: what it draws "
        "would depend on how many there are; use it on the whole tensor (full_tensor()) or before "
        "sharding"
    )


def _itself(whole: torch.Tensor, sharded: Any) -> torch.Tensor:
    del sharded
    return whole


def _spread(local: torch.Tensor, sharded: Any) -> torch.Tensor:
    """Return a whole tensor that has this part where it belongs."""
    size = torch.Size(sharded.shape)
    places = _part(torch.arange(size.numel(), device=local.device).reshape(size), sharded)
    flat = torch.zeros(size.numel(), dtype=local.dtype, device=local.device)
    flat[places.reshape(-1)] = local.detach().reshape(-1)
    return _empty_whole(sharded).copy_(flat.reshape(size))


def _empty_whole(sharded: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        sharded.shape, sharded.stride(), dtype=sharded.dtype, device=sharded.device
    )


def _part(whole: torch.Tensor, sharded: Any) -> torch.Tensor:
    """Return what would lie here of ``whole``, if that were sharded as the other is."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = sharded.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return local_of(everywhere.redistribute(mesh, sharded.placements)).clone()
