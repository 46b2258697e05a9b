"""Modules that are run by name, as ``python -m package.train`` does: where their files lie.

Owns how such a command is told from a script's, and how a module is found without running any code
of its package; and whether what trains is installed here: ``pip install pliant`` is the command
line and the coordinator, what computes comes with ``pliant[engine]``.  Knows nothing of jobs.

    ("train.py", "--lr", "0.1")             a script
    ("-m", "package.train", "--lr", "0.1")  a module; of a package it is its ``__main__``
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from importlib import invalidate_caches
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from pliant.core.errors import ConfigError

FLAG = "-m"


def module_of(command: Sequence[str]) -> str | None:
    """Return the name of the module that a command runs; None: it runs a script."""
    return command[1] if command[0] == FLAG and len(command) > 1 else None


def name_of(command: Sequence[str]) -> str:
    """Return how what a command runs is called: ``train`` of ``train.py`` and ``package.train``."""
    module = module_of(command)
    return Path(command[0]).stem if module is None else module.rpartition(".")[2]


def file_of(command: Sequence[str], directory: Path) -> Path | None:
    """Return the file that a command runs in a directory; None: there is none."""
    module = module_of(command)
    found = directory / command[0] if module is None else _file_of_module(module, directory)
    return found if found is not None and found.is_file() else None


def digest_of(script: Path) -> str:
    """Return what tells a script from others; empty: it cannot be read."""
    try:
        return hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError:
        return ""


def _file_of_module(module: str, directory: Path) -> Path | None:
    invalidate_caches()
    path, spec = [str(directory), *sys.path], None
    for part in module.split("."):
        # of a package that is installed, whoever imports it finds it in its own way
        finders = sys.meta_path if spec is None else [PathFinder]
        found = (finder.find_spec(part, path) for finder in finders) if part and path else ()
        if (spec := next(filter(None, found), None)) is None:
            return None
        path = list(spec.submodule_search_locations or ())
    if path:
        spec = PathFinder.find_spec("__main__", path)
    return None if spec is None or spec.origin is None else Path(spec.origin)


ENGINE_PACKAGES = ("torch", "numpy", "xxhash", "fsspec")
"""What ``pliant[engine]`` adds."""


def require_engine(who: str) -> None:
    """Say what to install before ``who`` begins anything; imports nothing.

    Raises:
        ConfigError: a package is missing.
    """
    missing = [name for name in ENGINE_PACKAGES if find_spec(name) is None]
    if missing:
        raise lacking_engine(who, missing[0])


def lacking_engine(who: str, package: str) -> ConfigError:
    """Return the sentence for a package that ``who`` has missed."""
    return ConfigError(f"{who} needs {package}: pip install 'pliant[engine]'")
