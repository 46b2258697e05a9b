"""Identity: what must be equal between two runs for their results to be equal, bit for bit.

Owns the list of what decides the bits: a joiner that differs in one of these is refused in exact
mode, both values named.  Must not know who compares it, nor the model: its layout has a digest of
its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from pliant.core.values import DATASET_SAMPLES, SAMPLE, SCRIPT_MODULE
from pliant.engine.data.loading import Schedule
from pliant.engine.device import here
from pliant.engine.reduce.buckets import Layout
from pliant.engine.script_files import own_modules
from pliant.engine.settings import SessionSettings

TREE = "mirrored-midpoint-1"
"""Name of the addition tree; changes when ``core.step.batching`` gives other sums."""

MAX_LAYOUT_CHARACTERS = 100_000
"""Longest description of a layout that a registration carries; a message has at most 1 MB."""

MAX_MODULES = 1000
"""Of a script that are compared; their names are part of a message, which has at most 1 MB."""

MAX_PARTS = 4
"""Of a value of a parameter group that is compared."""


SHOWN_STEPS = (1, 10, 100, 1000, 10_000)
_COUNTED = frozenset(
    {"last_epoch", "base_lrs", "_step_count", "_last_lr", "_get_lr_called_within_step"}
    | {"_is_initial", "initial_lr"}
)

_VARIANTS = ("foreach", "fused", "capturable", "differentiable", "maximize")
"""Optimizer options that choose another order of operations; ``fused`` gives other bits."""


def describe(
    settings: SessionSettings,
    num_samples: int,
    schedule: Schedule,
    optimizers: Sequence[torch.optim.Optimizer],
) -> tuple[tuple[str, str], ...]:
    """Return the identity of a run as (name, value) pairs, in a fixed order."""
    return (
        ("seed", str(settings.seed)),
        ("num_slots", str(settings.num_slots)),
        ("global_batch_size", str(settings.global_batch_size)),
        ("micro_batch_size", str(settings.micro_batch_size)),
        (DATASET_SAMPLES, str(num_samples)),
        ("shuffle", str(settings.shuffle)),
        ("drop_last", str(settings.drop_last)),
        *_order(schedule),
        ("reduction", settings.reduction),
        ("tree", TREE),
        ("threads", str(settings.threads)),
        ("torch", torch.__version__),
        *here.device.identity(settings.threads),
        ("max_grad_norm", repr(settings.max_grad_norm)),
        ("on_nonfinite", settings.on_nonfinite),
        ("scheduler_every", settings.scheduler_every),
        ("optimizer", ", ".join(_variant(optimizer) for optimizer in optimizers)),
    )


def describe_groups(
    optimizers: Sequence[torch.optim.Optimizer],
) -> tuple[tuple[str, str], ...]:
    """Return what the script gives its parameter groups as (name, value) pairs, before any step.

    Compared with a checkpoint only, whose values would replace these without a word.  Of a rate
    that a scheduler moves the initial one counts.
    """
    found: dict[str, list[str]] = {}
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for name, value in group.items():
                counted = group.get("initial_lr", value) if name == "lr" else value
                plain = counted.tolist() if isinstance(counted, torch.Tensor) else counted
                if name not in ("initial_lr", *_VARIANTS) and _is_plain(plain):
                    found.setdefault(f"{name} of optimizer {number}", []).append(repr(plain))
    return tuple((name, ", ".join(dict.fromkeys(values))) for name, values in found.items())


def _is_plain(value: object) -> bool:
    """Whether equal texts of this stand for equal values: a number, or a pair as of betas."""
    parts = value if isinstance(value, list | tuple) else (value,)
    return len(parts) <= MAX_PARTS and all(isinstance(x, int | float | str) for x in parts)


def describe_schedules(schedulers: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """Return what a script gave its schedulers, before the first step of this life.

    Of a schedule that is a function some values; nothing of what it has counted so far.
    """
    found: dict[str, str] = {}
    for which, scheduler in enumerate(schedulers):
        found |= _leaves(f"schedule {which}: ", scheduler.state_dict())
        for index, function in enumerate(getattr(scheduler, "lr_lambdas", ())):
            with suppress(Exception):  # of the script, which may allow no such step
                asked = copy.deepcopy(function)  # an object may count its calls; else the same
                values = ", ".join(f"{asked(step):g}" for step in SHOWN_STEPS)
                found[f"schedule {which}: function {index} at steps {SHOWN_STEPS}"] = values
    return tuple(found.items())


def _leaves(name: str, value: object) -> dict[str, str]:
    """Return numbers and words in it by name, but what schedules count, and where they stand."""
    parts: Iterable[tuple[Any, Any]]
    match value:
        case dict():
            parts = value.items()
        case list() | tuple():
            parts = enumerate(value)
        case bool() | int() | float() | str():
            return {name.rstrip(" .:"): repr(value)}
        case _:
            return {}
    found: dict[str, str] = {}
    for key, part in parts:
        if key not in _COUNTED:
            found |= _leaves(f"{name}{key}.", part)
    return found


def describe_modules() -> tuple[tuple[str, str], ...]:
    """Return which files the script has imported so far, as (name, value) pairs.

    Compared between the replicas of a run only: a checkpoint may be gone on from with other code.
    """
    named = sorted(own_modules().items())[:MAX_MODULES]
    return tuple((f"{SCRIPT_MODULE}{name:.200}", digest) for name, digest in named)


def describe_samples(words: Mapping[int, str]) -> tuple[tuple[str, str], ...]:
    """Return some samples of the dataset as (name, value) pairs; between replicas only, too."""
    return tuple((f"{SAMPLE}{index}", word) for index, word in words.items())


def describe_layout(layout: Layout) -> str:
    """Return a layout as the coordinator compares it: a line per parameter, then the digest.

    The first line that differs is what the one who is refused gets to read.
    """
    text = "\n".join(
        f"{name} {dtype.removeprefix('torch.')} {list(shape)}"
        for name, dtype, shape, _ in layout.parameters
    )
    last = f"layout {layout.digest}"
    return last if len(text) > MAX_LAYOUT_CHARACTERS else f"{text}\n{last}"


def _order(schedule: Schedule) -> tuple[tuple[str, str], ...]:
    """Return what a sampler is told by; its draws of later epochs are told with each vote."""
    draws = schedule.draws
    if draws is None:
        return (("sampler", "none"),)
    return (
        ("sampler", draws.name),
        ("num_draws", str(draws.size)),
        ("first_draws", draws.first_digest),
    )


def _variant(optimizer: torch.optim.Optimizer) -> str:
    options = [
        f"{name}={value}"
        for name in _VARIANTS
        if (value := optimizer.defaults.get(name)) not in (None, False)
    ]
    return f"{type(optimizer).__name__}({', '.join(options)})"
