"""What tests ask of a checkpoint root beyond what commands do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pliant.checkpoint.catalogue import CheckpointSummary, listed, verify
from pliant.checkpoint.dcp.read import StoredCheckpoint
from pliant.checkpoint.store.base import Storage


def newest(storage: Storage) -> CheckpointSummary:
    """Return the newest checkpoint that verifies to the byte; there is one."""
    return next(one for one in listed(storage) if verify(storage, one.name).is_sound)


def nested(checkpoint: StoredCheckpoint, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return items as the nested state dict that plain PyTorch saved."""
    root: dict[str, Any] = {}
    for name, value in values.items():
        *way, last = checkpoint.items[name].path
        level: Any = root
        for step in way:
            level = level.setdefault(step, {})
        level[last] = value
    return {key: _with_lists(value) for key, value in root.items()}


def _with_lists(value: Any) -> Any:
    """Return a nest of dicts with those that have the keys 0, 1, ... as lists."""
    if not isinstance(value, dict):
        return value
    inner = {key: _with_lists(part) for key, part in value.items()}
    if inner and all(type(key) is int for key in inner) and sorted(inner) == [*range(len(inner))]:
        return [inner[index] for index in range(len(inner))]
    return inner
