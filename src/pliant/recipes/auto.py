"""``auto`` in the file of a recipe: how many workers share the model, and what is computed again.

Owns the choice, and why.  It is made once, before a file is checked: what runs never sees ``auto``.

    the fewest workers (1, 2, 4, ...) whose devices hold all that is kept
    none does: the same with activations computed again, if that is auto, too
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pliant.core.errors import ConfigError
from pliant.core.text import counted
from pliant.recipes.estimate import estimate
from pliant.spec.load import check
from pliant.spec.recipe import DevicesEntry, Recipe

AUTO = "auto"
WORKERS, AGAIN = "workersPerReplica", "activationCheckpointing"
GIB = 2.0**30
MOST_WORKERS = 1024
USED = 0.9
"""Of a device's memory; the rest is left to kernels and the allocator."""


def fill(
    document: dict[str, Any],
    path: Path,
    *,
    memory: float | None = None,
    found: Callable[[], float | None] = lambda: None,
) -> list[str]:
    """Put what was chosen in place of each ``auto`` of a job file, and return the reasons.

    Args:
        document: the file as YAML has it; it is changed.
        path: that of the file, beside which its own paths are meant.
        memory: GiB of a device, for which workersPerReplica is chosen whatever the file says; the
            default is what the recipe says.
        found: asks the devices that are there, where neither says it.

    Raises:
        ConfigError: nothing fits, or nobody knows how much memory a device has.
    """
    spec = document.get("spec")
    recipe = spec.get("recipe") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(recipe, dict):
        return []
    model = recipe.get("model")
    entry = dict(model) if isinstance(model, dict) else {}
    asks_workers = spec.get(WORKERS) == AUTO or memory is not None
    asks_again = entry.get(AGAIN) == AUTO
    if not (asks_workers or asks_again):
        return []
    if asks_workers:
        spec[WORKERS] = 1
    if asks_again:
        recipe["model"] = {**entry, AGAIN: False}
    try:
        plain = check(Recipe, recipe, source="")
        hosts, given = (int(spec.get(name, 1)) for name in ("hostsPerReplica", WORKERS))
        if min(hosts, given) < 1:
            return []
    except (ConfigError, TypeError, ValueError):
        return []  # whoever checks the file says what is wrong, and in which line
    if plain.model.weights is not None:
        plain = _with(plain, weights=str(path.parent / plain.model.weights))
    devices = plain.devices or DevicesEntry()
    room = memory or devices.memory or found()
    if room is None:
        name = f"spec.{WORKERS}" if asks_workers else f"spec.recipe.model.{AGAIN}"
        raise ConfigError(
            f"{path}: {name} is auto, and nobody says how much memory a device has; give "
            "spec.recipe.devices.memory, in GiB"
        )
    most = devices.number or MOST_WORKERS
    doubled = [hosts << n for n in range(MOST_WORKERS.bit_length())] if asks_workers else [given]
    sizes = [number for number in doubled if number <= most]
    if not sizes:
        raise ConfigError(
            f"{path}: a replica has {counted(doubled[0], 'worker')} or more, and "
            f"recipe.devices.number allows {most}; change one of the two"
        )
    workers, is_again = _choice(path, plain, sizes, room, may_again=asks_again)
    if asks_workers:
        spec[WORKERS] = workers
    if asks_again:
        recipe["model"][AGAIN] = is_again
    return list(_reasons(plain, sizes, (workers, is_again), room, (asks_workers, asks_again)))


def _choice(
    path: Path, plain: Recipe, sizes: list[int], room: float, *, may_again: bool
) -> tuple[int, bool]:
    given = plain.model.activation_checkpointing
    for is_again in (False, True) if may_again else (given,):
        for workers in sizes:
            if _needed(plain, workers, is_again=is_again) <= USED * room:
                return workers, is_again
    least = _needed(plain, sizes[-1], is_again=may_again or given)
    raise ConfigError(
        f"{path}: with {counted(sizes[-1], 'worker')} a replica, each needs some {least:.3g} GiB, "
        f"and a device has {USED * room:.3g} to use; give more devices, a smaller "
        "training.microBatchSize or data.sequenceLength, lora or model.activationCheckpointing"
    )


def _reasons(
    plain: Recipe, sizes: list[int], chosen: tuple[int, bool], room: float, asked: tuple[bool, bool]
) -> Iterator[str]:
    workers, is_again = chosen
    if asked[0] and workers > sizes[0]:
        other = _needed(plain, workers // 2, is_again=is_again)
        yield (
            f"{WORKERS} {workers}: of {workers // 2} each would need {other:.3g} GiB, more than "
            f"{USED:.0%} of {room:.3g}"
        )
    elif asked[0]:
        yield f"{WORKERS} {workers}: it fits into {USED:.0%} of {room:.3g} GiB"
    if asked[1] and is_again:
        other = _needed(plain, sizes[-1], is_again=False)
        yield (
            f"model.{AGAIN} true: without it {counted(sizes[-1], 'worker')} a replica would need "
            f"{other:.3g} GiB each, more than {USED:.0%} of {room:.3g}"
        )
    elif asked[1]:
        yield f"model.{AGAIN} false: it fits without, in a step that takes less time"


def _needed(plain: Recipe, workers: int, *, is_again: bool) -> float:
    return estimate(_with(plain, activation_checkpointing=is_again), workers).total_bytes / GIB


def _with(plain: Recipe, **fields: Any) -> Recipe:
    return plain.model_copy(update={"model": plain.model.model_copy(update=fields)})
