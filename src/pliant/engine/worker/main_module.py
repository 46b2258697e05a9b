"""The ``__main__`` of a worker: what ``python train.py`` or ``python -m package.train`` makes.

Owns what the interpreter sets before a script's first line: argv, ``sys.path[0]``, ``__main__`` and
its names.  Must not know workers.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from pliant.core.errors import ConfigError
from pliant.engine import script_files
from pliant.machine.named_modules import module_of


def staged_main(
    command: Sequence[str], kept: Path | None = None
) -> tuple[types.ModuleType, types.CodeType]:
    """Make this process look as if python had started a command; return its main module and code.

    Args:
        command: the script, or ``-m`` and a module, with its arguments.
        kept: where the texts of the script's files are kept that the run began with.

    Raises:
        ConfigError: what is to be run cannot be read.
    """
    named = module_of(command)
    if kept is not None:
        script_files.keep_texts(kept)
    first = os.path.realpath(command[0]) if named is None else os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(first))  # noqa: PTH120
    importlib.invalidate_caches()
    sys.orig_argv = [sys.executable, *command]
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=sys.modules["builtins"], __cached__=None)
    if sys.version_info < (3, 14):  # from then on they are made when they are asked for (PEP 649)
        module.__annotations__ = {}
    sys.modules["__main__"] = module
    if named is None:
        sys.argv = list(command)
        return module, _read_script(command[0], module, kept)
    sys.argv = [command[0], *command[2:]]  # while the module is looked for
    return module, _read_module(named, module)


def _read_script(script: str, module: types.ModuleType, kept: Path | None) -> types.CodeType:
    path = os.path.abspath(script)  # noqa: PTH100  # __file__ keeps symbolic links
    module.__file__ = path
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    try:
        source = script_files.read_kept(path, kept)
    except OSError as error:
        raise ConfigError(f"cannot read the script {script}: {error.strerror}") from error
    return compile(source, path, "exec", dont_inherit=True)


def _read_module(name: str, module: types.ModuleType) -> types.CodeType:
    """Import the packages that a module is in, and return its code."""
    spec = _found(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _found(f"{name}.__main__")
    loader: Any = None if spec is None else spec.loader
    code: types.CodeType | None = None
    if spec is not None and hasattr(loader, "get_code"):
        code = loader.get_code(spec.name)
    if spec is None or code is None:
        raise ConfigError(f"there is no module {name} to run in {Path.cwd()} or installed here")
    module.__file__, module.__loader__ = spec.origin, loader
    module.__dict__.update(__cached__=spec.cached, __package__=spec.parent, __spec__=spec)
    sys.argv[0] = str(spec.origin)
    top = name.partition(".")[0]
    package = sys.modules.get(str(spec.parent) if top == "pliant" else top)  # a recipe is a script
    script_files.take_as_own([*getattr(package, "__path__", []), sys.argv[0]])
    return code


def _found(name: str) -> ModuleSpec | None:
    """Find a module, as the import of its packages tells; what fails inside of those is raised."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise
