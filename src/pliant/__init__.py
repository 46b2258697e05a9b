"""Elastic training for PyTorch, exact to the bit.

``import pliant`` is light: torch is imported when an engine name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pliant.checkpoint.checkpoint import Checkpoint
    from pliant.core.errors import ConfigError, PliantError, UsageError
    from pliant.engine.plain_state import State
    from pliant.engine.randomness import seed
    from pliant.engine.session import Session
    from pliant.engine.sharding.device_mesh import mesh
    from pliant.engine.worker.once import once, run_dir
    from pliant.engine.worker.own_device import device
    from pliant.integrations.own_loop import ElasticDataLoader, load_checkpoint, save_checkpoint
    from pliant.restart.event import elastic_event

_PUBLIC_NAMES = {
    "Checkpoint": "pliant.checkpoint.checkpoint",
    **dict.fromkeys(("ConfigError", "PliantError", "UsageError"), "pliant.core.errors"),
    **dict.fromkeys(
        ("ElasticDataLoader", "load_checkpoint", "save_checkpoint"), "pliant.integrations.own_loop"
    ),
    "Session": "pliant.engine.session",
    "State": "pliant.engine.plain_state",
    "device": "pliant.engine.worker.own_device",
    "elastic_event": "pliant.restart.event",
    "mesh": "pliant.engine.sharding.device_mesh",
    "once": "pliant.engine.worker.once",
    "run_dir": "pliant.engine.worker.once",
    "seed": "pliant.engine.randomness",
}

__all__ = [
    "Checkpoint",
    "ConfigError",
    "ElasticDataLoader",
    "PliantError",
    "Session",
    "State",
    "UsageError",
    "device",
    "elastic_event",
    "load_checkpoint",
    "mesh",
    "once",
    "run_dir",
    "save_checkpoint",
    "seed",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, and with those of the engine torch (PEP 562)."""
    if name in _PUBLIC_NAMES:
        try:
            return getattr(import_module(_PUBLIC_NAMES[name]), name)
        except ModuleNotFoundError as error:
            from pliant.machine.named_modules import ENGINE_PACKAGES, lacking_engine

            if error.name not in ENGINE_PACKAGES:
                raise
            raise ImportError(str(lacking_engine(f"pliant.{name}", error.name))) from error
    raise AttributeError(f"module 'pliant' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Name what is public, imported or not: for completion and ``help``."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
