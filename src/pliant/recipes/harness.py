"""A function of the user's that measures the model: ``evaluation.harness: module:function``.

Owns that it is found before training, that it changes nothing of the training (gradients, the
mode of the model, torch's random numbers), and that it returns numbers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pliant.core.errors import ConfigError

Harness = Callable[[nn.Module, Any], dict[str, float]]
"""Gets the model and the tokenizer."""

HARNESS_S = 4 * 3600.0
"""How long it may take before it counts as hanging."""


def harness_of(named: str) -> Harness:
    """Import a function by name; modules of the working directory are found, too.

    Raises:
        ConfigError: it is not there.
    """
    where = str(Path.cwd())
    if where not in sys.path:
        sys.path.insert(0, where)
    module, _, function = named.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"evaluation.harness {named} is not there: {error}") from None
    if not callable(found):
        raise ConfigError(f"evaluation.harness {named} is no function: name one")
    harness: Harness = found
    return harness


def measured(named: str, harness: Harness, model: nn.Module, tokenizer: Any) -> dict[str, float]:
    """Call it; return its numbers by name.

    Raises:
        ConfigError: it returned something else.
    """
    devices = sorted({one.device for one in model.parameters()} - {torch.device("cpu")}, key=str)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices, device_type=_type_of(devices)):
            found = harness(model, tokenizer)
    finally:
        for module, mode in modes:
            module.training = mode
    is_good = isinstance(found, dict) and all(
        isinstance(name, str) and isinstance(value, int | float) for name, value in found.items()
    )
    if not is_good:
        raise ConfigError(
            f"evaluation.harness {named} returned {found!r:.100}: return a dict of numbers by name"
        )
    return {name: float(value) for name, value in found.items()}


def _type_of(devices: list[torch.device]) -> str:
    return devices[0].type if devices else "cpu"
