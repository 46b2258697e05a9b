"""Stages: the parts of one model on several workers of a replica, as torch pipelines them.

Owns what a schedule of ``torch.distributed.pipelining`` gives, and what the workers of a pipeline
have to say to each other beside it.  Must not know slots' order, sums or replicas.

    stage 0   forward 0 1 2 3  ........  backward 0 1 2 3    its gradients lie in ``.grad``
    stage 1     forward 0 1 2 3  backward 0 1 2 3            so do its own, and the losses here

A schedule cuts one micro-batch of the session into chunks and adds their gradients up, in an order
of its own that is the same each time: so a slot has the same bits on every replica.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch.utils._pytree import tree_leaves, tree_map_only

from pliant.core.errors import UsageError
from pliant.engine.device import host

Shapes = tuple[tuple[int, ...], ...]
"""Of the tensors that a schedule is given for its first stage."""


class Stages:
    """The workers that have the stages of one pipeline; every one of them makes each call."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """``group``: of these workers; None: this one has the whole model."""
        self._group: Any = group
        self.is_several = group is not None
        self.coordinates: tuple[int, ...] = () if group is None else (group.rank(),)
        """Which stage this worker has; empty: all."""
        self._shapes: Shapes | None = None

    def refuse_backward(self) -> None:
        """Refuse a backward of this worker's stage alone.

        Raises:
            UsageError: there are others.
        """
        if self.is_several:
            raise UsageError(
                "step.backward was called, and this worker has one stage of the model; call "
                "step.pipeline(schedule, inputs, target=...), which runs all of them"
            )

    def check_shapes(self, shapes: Shapes) -> None:
        """Make sure that a micro-batch has the shapes of the first one.

        Memory to receive in is made for those: of a smaller tensor the rest would be what was there
        before, and a larger one ends the process.

        Raises:
            UsageError: it has others.
        """
        if self._shapes is None:
            self._shapes = shapes
        if self.is_several and shapes != self._shapes:
            here, there = (", ".join(map(str, map(list, one))) for one in (shapes, self._shapes))
            raise UsageError(
                f"step.pipeline was given tensors of the shapes {here}, and of {there} before; "
                "torch sends tensors of one shape from stage to stage, so say drop_last=True "
                "where the data does not divide"
            )

    def agree(self, loss: float | None, weight: float) -> tuple[float, float]:
        """Return loss and weight as the worker says that has the loss.

        Raises:
            UsageError: nobody has.
        """
        row = [0.0, 0.0, 0.0] if loss is None else [1.0, loss, weight]
        for has_loss, its_loss, its_weight in self._gathered(
            torch.tensor(row, device=host.LOCATION).double()
        ).tolist():
            if has_loss:
                return its_loss, its_weight
        raise UsageError(
            "step.pipeline: the schedule has given no loss on any worker; make it with "
            "loss_fn=..., and say target=..."
        )

    def joint_norm(self, norm: torch.Tensor) -> torch.Tensor:
        """Return the norm of what has these norms on the stages."""
        if not self.is_several:
            return norm
        # Their parameters may be of different types, and so their norms.
        norms = self._gathered(norm.reshape(1).double())
        joint: torch.Tensor = torch.linalg.vector_norm(norms, 2.0)
        return joint

    def joint_digest(self, digest: str) -> str:
        """Return one digest for those of all stages."""
        if not self.is_several:
            return digest
        rows = self._gathered(host.tensor_of(bytearray.fromhex(digest)))
        return xxhash.xxh3_128_hexdigest(bytes(host.bytes_of(rows)))

    def any_has(self, flag: bool) -> bool:
        """Return whether it is true on any stage."""
        return bool(self._gathered(torch.tensor(int(flag), device=host.LOCATION)).any())

    def gather_texts(self, text: str) -> list[str]:
        """Return what each stage says."""
        said = host.tensor_of(bytearray(text.encode()))
        sizes = self._gathered(torch.tensor(said.numel(), device=host.LOCATION)).tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device=host.LOCATION)
        padded[: said.numel()] = said
        rows = self._gathered(padded)
        return [
            bytes(host.bytes_of(row[:size])).decode()
            for row, size in zip(rows.unbind(0), sizes, strict=True)
        ]

    def bring_to_first(
        self, stage: int, whole: torch.Tensor | None, dtype: torch.dtype, shape: Sequence[int]
    ) -> torch.Tensor | None:
        """Return a tensor of one stage to the worker with the first, None to the others.

        ``whole``: on that stage; it has this type and shape.
        """
        if not self.is_several:
            return whole
        is_first = self._group.rank() == 0
        if stage == 0 or not math.prod(shape):
            return (
                torch.empty(tuple(shape), dtype=dtype, device=host.LOCATION)
                if is_first and whole is None
                else whole
            )
        if whole is not None:
            flat = host.copy_of(whole).contiguous().reshape(-1).view(torch.uint8)
            dist.send(flat, group=self._group, group_dst=0)
            return None
        if not is_first:
            return None
        received = torch.empty(tuple(shape), dtype=dtype, device=host.LOCATION)
        dist.recv(received.reshape(-1).view(torch.uint8), group=self._group, group_src=stage)
        return received

    def _gathered(self, values: torch.Tensor) -> torch.Tensor:
        """Return what each has, as rows by stage."""
        if not self.is_several:
            return values.unsqueeze(0)
        rows = [torch.empty_like(values) for _ in range(self._group.size())]
        dist.all_gather(rows, values, group=self._group)
        return torch.stack(rows)


def shapes_of(args: tuple[Any, ...]) -> Shapes:
    """Return the shapes of all tensors that a schedule is given to put into its first stage."""
    return tuple(tuple(one.shape) for one in tree_leaves(args) if isinstance(one, torch.Tensor))


def run_schedule(schedule: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> float | None:
    """Run one iteration of a schedule; return the loss if this worker has it.

    Raises:
        UsageError: it is no schedule, or cuts into more chunks than the tensors divide into.
    """
    if not callable(getattr(schedule, "step", None)) or not hasattr(schedule, "scale_grads"):
        raise UsageError(
            "step.pipeline takes a schedule of torch.distributed.pipelining, such as "
            f"Schedule1F1B, got {type(schedule).__name__}"
        )
    # Private to torch; a schedule that does not have it finds out by itself, and later.
    count = getattr(schedule, "_n_microbatches", 1)
    for shape in shapes_of((args, dict(options))):
        if shape and shape[0] % count:
            raise UsageError(
                f"step.pipeline was given a tensor of the shape {list(shape)}, which the {count} "
                f"chunks of the schedule do not divide; choose a micro_batch_size that they do and "
                "drop_last=True"
            )
    losses: list[torch.Tensor] = options.get("losses", [])
    # torch 2.11 refuses slices of a batch, whose strides are not those that it has reckoned with.
    given = tree_map_only(torch.Tensor, torch.Tensor.contiguous, args)
    firsts = given if _has_first_stage(schedule) else ()
    schedule.step(*firsts, **{**options, "losses": losses})
    if not losses:
        return None
    together = torch.stack([loss.detach() for loss in losses])
    return float(together.mean() if schedule.scale_grads else together.sum())


def _has_first_stage(schedule: Any) -> bool:
    """Whether positional inputs are for this worker; torch 2.11 refuses them on any other."""
    # Private to torch, by both names; a schedule with neither is given them, as it always was.
    stages = [*getattr(schedule, "_stages", ()), getattr(schedule, "_stage", None)]
    known = [stage for stage in stages if stage is not None]
    return not known or any(stage.is_first for stage in known)
