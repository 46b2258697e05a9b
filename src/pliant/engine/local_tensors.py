"""Local tensors: of a tensor that is sharded over the workers of a replica, what lies here.

Owns the step from PyTorch's DTensor to the memory of this worker and back, and what can be said of
a whole tensor only by all workers together.  Must not know parameters' meaning, replicas or steps.

Everything between replicas works on local tensors: gradients, state, digests that are compared.
A tensor that is not sharded is its own local tensor.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pliant.core.errors import ConfigError
from pliant.engine.device import host

_MODULE = "torch.distributed.tensor"
"""Imported by whoever shards: as long as nobody has, nothing is sharded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """Which part of a tensor lies here: a box of the whole."""

    shape: tuple[int, ...]
    """Of the whole tensor."""

    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    is_first: bool = True
    """Whether this worker is the first of those in its replica that have this part."""


def is_sharded(tensor: object) -> bool:
    """Whether it is a DTensor."""
    return is_sharded_type(type(tensor))


def is_sharded_type(kind: type) -> bool:
    """Whether tensors of this type are DTensors."""
    module: Any = sys.modules.get(_MODULE)
    return module is not None and issubclass(kind, getattr(module, "DTensor", ()))


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that lies here, without its graph; its memory is the tensor's."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():
        local: torch.Tensor = sharded.to_local()
        return local.detach()


def part_of(tensor: torch.Tensor, coordinates: Mapping[str, int]) -> TensorPart | None:
    """Return which part of a tensor lies here; None if every worker has the whole.

    ``coordinates``: of this worker in its replica's mesh, by dimension.

    Raises:
        ConfigError: what lies here is no box of it.
    """
    if not is_sharded(tensor):
        return None
    sharded: Any = tensor
    mesh = sharded.device_mesh
    sizes = zip(mesh.mesh_dim_names, sharded.placements, mesh.shape, strict=True)
    divided = {name for name, placed, size in sizes if size > 1 and not placed.is_replicate()}
    if not divided:
        return None
    _check_boxes(sharded)
    (chunk,) = sharded.__create_chunk_list__()
    return TensorPart(
        shape=tuple(sharded.shape),
        begins=tuple(chunk.offsets),
        sizes=tuple(chunk.sizes),
        is_first=not any(at for name, at in coordinates.items() if name not in divided),
    )


def _check_boxes(sharded: Any) -> None:
    """Refuse a tensor that two dimensions of the mesh divide unevenly along one of its own."""
    sizes: dict[int, list[int]] = {}
    for placement, size in zip(sharded.placements, sharded.device_mesh.shape, strict=True):
        if not placement.is_replicate():
            sizes.setdefault(placement.dim, []).append(size)
    for dim, counts in sizes.items():
        count, length = math.prod(counts), sharded.shape[dim]
        if len(counts) == 1 or not length % count:
            continue
        raise ConfigError(
            f"a parameter of shape {list(sharded.shape)} is sharded over {count} workers by two "
            f"dimensions of the mesh, which do not divide {length}; its parts are no boxes, "
            "as a checkpoint keeps them, so choose sizes that divide it, or leave out checkpoint= "
            "and --init"
        )


def cut_like(whole: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of what would lie here of ``whole``, if that were sharded as ``tensor`` is.

    Itself if that is not sharded.

    Raises:
        ConfigError: what lies here is no box of it.
    """
    if not is_sharded(tensor):
        return whole
    if (part := part_of(tensor, {})) is not None:
        box = zip(part.begins, part.sizes, strict=True)
        whole = whole[tuple(slice(begin, begin + size) for begin, size in box)]
    return sharded_like(whole.clone(memory_format=torch.contiguous_format), tensor)


def sharded_like(local: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that is sharded as ``tensor`` is, and of which ``local`` lies here."""
    if not is_sharded(tensor):
        return local
    like: Any = tensor
    made: torch.Tensor = type(like.detach()).from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return made


def local_gradient(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return the part that lies here of a gradient, sharded as its parameter is."""
    if not is_sharded(gradient):
        return gradient
    found, like = gradient.detach(), parameter
    placed: Any = found
    wanted: Any = like
    if placed.placements != wanted.placements:
        placed = placed.redistribute(wanted.device_mesh, wanted.placements)
    return local_of(placed)


def whole_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor; every worker over which it is sharded must call."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():
        whole: torch.Tensor = sharded.detach().full_tensor()
        return whole


def total_norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all of these, as ``torch.nn.utils.get_total_norm`` has it of whole ones.

    One after the other each is made whole, so the bits are those of a model that is not sharded;
    every worker of the replica must call.  Torch takes those of several devices in another order.
    """
    if len({tensor.device for tensor in tensors}) < 2 and not any(map(is_sharded, tensors)):
        return torch.nn.utils.get_total_norm(list(tensors))
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        norm = torch.linalg.vector_norm(whole_of(tensor), 2.0).to(tensors[0].device)
        by_dtype.setdefault(tensor.dtype, []).append(norm)
    norms = [norm for same in by_dtype.values() for norm in same]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), 2.0)
    return total


def clip_by_norm(
    tensors: Iterable[torch.Tensor], max_norm: float, norm: torch.Tensor, factor: float = 1.0
) -> None:
    """Scale gradients in place as ``torch.nn.utils.clip_grads_with_norm_`` does.

    ``factor``: by which they are to be multiplied, too; the norm is that of the product.
    """
    by = torch.clamp(max_norm / (norm + 1e-6), max=1.0) * factor
    for tensor in tensors:
        local = local_of(tensor)
        local.mul_(by.to(local.device))


def all_agree(flag: bool) -> bool:
    """Return whether it is true on every worker of this replica; each must call."""
    votes = torch.tensor([int(flag)], device=host.LOCATION)
    dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return bool(votes.item())


def sharding_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return those modules of a model that shard their parameters by FSDP2."""
    module: Any = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(module, "FSDPModule", None)
    return [] if kind is None else [part for part in model.modules() if isinstance(part, kind)]


def reshard(modules: Iterable[torch.nn.Module]) -> None:
    """Let the parameters of these be sharded again: an evaluation leaves some whole."""
    for module in modules:
        part: Any = module
        part.reshard()
