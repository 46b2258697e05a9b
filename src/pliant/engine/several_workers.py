"""Workers: what a session of a replica of several workers is made of beside the usual.

Owns which membership a worker gets, by its place, and the refusal of what a replica of several
workers cannot do.  Must not know how any of it does its work.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import torch

from pliant.core.errors import ConfigError
from pliant.core.step.balance import Balance
from pliant.engine.local_tensors import is_sharded
from pliant.engine.member.follower_membership import FollowerMembership
from pliant.engine.member.followers import wait_to_be_ended
from pliant.engine.member.formed import Shape
from pliant.engine.member.membership_port import TrainingCallbacks
from pliant.engine.member.replica_workers import OF_THE_MODEL, ReplicaWorkers
from pliant.engine.reduce.accumulate import GradientSums
from pliant.engine.reduce.buckets import Layout
from pliant.engine.settings import SessionSettings, UserObjects
from pliant.engine.sharding.device_mesh import (
    is_first_of_shard,
    is_over_mesh,
    is_over_shards,
    made_mesh,
    shard_group,
    stage_of,
)
from pliant.engine.sharding.fsdp import SlotGradients, refuse_others, refuse_told
from pliant.engine.sharding.shard_sums import LeafExchange
from pliant.engine.sharding.stages import Stages
from pliant.engine.worker.bootstrap import WorkerContext

LOST_S = 2.0
"""How long an error waits for the news that another worker has gone, of which it may only follow:
the kernel closes the sockets of a process one after the other."""


def num_workers(context: WorkerContext | None) -> int:
    """Return how many workers a replica has."""
    return 1 if context is None else context.assignment.workers_per_replica


def is_follower(context: WorkerContext | None) -> bool:
    """Whether this worker is one of several, and not the one that speaks for them."""
    return context is not None and context.assignment.place > 0


def check_possible(
    context: WorkerContext | None,
    objects: UserObjects,
    *,
    has_local: bool,
) -> None:
    """Refuse what replicas of several workers cannot do.

    Raises:
        ConfigError: says what to change.
    """
    _check_shards(objects)
    refuse_told(objects.model)
    count = num_workers(context)
    if count == 1:
        return
    if made_mesh() is None:
        raise ConfigError(
            f"a replica of this job has {count} workers, and the script has not said what each is "
            f"for; call pliant.mesh(shard={count}) before the session is made"
        )
    if has_local:
        raise ConfigError(
            f'buffers={{...: "local"}} with {count} workers per replica is not possible: the '
            "workers would have different ones; leave out one of the two"
        )


def check_stages(stages: Stages, objects: UserObjects, *, is_durable: bool) -> None:
    """Refuse what cannot be done with a model of which each worker has a stage.

    Raises:
        ConfigError: says what to change.
    """
    if not stages.is_several:
        return
    if objects.scaler is not None:
        raise ConfigError(
            "scaler= with a model in stages (pliant.mesh(pp=...)) is not possible: the schedule "
            "computes the loss by itself; use bfloat16, which needs no scaler"
        )
    if not is_durable:
        return
    everybodys = stages.gather_texts(json.dumps(list(objects.model.state_dict())))
    names = Counter(name for one in everybodys for name in json.loads(one))
    if double := [name for name, count in names.items() if count > 1]:
        raise ConfigError(
            f"two stages of the model have {double[0]!r}, and a checkpoint has one; give the "
            "layers of each stage the names that they have in the whole model, or leave out "
            "checkpoint="
        )


def _check_shards(objects: UserObjects) -> None:
    """Refuse what cannot be done with parameters of which each worker has a part."""
    for name, module in objects.model.named_modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ConfigError(
                f"{name or 'the model'!r} is wrapped in FullyShardedDataParallel; use fully_shard "
                'of torch.distributed.fsdp, with mesh["shard"] of pliant.mesh'
            )
    sharded = {n: p for n, p in objects.model.named_parameters() if is_sharded(p)}
    for name, parameter in sharded.items():
        if not is_over_mesh(parameter):
            raise ConfigError(
                f"parameter {name!r} is sharded over a mesh that is not this replica's; give "
                'fully_shard and parallelize_module a part of pliant.mesh: mesh=mesh["shard"]'
            )
        if getattr(parameter, "_backward_hooks", None) and is_over_shards(parameter):
            raise ConfigError(
                f"parameter {name!r} is under fully_shard, which calls no hooks on its gradient "
                "(register_hook); leave the hook out, or that part of the model out of fully_shard"
            )
    if not sharded:
        return
    first = next(iter(sharded))
    if any(one.defaults.get("fused") for one in objects.optimizers):
        raise ConfigError(
            f"fused=True with sharded parameters ({first!r} is one) is not possible: its bits "
            "depend on where in memory a value lies; leave it out"
        )


def shape_of(context: WorkerContext | None, settings: SessionSettings, layout: Layout) -> Shape:
    """Return what of a session is the same in all its generations."""
    found = made_mesh() if num_workers(context) > 1 else None
    group = None if found is None else shard_group(found)
    return Shape(
        num_slots=settings.num_slots,
        layout=layout,
        is_exact=settings.reduction == "exact",
        balance=Balance.EVEN if context is None else context.assignment.work.balance,
        at_once=1 if group is None else group.size(),
    )


def leaf_exchange(layout: Layout, model: torch.nn.Module, sums: GradientSums) -> LeafExchange:
    """Return what the workers of this replica exchange leaves with."""
    found = made_mesh()
    if found is None:
        raise AssertionError("check_possible has let it pass")
    group = shard_group(found)
    sharded: list[str] = []
    if group is not None:
        sharded = [name for name, one in model.named_parameters() if is_over_shards(one)]
    if sharded:
        refuse_others(model, sharded)
        gradients = SlotGradients(lambda: sums.factor)
        gradients.install(model)
        sums.take_apart(gradients.leaves_of)
    return LeafExchange(layout, group, is_first_of_shard=is_first_of_shard(found), sharded=sharded)


Identity = tuple[tuple[str, str], ...]


def traits(model: torch.nn.Module, identity: Identity) -> Identity:
    """Return what every worker of a replica must have alike; sizes are of whole tensors."""
    of_parameter, of_buffer = OF_THE_MODEL
    parameters = [(f"{of_parameter}{name!r}", one) for name, one in model.named_parameters()]
    buffers = [(f"{of_buffer}{name!r}", one) for name, one in model.named_buffers()]
    tensors = [
        (name, f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}")
        for name, one in (*parameters, *buffers)
    ]
    return (*identity, *tensors)


def followers_of(
    context: WorkerContext, model: torch.nn.Module, identity: Identity
) -> ReplicaWorkers | None:
    """Return the other workers of this replica; None if it is the only one."""
    assignment = context.assignment
    if assignment.workers_per_replica == 1:
        return None
    return ReplicaWorkers(
        Path(assignment.inner),
        assignment.workers_per_replica,
        traits=traits(model, identity),
        within_s=assignment.work.session_s,
        stage_of=stage_of,
    )


def await_end_if(lost: threading.Event) -> None:
    """Wait for the agent to end this process, if another worker of its replica has gone."""
    if lost.wait(LOST_S):
        wait_to_be_ended("another worker of this replica has ended")


def follow(
    context: WorkerContext,
    shape: Shape,
    callbacks: TrainingCallbacks,
    model: torch.nn.Module,
    identity: Identity,
) -> FollowerMembership:
    """Return the membership of a worker that follows worker 0."""
    assignment = context.assignment
    return FollowerMembership(
        context,
        shape,
        callbacks,
        Path(assignment.inner),
        traits=traits(model, identity),
        within_s=assignment.work.session_s,
    )
