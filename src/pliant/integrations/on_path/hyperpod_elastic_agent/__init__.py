"""The name by which scripts for HyperPod import ``elastic_event_detected``, and no other name.

On the path of processes that pliant starts in restart mode, where that package is not installed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

_KNOWN = f"{__name__}.elastic_event_handler"


def _refuse(name: str) -> NoReturn:
    raise ImportError(
        f"pliant has no {name}: of hyperpod_elastic_agent it has elastic_event_detected in "
        "hyperpod_elastic_agent.elastic_event_handler only; install the package, or leave that out",
        name=name,
    )


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    _refuse(f"{__name__}.{name}")


class _Others(importlib.abc.MetaPathFinder):
    """Refuses the other modules of the package."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Refuse what nobody else has found."""
        if fullname.startswith(f"{__name__}.") and fullname != _KNOWN:
            _refuse(fullname)
        return None


sys.meta_path.append(_Others())
