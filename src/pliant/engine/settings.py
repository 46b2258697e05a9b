"""Session settings: what a session accepts, checked before anything starts.

Owns the refusals: each is one sentence that names what to change.  Must not know slots, replicas
or the protocol.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pliant.core.errors import ConfigError, UsageError
from pliant.core.step import batching
from pliant.engine.device import graphs, here, host
from pliant.engine.local_tensors import reshard, sharding_modules
from pliant.engine.plain_state import PlainState
from pliant.engine.state.buffers import observes
from pliant.engine.state.durable import Durability
from pliant.engine.state.optimizer_state import held, with_nested
from pliant.engine.state.training_state import Stateful
from pliant.engine.update import Scheduler

_TWO_PASSES = (("first_step", "second_step"), ("ascent_step", "descent_step"))
"""Methods of optimizers that perturb weights, take another gradient and go back: SAM, ASAM."""

_FIRST_ORDER = "use an optimizer that takes a gradient, such as torch.optim.AdamW"

_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

REDUCTIONS = ("exact", "fast")
ON_NONFINITE = ("warn", "stop", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """The numbers and switches of a session; ``Session`` says what each is."""

    global_batch_size: int
    micro_batch_size: int
    seed: int
    reduction: str = "exact"
    max_grad_norm: float | None = None
    num_workers: int = 0
    threads: int = 1
    shuffle: bool = True
    drop_last: bool = False
    on_nonfinite: str = "warn"
    scheduler_every: str = "step"

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ConfigError(f"reduction must be 'exact' or 'fast', got {self.reduction!r}")
        if self.on_nonfinite not in ON_NONFINITE:
            raise ConfigError(
                f"on_nonfinite must be 'warn', 'stop' or 'skip', got {self.on_nonfinite!r}"
            )
        if self.scheduler_every not in ("step", "epoch"):
            raise ConfigError(
                f"scheduler_every must be 'step' or 'epoch', got {self.scheduler_every!r}"
            )
        for name, least in (("seed", 0), ("num_workers", 0), ("threads", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")
        check_max_grad_norm(self.max_grad_norm)
        _ = self.num_slots  # raises for sizes that do not fit

    @property
    def num_slots(self) -> int:
        """``K``: micro-batches of one step."""
        return batching.num_slots(
            global_batch_size=self.global_batch_size, micro_batch_size=self.micro_batch_size
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UserObjects:
    """What the script trains, checked."""

    model: torch.nn.Module
    optimizers: list[torch.optim.Optimizer]
    schedulers: list[Scheduler]
    plateau: dict[str, ReduceLROnPlateau]
    scaler: torch.amp.GradScaler | None
    extra: dict[str, Stateful]

    @classmethod
    def check(
        cls,
        *,
        model: object,
        optimizers: object,
        schedulers: object,
        plateau: Mapping[str, object] | None,
        scaler: object,
        extra_state: Stateful | Mapping[str, Any] | None,
    ) -> UserObjects:
        """Check the arguments of a session; of optimizers and schedulers one, several or none."""
        return cls(
            model=(checked := _check_model(model)),
            optimizers=_check_optimizers(_as_list(optimizers), checked),
            schedulers=_as_list(schedulers),  # type: ignore[arg-type]  # see make_schedulers
            plateau=_check_plateau(plateau or {}),
            scaler=_check_scaler(scaler, checked),
            extra=_extra_parts(extra_state),
        )

    def make_schedulers(self, settings: SessionSettings, steps_per_epoch: int) -> None:
        """Let functions make their schedulers, and check all."""
        given = self.optimizers[0] if len(self.optimizers) == 1 else self.optimizers
        made = [one(given, steps_per_epoch) if callable(one) else one for one in self.schedulers]
        self.schedulers[:] = _check_schedulers(made, with_nested(self.optimizers))
        is_plateau = any(isinstance(one, ReduceLROnPlateau) for one in self.schedulers)
        if is_plateau and settings.scheduler_every == "epoch":
            raise ConfigError(
                "ReduceLROnPlateau with scheduler_every='epoch' would see the loss of one step of "
                "each epoch; pass it as plateau={'loss': ...} and call session.feed(loss=...) "
                "where step.is_last_of_epoch"
            )


def _as_list(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _check_model(model: object) -> torch.nn.Module:
    """Refuse a model that cannot be trained here."""
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    reshard(sharding_modules(model))  # a forward before the session leaves the outermost whole
    for name, module in model.named_modules():
        _check_module(name, module)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    here.choose(tensor for _, tensor in tensors)
    for name, tensor in tensors:
        if is_lazy(tensor):
            raise ConfigError(
                f"{name!r} is an uninitialised lazy parameter; run one batch through the model "
                "before the session is made"
            )
        here.device.check(name, tensor)
    if not any(True for _ in model.parameters()):
        raise ConfigError("the model has no parameters")
    if here.device.type != host.LOCATION:
        graphs.refuse_compiled(model)
    return model


def _check_optimizers(
    optimizers: Sequence[object], model: torch.nn.Module
) -> list[torch.optim.Optimizer]:
    """Refuse what is no optimizer, needs a closure, or holds parameters of something else."""
    known = {id(parameter) for parameter in model.parameters()}
    taken: set[int] = set()
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}"
            )
        _check_prepared("optimizer", optimizer)
        _check_one_pass(optimizer)
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise ConfigError(
                "SparseAdam takes sparse gradients, which are not supported; use Adam, and "
                "sparse=False in the embedding"
            )
        own = set(optimizer.state_dict()) - {"state", "param_groups"}
        if own:
            raise ConfigError(
                f"{type(optimizer).__name__} has {min(own, key=repr)!r} in its state_dict, which "
                "would not reach a joining replica; keep it in optimizer.state or in the "
                "parameter groups"
            )
        own_parameters = {id(p) for one in with_nested([optimizer]) for p in held(one)}
        if own_parameters - known:
            raise ConfigError(
                f"{type(optimizer).__name__} holds a parameter that is not in the model; put "
                "everything that is trained into one module"
            )
        if own_parameters & taken:
            raise ConfigError(
                f"{type(optimizer).__name__} holds a parameter of another optimizer, so each step "
                "would change it twice; give each parameter to one"
            )
        taken |= own_parameters
    if not optimizers:
        raise ConfigError("a session needs an optimizer")
    return list(optimizers)  # type: ignore[arg-type]  # checked one by one


def _check_prepared(what: str, given: object) -> None:
    """Refuse what Accelerate has wrapped: it decides itself when to step."""
    if type(given).__module__.partition(".")[0] == "accelerate":
        raise ConfigError(
            f"{type(given).__name__} was prepared by Accelerate, which steps it by its own rules; "
            f"pass the {what} that accelerator.prepare() was given"
        )


def _check_one_pass(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that asks for another forward or backward within its step."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            f"LBFGS evaluates the loss several times a step, a session does once; {_FIRST_ORDER}"
        )
    for passes in _TWO_PASSES:
        if all(callable(getattr(optimizer, one, None)) for one in passes):
            raise ConfigError(
                f"{name} computes a step in two passes ({' and '.join(passes)}), and a session "
                "makes one; pass the optimizer that it wraps, and perturb the weights within the "
                "loss of a micro-batch (pliant docs bring-your-script, SAM)"
            )
    # Of the class: a scheduler puts a wrapper, unbound, into the optimizer itself.
    _, *parameters = inspect.signature(type(optimizer).step).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.kind in _PLAIN]
    if needed:
        raise ConfigError(
            f"{name}.step() needs {needed[0]!r}, and a session calls it without arguments, once "
            f"the gradient of the whole step is there; {_FIRST_ORDER}"
        )


def _check_schedulers(
    schedulers: Sequence[object], optimizers: Sequence[torch.optim.Optimizer]
) -> list[Scheduler]:
    if len(set(map(id, schedulers))) < len(schedulers):
        raise ConfigError("scheduler= names one scheduler twice; it would move twice a step")
    for scheduler in schedulers:
        _check_prepared("scheduler", scheduler)
        if callable(getattr(scheduler, "step_update", None)):
            raise ConfigError(
                f"{type(scheduler).__name__} is told how many updates there were; leave out "
                "scheduler= and write scheduler.step_update(session.committed) in the tail of a "
                "step, or scheduler.step(step.epoch + 1) where step.is_last_of_epoch; pass it as "
                "extra_state= if it has state"
            )
        if not isinstance(scheduler, LRScheduler | ReduceLROnPlateau):
            raise ConfigError(
                "scheduler must be a torch.optim.lr_scheduler scheduler, got "
                f"{type(scheduler).__name__}"
            )
        of = getattr(scheduler, "optimizer", None)
        if of is not None and all(of is not one for one in optimizers):
            raise ConfigError(
                f"{type(scheduler).__name__} was made for another optimizer than the session's, "
                "whose learning rate would never change; make it for that one"
            )
    return list(schedulers)  # type: ignore[arg-type]  # checked one by one


def _check_plateau(plateau: Mapping[str, object]) -> dict[str, ReduceLROnPlateau]:
    for name, scheduler in plateau.items():
        if not isinstance(scheduler, ReduceLROnPlateau):
            raise ConfigError(
                f"plateau={{{name!r}: ...}} must be a ReduceLROnPlateau, got "
                f"{type(scheduler).__name__}; other schedulers go into scheduler="
            )
    return dict(plateau)  # type: ignore[arg-type]  # checked one by one


def _check_scaler(scaler: object, model: torch.nn.Module) -> torch.amp.GradScaler | None:
    """Refuse what is no gradient scaler, or cannot unscale; a disabled one counts as none."""
    if scaler is None:
        return None
    if not isinstance(scaler, torch.amp.GradScaler):
        raise ConfigError(f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}")
    if not scaler.is_enabled():
        return None
    for name, parameter in model.named_parameters():
        if parameter.dtype is torch.float16 or parameter.is_complex():
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ConfigError(
                f"{name!r} is {kind}, which a GradScaler cannot unscale; keep parameters in "
                "float32 and compute under autocast, or leave out scaler="
            )
    return scaler


def check_max_grad_norm(norm: float | None) -> None:
    """Refuse what no norm can be clipped to; None: nothing is clipped."""
    if norm is not None and not (math.isfinite(norm) and norm > 0):
        raise ConfigError(f"max_grad_norm must be a positive number, got {norm!r}")


def total_steps(steps: int | None, epochs: int | None, steps_per_epoch: int) -> int:
    """Return the job's total number of steps that a call of ``steps()`` names.

    Raises:
        UsageError: it names none, both, or an impossible one.
    """
    if (steps is None) == (epochs is None):
        raise UsageError("steps() takes the job's total number of steps, or epochs=")
    what, count = ("steps", steps) if epochs is None else ("epochs", epochs)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise UsageError(
            f"steps() takes the job's total number of {what}, 1 at least, got {count!r}"
        )
    return count if epochs is None else count * steps_per_epoch


def further(total: int, planned: int, steps_per_epoch: int) -> int:
    """Return how far the calls of ``steps()`` go, with this one.

    Raises:
        UsageError: it trains nothing, in whatever run of the script: an earlier one goes as far.
    """
    if 0 < total <= planned:
        raise UsageError(
            f"this call of steps() goes to step {total}, and one before it went to {planned}, so "
            "it trains nothing: the number is the job's total. For several epochs write "
            f"session.steps(epochs=3) once, or session.steps((epoch + 1) * {steps_per_epoch}) in "
            "a loop over epochs"
        )
    return max(total, planned)


def check_leader(*, has_begun: bool) -> None:
    """Refuse to ask for the leader where nobody leads; alone too, or the script learns it late.

    Raises:
        UsageError: ``steps()`` was not called.
    """
    if not has_begun:
        raise UsageError(
            "session.leader was asked for before session.steps(), where nobody leads yet, so that "
            "no replica would write; ask in the tail of a step or behind the loop, each time anew: "
            "another replica may lead by then"
        )


def check_saving(*, is_elastic: bool, has_begun: bool) -> None:
    """Refuse to write weights where a replica may not have any of the run yet.

    ``has_begun``: whether ``steps()`` was called.

    Raises:
        UsageError: it was not.
    """
    if is_elastic and not has_begun:
        raise UsageError(
            "session.save was called before session.steps(), where a replica has no state of the "
            "run yet, so that none would write; call it in the tail of a step, or behind the loop"
        )


def check_micro_batch_size(size: int | None) -> int:
    """Refuse that it is not said."""
    if size is None:
        raise ConfigError(
            "micro_batch_size is not given: say how many samples go through the model at once, "
            "for instance micro_batch_size=8, or pass a DataLoader, whose batch_size it is"
        )
    return size


def check_checkpoint(checkpoint: Any) -> None:
    """Refuse as ``checkpoint=`` what does not keep checkpoints, a path for instance."""
    if checkpoint is not None and not isinstance(checkpoint, Durability):
        raise ConfigError(
            f"checkpoint={checkpoint!r} is a {type(checkpoint).__name__}; pass a place and an "
            "interval: checkpoint=pliant.Checkpoint('runs/gpt', every='10min')"
        )


def check_launcher(launcher: str, world_size: int) -> None:
    """Refuse to train alone several times over, in each of the processes of a launcher."""
    if world_size > 1:
        raise ConfigError(
            f"this process is one of {world_size} that {launcher} started; a pliant session would "
            "train alone in each of them. Start the script with `pliant run`, or with `python`"
        )


def _extra_parts(extra_state: Stateful | Mapping[str, Any] | None) -> dict[str, Stateful]:
    """Name the parts; an object that is not named is the part ``""``."""
    if extra_state is None:
        return {}
    is_many = isinstance(extra_state, Mapping) and not hasattr(extra_state, "state_dict")
    parts: dict[str, Any] = dict(extra_state) if is_many else {"": extra_state}  # type: ignore[arg-type]
    for name, part in parts.items():
        if type(part) is dict:
            parts[name] = part = PlainState.over(part)
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(part, method, None)):
                what = f"extra_state[{name!r}]" if is_many else "extra_state"
                raise ConfigError(
                    f"{what} is a {type(part).__name__} and has no {method}(); "
                    "plain values travel in pliant.State(best=0.0, ...)"
                )
    return parts


def _check_module(name: str, module: torch.nn.Module) -> None:
    if isinstance(module, torch.nn.SyncBatchNorm):
        raise ConfigError(
            f"{name!r} is SyncBatchNorm, which talks to other replicas in its forward; use "
            "BatchNorm: the session combines its statistics"
        )
    if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag):
        if module.sparse:
            raise ConfigError(f"{name!r} gives sparse gradients; use sparse=False")
        if module.max_norm is not None:
            raise ConfigError(
                f"{name!r} has max_norm, which changes its weights in the forward of every "
                "micro-batch; leave it out, and shorten them after the loop over a step"
            )
    if not _has_observed(module):
        raise ConfigError(
            f"{name!r} observes values to quantise them and has seen none; run one batch through "
            "the model before the session is made"
        )
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        raise ConfigError("the model is wrapped in DistributedDataParallel; pass it unwrapped")


def _has_observed(module: torch.nn.Module) -> bool:
    """Whether a fake quantiser that observes, as of ``torch.ao``, has a range; True of others."""
    smallest = getattr(getattr(module, "activation_post_process", None), "min_val", None)
    if not observes(module) or not torch.is_tensor(smallest):
        return True
    return smallest.numel() > 0 and bool(smallest.isfinite().all())
