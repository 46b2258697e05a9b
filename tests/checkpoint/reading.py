"""What tests ask of a checkpoint root beyond what commands do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pliant.checkpoint.catalogue import CheckpointSummary, listed, verify
from pliant.checkpoint.dcp.read import StoredCheckpoint
from pliant.checkpoint.store.base import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The answer to "where can this job go on?"."""

    found: CheckpointSummary | None
    skipped: tuple[str, ...]
    """One sentence for each newer one that is damaged."""


def newest(storage: Storage, *, deep: bool = True) -> Newest:
    """Return the newest checkpoint that verifies, and why newer ones do not.

    Args:
        storage: the checkpoint root.
        deep: read every byte; otherwise manifest and sizes have to do.
    """
    skipped: list[str] = []
    for one in listed(storage):
        damage = one.damage
        if damage is None and deep:
            verdict = verify(storage, one.name)
            damage = verdict.damage[0] if verdict.damage else None
        if damage is None:
            return Newest(found=one, skipped=tuple(skipped))
        skipped.append(damage)
    return Newest(found=None, skipped=tuple(skipped))


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
