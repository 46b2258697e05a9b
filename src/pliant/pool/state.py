"""What a pool must not forget when it dies: who has which devices, and by which rules.

Owns the file and its shape.  Decides nothing.  It is written, durably, before anybody is told of a
grant, so that what a claimant may use is always in it; what it says of a claimant that has given
something back since may be old, which costs a moment and hands nothing out twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pliant.core.errors import PermanentError
from pliant.core.tenancy import Demand
from pliant.machine.files import PRIVATE, replace_file
from pliant.spec.pool import TeamEntry


class _Saved(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SavedClaim(_Saved):
    """One claimant."""

    name: str
    since: float
    """Wall-clock time at which it first asked."""

    wanted: Demand
    pid: int
    started: str
    """When its process began; ids are used again."""

    revision: int
    """Of the newest offer made to it."""

    replicas: int
    """How many that offer allowed."""

    suspend: bool = False
    devices: tuple[int, ...] = ()
    """Those that are its own, and those that it is to give back and has not yet."""

    leaving: tuple[int, ...] = ()
    """Of them those that it has said to have left; their locks were not free yet."""

    uid: int | None = None
    """Whose it is, in a pool that users share."""


class Given(_Saved):
    """What the pool was started with.

    One that is started again with the same goes on with what was set since; one that is started
    with something else gets that.
    """

    devices: int | None
    teams: tuple[TeamEntry, ...] | None = None
    classes: dict[str, int] | None = None
    class_users: dict[str, tuple[str, ...]] | None = None
    names: tuple[str, ...] | None = None


class SavedPool(_Saved):
    """Everything; the next life of the pool begins with it."""

    version: Literal[1] = 1
    name: str
    life: str = ""
    """Whose offers its revisions are of."""

    given: Given = Given(devices=None)
    size: int
    """Devices that it has when all are there."""

    devices: int
    """Devices that may be in use now."""

    names: tuple[str, ...] = ()
    """Of the devices, with their kinds, by number; empty: they are numbers only."""

    number: int = 0
    """Devices that there ever were; 0: no more than those."""

    revision: int = 0
    """Of the newest offer to anybody."""

    cordoned: tuple[int, ...] = ()
    drained: tuple[int, ...] = ()
    notes: dict[int, str] = Field(default_factory=dict)
    """By whom, since when and why each of them is."""

    classes: dict[str, int] = Field(default_factory=dict)
    """Those that were set, beside the ones that every pool has."""

    class_users: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Who may use a class, in a pool that users share; those that are not in it are for all."""

    teams: tuple[TeamEntry, ...] = ()
    claims: tuple[SavedClaim, ...] = ()


def name_of(saved: SavedPool, device: int) -> str:
    """Return what a device is called; empty: it is a number only."""
    return saved.names[device] if device < len(saved.names) else ""


def names_of(saved: SavedPool) -> dict[int, str]:
    """Return what the devices are called that have a name."""
    return {device: name for device, name in enumerate(saved.names) if name}


def at_rest(saved: SavedPool) -> SavedPool:
    """Return what remains of a pool that has ended in order while nobody had anything of it.

    What people have set about teams, classes and single devices stays; how many devices there are
    is what it was started with, and nothing is known of claims.
    """
    size = len(saved.names) or saved.given.devices or saved.size
    return saved.model_copy(update={"size": size, "devices": size, "claims": ()})


class StateFile:
    """One pool's file; both methods may block on the disk for milliseconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = b""

    def read(self) -> SavedPool | None:
        """Return what an earlier life has left; None if there was none.

        Raises:
            PermanentError: the file is no state of a pool.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return SavedPool.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise PermanentError(
                f"{self.path} is no state of a pool ({where}: {first['msg']}); move it away to"
                " begin anew, once no job of the pool runs"
            ) from error

    def write(self, saved: SavedPool) -> bool:
        """Replace what is recorded, durably; return whether there was anything new.

        Raises:
            OSError: the storage does not take it.
        """
        data = saved.model_dump_json(by_alias=True).encode()
        if data == self._written:
            return False
        replace_file(self.path, data, mode=PRIVATE, is_durable=True)
        self._written = data
        return True
