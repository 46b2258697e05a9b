"""The pool as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Everything that the next decision depends on; read it with ``standing`` and ``summary``."""
