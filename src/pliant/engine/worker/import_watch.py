"""Import watch: says when one of some modules has been loaded.

Owns the finder and the loader that make it known; both step aside at once.  Must not know what for.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


class ImportWatch(importlib.abc.MetaPathFinder):
    """Says when one of some modules has been loaded; finds none itself."""

    def __init__(self, loaded: Callable[[ModuleType], None], names: Sequence[str]) -> None:
        self._loaded = loaded
        self.names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Let the others find it, and hear of it once it is loaded."""
        if fullname not in self.names:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = LoadingWatch(spec.loader, self._loaded)
                    return spec
        return None


class LoadingWatch(importlib.abc.Loader):
    """Loads one module as its own loader does, and puts that back in its place."""

    def __init__(self, loader: importlib.abc.Loader, loaded: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._loaded = loaded

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Make the module as its loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run it, and say so."""
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._loaded(module)
