"""What a pool is started with: what was asked for, over what the life before has left.

Owns the settings of one pool, how those that are text are read, and the contradictions between the
two.  Knows nothing of how a pool runs.
"""

from __future__ import annotations

import grp
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.machine.interfaces import loopback
from pliant.pool.claims import PoolSettings
from pliant.pool.state import Given, SavedPool
from pliant.spec.pool import PoolFile, TeamEntry, promised_too_much


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """A pool to run."""

    name: str
    devices: int | None
    """None: as many as in the life before, or ``default_devices``."""

    names: tuple[str, ...] | None = None
    """What they are called, with their kinds; None: as in the life before, or numbers only."""

    default_devices: int
    default_names: tuple[str, ...] = ()
    """What those are called."""

    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By which this process sees the devices of the machine."""

    records: Path
    """Directory of the records of pools, and of each pool's own directory."""

    file: PoolFile | None = None
    """None: teams and classes as in the life before."""

    forget: bool = False
    """Begin without what was set in the life before."""

    gid: int | None = None
    """Group whose users share it; None: it is one user's."""

    port: int = 0
    address: str = field(default_factory=loopback)
    settings: PoolSettings | None = None


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


NOTHING_SET: dict[str, object] = {
    "given": Given(devices=None),
    "size": 0,
    "names": (),
    "teams": (),
    "classes": {},
    "class_users": {},
    "cordoned": (),
    "drained": (),
    "notes": {},
}
"""What ``--forget`` makes of the life before; who has devices keeps them."""


def begun(config: PoolConfig, found: SavedPool | None, path: Path) -> SavedPool:
    """Return what the pool begins with: what was asked for, over what the life before has left."""
    given, before = _given(config), found
    if found is not None and config.forget:
        found = found.model_copy(update=NOTHING_SET)
    began = found or SavedPool(name=config.name, size=0, devices=0)
    changed: dict[str, object] = {"given": given}
    if found is None or config.forget or began.given != given:
        size = config.devices or began.size or config.default_devices
        changed |= {"size": size, "devices": size, "number": size}
        if config.devices is not None or config.forget or not began.size:
            names = config.names if config.devices is not None else config.default_names
            changed["names"] = _named(names or (), before)
        named = {
            "teams": given.teams,
            "classes": given.classes,
            "class_users": None if config.file is None else given.class_users or {},
        }
        changed |= {name: value for name, value in named.items() if value is not None}
    began = began.model_copy(update=changed)
    try:
        check_promises(began.teams, began.size)
    except ConfigError as error:
        if found is None or given.teams is not None:
            raise
        hint = f"they were set before (in {path}); begin without them with --forget"
        raise ConfigError(f"{error}: {hint}") from None
    return began


def _named(names: tuple[str, ...], before: SavedPool | None) -> tuple[str, ...]:
    """Return what devices are called from now on; not while somebody has one called otherwise.

    ``before`` is what the life before has left, whatever of it is forgotten.
    """
    if before is None:
        return names
    for claim in before.claims:
        for device in claim.devices:
            is_beyond = bool(names) and device >= len(names)
            if is_beyond or before.names[device : device + 1] != names[device : device + 1]:
                raise ConfigError(
                    f"{claim.name} still has device {device}, which is called otherwise now; start "
                    "with the same devices, or end that claim first"
                )
    return names


def _given(config: PoolConfig) -> Given:
    given = Given(devices=config.devices, names=config.names)
    if config.file is None:
        return given
    spec = config.file.spec
    classes = {entry.name: entry.value for entry in spec.priority_classes}
    users = {one.name: tuple(one.users) for one in spec.priority_classes if one.users is not None}
    return given.model_copy(
        update={"teams": tuple(spec.teams), "classes": classes, "class_users": users or None}
    )


def check_promises(teams: Iterable[TeamEntry], size: int) -> None:
    """Refuse quotas that promise more than there is."""
    if excess := promised_too_much(teams, size):
        raise ConfigError(excess)
