"""What a job is given besides its sizes: workers, limits and files, by its settings.

Owns the bounds of each, and the contradictions between them.  Knows nothing of where they come
from.
"""

from __future__ import annotations

from pathlib import Path

from pliant.cli.arguments import some_seconds
from pliant.cli.settings import Settings
from pliant.core.errors import ConfigError
from pliant.core.tls_files import TlsFiles
from pliant.wire.bounds import MOST_DEVICES


def workers_of(settings: Settings) -> int:
    """Return how many processes a replica has.

    Raises:
        ConfigError: none, or more than a node can have devices.
    """
    given = settings["workers_per_replica"]
    if not 1 <= given.value <= MOST_DEVICES:
        raise ConfigError(f"{given.given} must be between 1 and {MOST_DEVICES}")
    return int(given.value)


def session_limit_of(settings: Settings) -> float | None:
    """Return how long a script may take until it makes its session, in seconds; None: unsaid.

    Raises:
        ConfigError: it is no duration, or 0.
    """
    given = settings["session_timeout"]
    return None if given.value is None else some_seconds(given.source, str(given.value))


def verify_every_of(settings: Settings) -> int:
    """Return the steps between two comparisons of the whole state; 0: none.

    Raises:
        ConfigError: it is negative.
    """
    given = settings["verify_every"]
    steps: int = given.value
    if steps < 0:
        raise ConfigError(f"{given.source} must be at least 0 (never), not {steps}")
    return steps


def tls_of(settings: Settings) -> TlsFiles | None:
    """Return the files with which replicas prove themselves to each other; None: no TLS.

    Raises:
        ConfigError: some of them are not given.
    """
    given = {name: settings[f"tls_{name}"] for name in ("ca", "certificate", "key")}
    missing = [item.setting.flag for item in given.values() if item.value is None]
    if len(missing) == len(given):
        return None
    if missing:
        flags = " and ".join(missing)
        raise ConfigError(f"{flags} must be given, too: replicas need all three files for TLS")
    return TlsFiles(**{name: str(Path(item.value).absolute()) for name, item in given.items()})
