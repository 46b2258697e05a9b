"""What a pool is started with.

Owns the settings of one pool, and how those that are text are read.  Knows nothing of how it runs.
"""

from __future__ import annotations

import grp
import math
from dataclasses import dataclass, field
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.machine.loopback import loopback
from pliant.pool.claims import PoolSettings
from pliant.spec.pool import PoolFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What sets the number of devices: nobody but people, a watched file, or a trace."""

    text: str
    """As it was typed."""

    file: Path | None = None
    trace: Path | None = None
    time_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """A pool to run."""

    name: str
    devices: int | None
    """None: as many as in the life before, or ``default_devices``."""

    names: tuple[str, ...] | None = None
    """What they are called, with their kinds; None: as in the life before, or numbers only."""

    default_devices: int
    records: Path
    """Directory of the records of pools, and of each pool's own directory."""

    file: PoolFile | None = None
    """None: teams and classes as in the life before."""

    capacity: Capacity | None = None
    forget: bool = False
    """Begin without what was set in the life before."""

    gid: int | None = None
    """Group whose users share it; None: it is one user's."""

    port: int = 0
    address: str = field(default_factory=loopback)
    settings: PoolSettings | None = None


def parse_capacity(text: str | None, *, time_scale: float | None) -> Capacity | None:
    """Read ``file:PATH`` or ``trace:FILE``.

    Raises:
        ConfigError: it is neither, or is played at no speed.
    """
    kind, _, path = (text or "").partition(":")
    if time_scale is not None and kind != "trace":
        raise ConfigError("--time-scale is for --capacity trace:FILE")
    if time_scale is not None and not 0 < time_scale < math.inf:
        raise ConfigError(f"--time-scale {time_scale:g} must be a number above 0")
    if text is None:
        return None
    if kind not in ("file", "trace") or not path:
        raise ConfigError(f"--capacity {text!r} is neither file:PATH nor trace:FILE")
    if kind == "file":
        return Capacity(text=text, file=Path(path))
    return Capacity(text=text, trace=Path(path), time_scale=time_scale or 1.0)


def group_id(name: str) -> int:
    """Return the number of a group.

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        if name.isdecimal():
            return int(name)
        raise ConfigError(f"there is no group {name!r}; see `getent group`") from None
