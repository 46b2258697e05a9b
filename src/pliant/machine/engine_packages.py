"""Whether what trains is installed here.

``pip install pliant`` is the command line and the coordinator; what computes comes with
``pliant[engine]``.  Knows nothing of those packages but their names.
"""

from __future__ import annotations

from importlib.util import find_spec

from pliant.core.errors import ConfigError

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
