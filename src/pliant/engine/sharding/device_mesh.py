"""Device mesh: the workers of this replica as PyTorch's own modules want them.

Owns ``pliant.mesh`` and the process group inside a replica.  Must not know what is sharded over the
mesh, nor other replicas.

The group and its store know no secret.  The store is a file in the private directory of the replica
or, over several hosts, reached through a socket there (``meeting_store``).  The sockets listen on
the loopback interface only; over several hosts on the one interface that has the address of this
one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pliant.core.errors import ConfigError
from pliant.engine.device import host
from pliant.engine.local_tensors import is_sharded
from pliant.engine.member.rendezvous_store import MeetingStore, RemoteStore, StoreServer
from pliant.engine.sharding import whole_draws
from pliant.engine.worker import own_device
from pliant.engine.worker.bootstrap import WorkerContext, worker_context
from pliant.engine.worker.refusals_alone import tell_in_a_sentence
from pliant.machine.interfaces import INTERFACE, interface_of
from pliant.wire.launch import STORE_SOCKET, Assignment

SHARD = "shard"
"""The dimension over which workers compute different slots."""

STAGES = "pp"
"""The dimension over which each worker has another stage of the model."""

DIMENSIONS = (SHARD, "tp", STAGES)
"""What a mesh may be larger than 1 in: over others, gradients would have to be added up as well."""

COPIES = ("replicate", "dp_replicate")
"""What HSDP calls the dimension of its copies of the model."""

PATIENCE = timedelta(days=7)
"""How long a collective inside a replica waits for the other workers: longer than anybody is busy
by his own word, for a worker that hangs is found by supervision, which names it."""

_made: DeviceMesh | None = None
"""Of this process, which has one."""

_kept: list[Store] = []
"""The store of its group: PyTorch itself keeps only what is C++ of it."""


def mesh(device: torch.device | str | None = None, /, **sizes: int) -> DeviceMesh:
    """Return a mesh over the workers of this replica: ``pliant.mesh(shard=2, tp=2)``.

    For ``fully_shard``, ``parallelize_module`` and the like.  Over ``shard`` the workers compute
    different micro-batches, over every other dimension the same.  Before the session is made; a
    second call returns the same mesh.  Alone, ``shard`` is 1 whatever is asked for: the bits of a
    run do not depend on it.

    Args:
        device: on whose kind the model is; None: ``pliant.device()``.
        sizes: of the dimensions ``shard``, ``tp`` and ``pp``; their product is the number of
            workers.

    Raises:
        ConfigError: the sizes do not multiply to the workers of a replica, or this worker has no
            such device.
    """
    global _made  # a process group is the process's
    tell_in_a_sentence()
    context = worker_context()
    shape = _shape(sizes, context)
    names = tuple(shape)
    if _made is not None:
        if (_made.mesh_dim_names, tuple(_made.mesh.shape)) != (names, tuple(shape.values())):
            raise ConfigError(
                "pliant.mesh was called twice with different sizes; a replica has one"
            )
        return _made
    where = _device_of(device)
    kind = where.type
    if math.prod(shape.values()) > 1 and where.index is not None:
        torch.accelerator.set_device_index(where.index)  # of a mesh torch knows the kind only
    _connect(context, kind)
    made = init_device_mesh(kind, tuple(shape.values()), mesh_dim_names=names)
    for group in made.get_all_groups():
        group.set_timeout(PATIENCE)
    if made.size() > 1:
        whole_draws.install()
    _made = made
    return made


def made_mesh() -> DeviceMesh | None:
    """Return the mesh that the script has made, if it has."""
    return _made


def mesh_identity() -> tuple[tuple[str, str], ...]:
    """Return what of the mesh is a part of the identity of a run: all but ``shard``."""
    if _made is None:
        return ()
    sizes = zip(_made.mesh_dim_names or (), _made.mesh.shape, strict=True)
    others = [f"{name}={size}" for name, size in sizes if name != SHARD and size > 1]
    return (("mesh", ", ".join(others)),) if others else ()


def coordinates() -> dict[str, int]:
    """Return where in the mesh this worker is among those of its stage, by dimension."""
    if _made is None:
        return {}
    found = zip(_made.mesh_dim_names or (), _made.get_coordinate() or (), strict=True)
    return {name: at for name, at in found if name != STAGES}


def shard_group(found: DeviceMesh) -> dist.ProcessGroup | None:
    """Return the group of those who compute different slots; None if all compute the same."""
    if SHARD not in (found.mesh_dim_names or ()) or found[SHARD].size() == 1:
        return None
    return found[SHARD].get_group()


def stages_group() -> dist.ProcessGroup | None:
    """Return the group of those who have the other stages of this worker's pipeline, if any do."""
    if _made is None or STAGES not in (_made.mesh_dim_names or ()) or _made[STAGES].size() == 1:
        return None
    return _made[STAGES].get_group()


def stage_of(place: int) -> int:
    """Return which stage of a pipeline the worker at a place has; 0 if there is but one."""
    names = () if _made is None else _made.mesh_dim_names or ()
    if _made is None or STAGES not in names:
        return 0
    return int((_made.mesh == place).nonzero()[0][names.index(STAGES)])


