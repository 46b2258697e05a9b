"""Update: what a commit does to the model, from the reduced gradient on.

Owns everything between the reduced buckets and the next step's weights: root factor, unscaling,
clipping, optimizers, scaler, schedulers, and the rule that only this module may call
``optimizer.step``.  Must not know slots, replicas or when a step commits.  It runs on every
replica with the same bits and therefore gives the same bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import xxhash
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pliant.core.errors import UsageError
from pliant.engine.data.slots import Extras
from pliant.engine.device import here
from pliant.engine.local_tensors import (
    all_agree,
    clip_by_norm,
    is_sharded,
    local_of,
    sharded_like,
    total_norm,
)
from pliant.engine.reduce.buckets import Layout
from pliant.engine.sharding.shard_sums import refuse_shard_sums
from pliant.engine.sharding.stages import Stages
from pliant.engine.state.optimizer_state import OptimizerState, held, refuse_kept_gradients

Scheduler = LRScheduler | ReduceLROnPlateau

LOOKED_AT = 3
"""First updates after which optimizers are looked at: state is made in the first, and what an
optimizer remembers of its last gradient is there in the second."""

_TAKE_TURNS = "; how several take turns is in pliant docs bring-your-script, Alternating optimizers"

AS_CALLED = (
    "a session calls it without a closure, once the gradient is whole and has no graph; use an "
    "optimizer that needs neither, such as torch.optim.AdamW"
)


@dataclass(kw_only=True, eq=False)
class Update:
    """Applies one reduced gradient after another."""

    parameters: Mapping[str, torch.nn.Parameter]
    layout: Layout
    optimizers: Sequence[torch.optim.Optimizer]
    optimizer_states: Sequence[OptimizerState]
    """Of these optimizers and of those that they wrap."""
    schedulers: Sequence[Scheduler]
    plateau: Mapping[str, ReduceLROnPlateau]
    scaler: torch.amp.GradScaler | None
    max_grad_norm: float | None
    micro_batch_size: int
    steps_per_schedule: int = 0
    """Steps after which schedulers are stepped; 0: they are with each update."""
    stages: Stages
    """Of the model; the gradient is that of all of them."""

    def __post_init__(self) -> None:
        self._buckets = self.layout.buckets[: self.layout.extras_index]
        self._parameters = [
            [self.parameters[entry.name] for entry in bucket.entries] for bucket in self._buckets
        ]
        self._is_sharded = any(map(is_sharded, self.parameters.values()))
        self._is_unconverted = all(
            parameter.dtype is bucket.dtype
            for bucket, parameters in zip(self._buckets, self._parameters, strict=True)
            for parameter in parameters
        )
        """Whether every leaf has the type of its parameter."""
        self._is_converted = self._is_sharded or not self._is_unconverted
        """Whether gradients are something else than views of the buckets."""
        self._is_in_parts = self._is_sharded or self.stages.is_several
        """Whether each worker of this replica has a part of the gradient."""
        self._is_stepping = False
        self._scheduled: list[int | None] | None = None
        self._handles = [
            part.optimizer.register_step_pre_hook(self._before_step)
            for part in self.optimizer_states
        ]
        self._gradients: list[torch.Tensor] = []
        self._grad_norm: float | None = None
        self._looks_left = LOOKED_AT
        if self.scaler is not None:  # made at first use, and slots of weight 0 use none
            self.scaler.scale(here.device.scalar())

    @property
    def _is_scaled_by_clipping(self) -> bool:
        """Whether one multiplication scales and clips (docs/decisions/0018)."""
        return self.max_grad_norm is not None and self.scaler is None and self._is_unconverted

    def agree_on_clip(self, norms: Collection[float], step: int) -> None:
        """Clip from now on as the micro-batches of a step said; 0: not.

        Raises:
            UsageError: they said different things.
        """
        if len(norms) > 1:
            raise UsageError(
                f"micro-batches of step {step} set session.max_grad_norm to different values "
                f"({', '.join(str(norm or None) for norm in sorted(norms))}); the gradient of the "
                "step is clipped once, so set the same in each"
            )
        for norm in norms:
            self.max_grad_norm = norm or None

    @property
    def grad_norm(self) -> float:
        """Norm of the last reduced gradient, before clipping; computed when first asked for.

        Only until the next step has begun: the buffers are used again.
        """
        if self._grad_norm is None and self._is_in_parts:
            raise UsageError(
                "step.grad_norm of a sharded model, or of one in stages, is known where "
                "max_grad_norm=... is given: all workers have to compute it together"
            )
        if self._grad_norm is None:
            self._grad_norm = float(torch.nn.utils.get_total_norm(self._gradients))
        return self._grad_norm

    @property
    def known_grad_norm(self) -> float | None:
        """The same if it is known already, else None."""
        return self._grad_norm

    @torch.no_grad()
    def prepare(self, buckets: Sequence[torch.Tensor], extras: Extras, step: int) -> Gradient:
        """Scale a reduced result to the gradient of the global batch, and look for nan and inf.

        All that is read of it is read here, once: nothing waits for a device behind the vote.  A
        scaled gradient may overflow: that is the scaler's to see to.
        """
        are_finite([extras.values])
        factor = self.micro_batch_size / extras.weight if extras.weight else 1.0
        with here.device.without_autocast():
            if not self._is_scaled_by_clipping:
                factor = scaled(buckets, factor)
            parts = self._parts(buckets, extras)
            norm = self._norm_of(parts, factor)
            if norm is None:
                factor = scaled(buckets, factor)
            digest = self._digest(buckets, extras, step)
            norm_here = _number(norm)
            is_sound = norm_here is not None and math.isfinite(norm_here)  # then so is all of it
            if not is_sound:
                factor = scaled(buckets, factor)
                is_sound = self._are_finite(buckets)
                if norm is not None or not is_sound:
                    parts = self._parts(buckets, extras)
                    norm = self._norm_of(parts, factor)
                    norm_here = _number(norm)
                    digest = self._digest(buckets, extras, step)  # the same nan everywhere
            unscaled: Mapping[int, Any] = {}
            if self.scaler is not None:
                unscaled, norm, norm_here = self._unscale(self.scaler, parts)
        nonfinite = ""
        if extras.weight and not math.isfinite(extras.loss):
            nonfinite = f"the loss is {extras.loss}"
        elif not is_sound and self.scaler is None:
            nonfinite = "the gradient is not finite"
        return Gradient(
            buckets=buckets,
            extras=extras,
            parts=parts,
            factor=factor,
            norm=norm,
            norm_here=norm_here,
            unscaled=unscaled,
            digest=digest(),
            nonfinite=nonfinite,
        )

    def _digest(
        self, buckets: Sequence[torch.Tensor], extras: Extras, step: int
    ) -> Callable[[], str]:
        """Start a cheap digest of a step's result: loss, weight, and one bucket in turn."""
        head = struct.pack("<dd", extras.loss, extras.weight)
        if not self._buckets:
            return xxhash.xxh3_128(head).hexdigest
        return here.device.digest(head, buckets[step % len(self._buckets)])

    def _are_finite(self, buckets: Sequence[torch.Tensor]) -> bool:
        """Whether all of the gradient is, on every worker that has a part of it."""
        found = are_finite(buckets)
        return all_agree(found) if self._is_in_parts else found

    @torch.no_grad()
    def apply(self, gradient: Gradient, *, is_skipped: bool = False, step: int = 1) -> None:
        """Do what ``loss.backward()`` of the whole global batch and ``optimizer.step()`` would.

        A step in which nothing was computed, or whose scaled gradient overflowed, is skipped: it
        moves neither weights nor schedulers; one with ``is_skipped`` no scaler either.  An epoch
        ends with any step, for those that follow epochs.

        Raises:
            UsageError: an optimizer cannot do it, in the run's first ``step``, which is 0.
        """
        torch.clear_autocast_cache()
        for parameter, part in gradient.parts:
            parameter.grad = part
        self._gradients = [part for _, part in gradient.parts]
        # What is skipped is never scaled where it is clipped.
        self._grad_norm = gradient.norm_here
        with here.device.without_autocast():
            has_work = bool(gradient.parts) or (self.stages.is_several and gradient.extras.weight)
            is_due = bool(has_work) and not is_skipped
            is_due = is_due and self._step(gradient, is_first=step == 0)
            if self.steps_per_schedule:
                is_due = (step + 1) % self.steps_per_schedule == 0
            if is_due:
                self._step_schedulers(gradient.extras.loss)
        self.follow_schedulers()
        for parameter in self.parameters.values():
            parameter.grad = None

    def forget_gradients(self) -> None:
        """Let go of the last reduced gradient."""
        self._gradients = []

    def feed(self, values: Mapping[str, float]) -> None:
        """Step the named schedulers.

        Raises:
            UsageError: there is none of that name, or the script has stepped one itself.
        """
        self.check_schedulers()
        for name, value in values.items():
            if name not in self.plateau:
                known = ", ".join(sorted(self.plateau)) or "none"
                raise UsageError(
                    f"session.feed({name}=...): plateau= has no scheduler of that name; it has: "
                    f"{known}"
                )
            self.plateau[name].step(float(value))
        self.follow_schedulers()

    def follow_schedulers(self) -> None:
        """Take where the schedulers are as where they ought to be."""
        self._scheduled = self._schedule_counts()

    def check_schedulers(self) -> None:
        """Make sure that nobody else moved a scheduler since the last commit.

        Raises:
            UsageError: somebody did.
        """
        if self._scheduled is not None and self._schedule_counts() != self._scheduled:
            raise UsageError(
                "scheduler.step() was called by the script; the session steps its schedulers with "
                "each optimizer step"
            )

    def close(self) -> None:
        """Allow ``optimizer.step`` again."""
        for handle in self._handles:
            handle.remove()

    def settings(self) -> dict[str, Any]:
        """Return all hyper-parameters, and where the schedules are, as a part of a state."""
        groups = [
            {
                "groups": [
                    {key: value for key, value in sorted(group.items()) if key != "params"}
                    for group in optimizer.param_groups
                ]
            }
            for optimizer in self.optimizers
        ]
        schedules = [{"last_epoch": count} for count in self._schedule_counts()]
        clips = {"max_grad_norm": self.max_grad_norm}
        return {"session": clips, "optimizers": groups, "schedulers": schedules}

    def _parts(
        self, buckets: Sequence[torch.Tensor], extras: Extras
    ) -> list[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Return the gradient of each parameter that some slot touched."""
        presence = iter(extras.presence if extras.weight else ())
        found = [
            (parameter, entry.view(flat))
            for bucket, flat, parameters in zip(
                self._buckets, buckets, self._parameters, strict=True
            )
            for entry, parameter in zip(bucket.entries, parameters, strict=True)
            if next(presence, False)
        ]
        if not self._is_converted:
            return found
        return [(one, sharded_like(part.to(one.dtype), one)) for one, part in found]

    def _norm_of(
        self, parts: Sequence[tuple[torch.nn.Parameter, torch.Tensor]], factor: float
    ) -> torch.Tensor | None:
        """Return the norm if it will be clipped by it: one look at the gradient is for both."""
        if self.max_grad_norm is None or self.scaler is not None:
            return None
        if not parts and not self.stages.is_several:
            return None
        return self._total_norm([part for _, part in parts], factor)

    def _total_norm(self, gradients: Sequence[torch.Tensor], factor: float) -> torch.Tensor:
        """Return the norm of these, each times ``factor``, and of what the other stages have."""
        return self.stages.joint_norm(total_norm(gradients) * factor)

    def _step(self, gradient: Gradient, *, is_first: bool) -> bool:
        """Unscale, clip, step; return whether every optimizer really stepped."""
        present = [parameter for parameter, _ in gradient.parts]
        active = [o for o in self.optimizers if any(p.grad is not None for p in held(o))]
        if self.scaler is not None:
            self.scaler._per_optimizer_states.update(gradient.unscaled)  # noqa: SLF001  # as _unscale
        if self.max_grad_norm is not None:
            self._clip(gradient, self.max_grad_norm)
        for optimizer in active:
            self._step_one(optimizer, is_first=is_first)
        if self._looks_left:
            self._looks_left -= 1
            refuse_kept_gradients([part.optimizer for part in self.optimizer_states], present)
            for part in self.optimizer_states:
                part.refuse_hidden()
        else:
            for part in self.optimizer_states:
                part.refuse_changed()
        if self.scaler is None or not active:
            return True
        has_overflowed = any(map(self._has_overflowed, active))
        self.scaler.update()
        return not has_overflowed

    def _clip(self, gradient: Gradient, max_norm: float) -> None:
        norm = gradient.norm
        if norm is None:
            norm = self._total_norm(self._gradients, gradient.factor)
        if self._is_scaled_by_clipping:
            clip_by_norm(gradient.buckets, max_norm, norm, gradient.factor)
        elif self._is_in_parts:
            clip_by_norm(self._gradients, max_norm, norm)
        else:
            present = [parameter for parameter, _ in gradient.parts]
            torch.nn.utils.clip_grads_with_norm_(present, max_norm, norm)

    def _unscale(
        self, scaler: torch.amp.GradScaler, parts: Sequence[tuple[torch.nn.Parameter, torch.Tensor]]
    ) -> tuple[dict[int, Any], torch.Tensor | None, float | None]:
        """Unscale; return what the scaler notes, by ``id`` of the optimizer, and the norm, twice.

        The scaler itself takes note at the commit: the attempt may be given up.  An optimizer that
        overflowed on one worker has on all.
        """
        states: dict[int, Any] = {}
        kept = scaler._per_optimizer_states  # noqa: SLF001  # public nowhere; torch 2.11 to 2.15
        for optimizer in self.optimizers:
            own = set(map(id, held(optimizer)))
            present = [_with_local_gradient(one, part) for one, part in parts if id(one) in own]
            local: Any = SimpleNamespace(param_groups=[{"params": present}])  # what it looks at
            if present:
                scaler.unscale_(local)
            if id(local) in kept:  # not if the scaler is disabled
                states[id(optimizer)] = kept.pop(id(local))
        norm = None
        if self.max_grad_norm is not None and parts:
            norm = self._total_norm([part for _, part in parts], 1.0)
        norms = here.device.read([] if norm is None else [norm])
        places = [(one, where) for one in map(_found, states.values()) for where in one]
        flags = here.device.read([found[where] for found, where in places])()
        for (found, where), flag in zip(places, flags, strict=True):
            if self._is_sharded:
                flag.fill_(float(not all_agree(not flag)))
            found[where] = flag  # in host memory, where the scaler reads it
        return states, norm, None if norm is None else float(norms()[0])

    def _step_one(self, optimizer: torch.optim.Optimizer, *, is_first: bool) -> None:
        """Step an optimizer; tell why one that never can fails."""
        self._is_stepping = True
        looks = refuse_shard_sums(optimizer) if self._looks_left else nullcontext()
        try:
            with looks:
                if self.scaler is None:
                    optimizer.step()
                else:
                    self.scaler.step(optimizer)
        except Exception as error:
            if not is_first or isinstance(error, UsageError):
                raise
            text = (str(error).strip().splitlines() or [""])[0]
            groups = optimizer.param_groups if self._is_sharded else []
            is_foreach = any(one.get("foreach") for one in groups)
            advice = "its parameters are sharded: say foreach=False" if is_foreach else AS_CALLED
            raise UsageError(
                f"{type(optimizer).__name__}.step() failed in its first update "
                f"({type(error).__name__}: {text}); {advice}"
            ) from error
        finally:
            self._is_stepping = False

    def _has_overflowed(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the scaler made this optimizer skip; a fused one is called all the same."""
        found = self.scaler._found_inf_per_device(optimizer)  # type: ignore[union-attr]  # noqa: SLF001  # as _unscale
        return any(map(bool, found.values()))

    def _step_schedulers(self, loss: float) -> None:
        for scheduler in self.schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(math.inf if math.isnan(loss) else loss)
            else:
                scheduler.step()

    def _schedule_counts(self) -> list[int | None]:
        schedulers = [*self.schedulers, *self.plateau.values()]
        return [getattr(scheduler, "last_epoch", None) for scheduler in schedulers]

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        if not self._is_stepping:
            raise UsageError(
                "optimizer.step() was called by the script; the session steps the optimizer when "
                "the loop over a step ends" + _TAKE_TURNS * (len(self.optimizers) > 1)
            )


def _with_local_gradient(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose gradient is what lies here of one, in the same memory."""
    stand_in = local_of(parameter).detach()
    stand_in.grad = local_of(gradient)
    return stand_in


def _found(state: Mapping[str, Any]) -> dict[torch.device, torch.Tensor]:
    """Return by device what a scaler has found: not 0 if something overflowed."""
    found: dict[torch.device, torch.Tensor] = state["found_inf_per_device"]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The gradient of a global batch, ready to be applied; the same on every replica."""

    buckets: Sequence[torch.Tensor]
    """Where it lies."""

    extras: Extras
    parts: Sequence[tuple[torch.nn.Parameter, torch.Tensor]]
    """Of those parameters that some slot touched."""

    factor: float
    """By which clipping multiplies the buckets, too; 1.0: they are scaled."""

    norm: torch.Tensor | None
    """Before clipping, if it was needed so far."""

    norm_here: float | None
    """The same, read."""

    unscaled: Mapping[int, Any]
    """What a scaler notes of each optimizer whose gradient it has unscaled, by ``id``."""

    digest: str
    """Of a part of it; for comparing replicas."""

    nonfinite: str
    """What of the step is nan or inf; empty: nothing."""


def scaled(buckets: Sequence[torch.Tensor], factor: float) -> float:
    """Multiply what is in the buckets, in place; return by what is left to multiply."""
    if factor != 1.0:
        for flat in buckets:
            flat.mul_(factor)
    return 1.0


def are_finite(flats: Sequence[torch.Tensor]) -> bool:
    """Whether all of these are; makes every nan the same one, since additions keep one of two."""
    # A sum reads it once; isfinite() of all of it takes 20 times as long.
    sums = here.device.read([flat.sum() for flat in flats])()
    doubtful = [flat for flat, total in zip(flats, sums, strict=True) if not total.isfinite()]
    for flat in doubtful:
        flat.masked_fill_(flat.isnan(), math.nan)
    return all(map(bool, here.device.read([flat.isfinite().all() for flat in doubtful])()))


def _number(norm: torch.Tensor | None) -> float | None:
    return None if norm is None else float(here.device.read([norm])()[0])
