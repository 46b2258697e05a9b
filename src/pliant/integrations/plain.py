"""Plain values: which of an object's attributes travel with a run.

Owns the conversion, and what an object of a script's own keeps: all that is plain of it; and what
of an object a micro-batch changes, which no other replica would know of.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch

OTHER = object()
"""In place of a value that does not travel."""


def plain(value: Any) -> Any:
    """Return a value as one that travels, or ``OTHER``."""
    match value:
        case None | bool() | int() | str() | torch.Tensor():
            return value
        case float():
            return float(value)
        case np.generic():
            return value.item()
        case list() | dict():
            return _plain_container(value)
        case tuple() | set() if type(value) in (tuple, set):
            return _plain_container(value)
        case _:
            return OTHER


def plain_entries(values: dict[str, Any]) -> dict[str, Any]:
    """Return those that travel, by name."""
    found = {name: plain(value) for name, value in sorted(values.items())}
    return {name: value for name, value in found.items() if value is not OTHER}


def local_values(holder: Any) -> dict[str, Any]:
    """Return by name what a micro-batch may change of an object, which is then one replica's own.

    Numbers and texts themselves, of containers the length, of torchmetrics' metrics the updates.
    """
    found: dict[str, Any] = {}
    for name, value in vars(holder).items():
        if name.startswith("_"):
            continue
        if isinstance(value, list | dict | set):
            found[name] = len(value)
        elif isinstance(value, int | float | str):
            found[name] = value
    for name, part in holder.named_modules() if isinstance(holder, torch.nn.Module) else ():
        if isinstance(count := getattr(part, "_update_count", None), int):
            found[name] = count
    return found


def is_of(holder: Any, *packages: str) -> bool:
    """Whether the class of an object comes from one of these packages, and not from a script."""
    return type(holder).__module__.partition(".")[0] in packages


def _plain_container(value: Any) -> Any:
    if not isinstance(value, dict):
        items = [plain(one) for one in value]
        kind = type(value) if type(value) in (tuple, set) else list
        return OTHER if any(one is OTHER for one in items) else kind(items)
    entries = {name: plain(one) for name, one in value.items()}
    is_plain = all(isinstance(name, str | int | float | None) for name in entries)
    kind = type(value) if type(value) in (OrderedDict, Counter) else dict
    is_plain &= not any(one is OTHER for one in entries.values())
    return kind(entries) if is_plain else OTHER