def is_over_shards(tensor: object) -> bool:
    """Whether the workers that compute different slots have different parts of it."""
    sharded: Any = tensor
    return is_sharded(tensor) and SHARD in (sharded.device_mesh.mesh_dim_names or ())


def is_over_mesh(tensor: torch.Tensor) -> bool:
    """Whether a sharded tensor is sharded over the workers of this replica."""
    sharded: Any = tensor
    names = sharded.device_mesh.mesh_dim_names or ()
    is_own = _made is not None and set(names) <= set(_made.mesh_dim_names or ())
    return (is_own and bool(names)) or sharded.device_mesh.size() == 1


def is_first_of_shard(found: DeviceMesh) -> bool:
    """Whether this worker is the first of those who compute the same slots."""
    coordinate: Sequence[int] = found.get_coordinate() or ()
    names = found.mesh_dim_names or ()
    return not any(at for name, at in zip(names, coordinate, strict=True) if name != SHARD)


def _device_of(wanted: torch.device | str | None) -> torch.device:
    """Return this worker's device of the kind that is wanted; None: its own."""
    kind = None if wanted is None else torch.device(wanted).type
    if kind == host.LOCATION:
        return torch.device(kind)
    own = own_device.device()
    if kind not in (None, own.type):
        raise ConfigError(
            f"pliant.mesh({wanted!s}, ...) asks for another kind of device than pliant.device(), "
            f"which is {own}; leave the device out"
        )
    return own


def _shape(sizes: dict[str, int], context: WorkerContext | None) -> dict[str, int]:
    """Return the size of each dimension, checked."""
    if not sizes:
        raise ConfigError("pliant.mesh() takes the size of each dimension: pliant.mesh(shard=2)")
    said = ", ".join(f"{name}={size}" for name, size in sizes.items())
    for size in sizes.values():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"pliant.mesh({said}): every size is an integer of at least 1")
    _refuse_names(said, sizes)
    count = math.prod(sizes.values())
    if context is None:
        if any(size > 1 for name, size in sizes.items() if name != SHARD):
            raise ConfigError(
                f"pliant.mesh({said}) needs {count} workers, and a script that runs alone is one: "
                f"pliant run --workers-per-replica {count} ..."
            )
        return dict.fromkeys(sizes, 1)
    workers = context.assignment.workers_per_replica
    if count != workers:
        raise ConfigError(
            f"pliant.mesh({said}) is of {count} workers, and a replica of this job has {workers}; "
            f"say other sizes, or --workers-per-replica {count}"
        )
    return dict(sizes)


def _refuse_names(said: str, sizes: dict[str, int]) -> None:
    """Refuse dimensions over which gradients would have to be added up as well."""
    if sizes.get("cp", 1) > 1:
        raise ConfigError(
            f"pliant.mesh({said}): context parallelism is not possible on the CPU, for which "
            "PyTorch's context_parallel has no attention; the dimensions of a mesh are shard, tp "
            "and pp"
        )
    if copies := next((name for name in COPIES if sizes.get(name, 1) > 1), ""):
        raise ConfigError(
            f"pliant.mesh({said}): {copies!r} would be copies of the model, and those are the "
            "replicas of the job; leave it out, and say how many with --max"
        )
    other = next((n for n, size in sizes.items() if size > 1 and n not in DIMENSIONS), None)
    if other is not None:
        raise ConfigError(
            f"pliant.mesh({said}): {other!r} is not possible yet; the dimensions of a mesh are "
            "shard, tp and pp"
        )


def _connect(context: WorkerContext | None, kind: str) -> None:
    """Make the process group of this replica, unless there is one; on an accelerator of a kind.

    Tensors in host memory travel by gloo there, too: what the workers tell each other is small, and
    nobody waits for the device to read it.
    """
    if dist.is_initialized():
        return
    place, workers, interface = 0, 1, INTERFACE
    store: Store = HashStore()
    if context is not None and context.assignment.workers_per_replica > 1:
        place, workers = context.assignment.place, context.assignment.workers_per_replica
        store = _store(context.assignment)
        _kept.append(store)
        if context.assignment.work.hosts_per_replica > 1:
            interface = interface_of(context.assignment.address)
    os.putenv("GLOO_SOCKET_IFNAME", interface)  # read by gloo itself, for each group anew
    backend = "gloo"
    if kind != host.LOCATION:
        backend = f"{host.LOCATION}:gloo,{kind}:{dist.get_default_backend_for_device(kind)}"
    dist.init_process_group(backend, store=store, rank=place, world_size=workers, timeout=PATIENCE)


def _store(own: Assignment) -> Store:
    """Return the store of a replica of several workers; it lasts as long as this process."""
    directory = Path(own.inner)
    if own.work.hosts_per_replica == 1:
        return FileStore(str(directory / STORE_SOCKET), own.workers_per_replica)
    if own.place == 0:
        return MeetingStore(StoreServer(directory).answer)
    return MeetingStore(RemoteStore(directory, own.work.session_s).ask)
