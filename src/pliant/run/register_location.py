"""Where a job's register lies, with who the job is to its checkpoints; where its coordinator is.

Owns how a place is opened that people name, and the sign of a coordinator, by which agents find it:
``coordinator.json`` in the directory of the run.  Decides nothing.

    (nothing named)   the directory of the run: one file below a lock
    DIR               a directory that the hosts share: a file for each write
    s3://BUCKET/DIR   an object store that heeds the conditions of writes
    configmap:NAME    an object of the namespace that the coordinator's pod is in
"""

from __future__ import annotations

import errno
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from pliant.agent.uplink import Places
from pliant.checkpoint.failures import MissingError, StorageError, Trouble
from pliant.checkpoint.store.base import StorageOptions
from pliant.coordinator.register_places import LinkedFiles, LockedFile, RegisterPlace
from pliant.core.errors import ConfigError
from pliant.machine import run_files
from pliant.machine.files import PRIVATE, make_private_directory, read_own, replace_file
from pliant.run.job_config import CONFIG_MAP, is_config_map
from pliant.run.run_directory import holder_of, require_own

ANSWER_S = 10.0
"""Longest wait for an object store to answer one request, in seconds."""

REFUSALS = (Trouble.MISSING, Trouble.PERMISSION, Trouble.READ_ONLY)
"""Of an object store, which do not pass by themselves: no such bucket, no credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSign:
    """What a coordinator writes for agents that look for it."""

    url: str
    """Where its agents find it."""

    incarnation: int


class RegisterLocation(ABC):
    """A place of a job's register; every method may block, and raises OSError."""

    register: RegisterPlace

    def may_have_changed(self) -> bool:
        """Whether somebody may have written since this one has read or written; raises OSError if
        nobody knows."""
        return True

    def close(self) -> None:
        """Let go of what was opened; nothing is read or written after it."""
        return

    @abstractmethod
    def settle(self, job: str, out: Path) -> None:
        """See to it that the job is the same to its checkpoints wherever it is coordinated.

        Raises:
            ConfigError: this is the place of another job, or cannot be written.
        """


class DirectoryLocation(RegisterLocation):
    """A directory; ``is_shared``: by hosts that may all coordinate."""

    def __init__(self, directory: Path, *, is_shared: bool) -> None:
        self._directory = directory
        self.register: RegisterPlace = (
            LinkedFiles(directory) if is_shared else LockedFile(directory / run_files.REGISTER)
        )

    def settle(self, job: str, out: Path) -> None:
        """Take the name from here, if this is not the directory of the run."""
        if self._directory != out:
            try:
                make_private_directory(self._directory)
                holder = holder_of(self._directory, job)
            except OSError as error:
                raise ConfigError(
                    f"--register {self._directory} cannot be written: {error.strerror}"
                ) from None
            require_own(holder, job, str(self._directory))
            replace_file(out / run_files.HOLDER, f"{holder}\n".encode(), mode=PRIVATE)


class ConfigMapLocation(RegisterLocation):
    """A ConfigMap."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        from pliant.kube.client import SyncApi  # httpx takes 0.1 s to import
        from pliant.kube.connection import cluster_of
        from pliant.kube.register import ConfigMapPlace

        self.place = ConfigMapPlace(SyncApi(cluster_of(environ)), name)
        self.register: RegisterPlace = self.place
        self.place.uid()
        self.place.watch()

    def may_have_changed(self) -> bool:
        """Ask the watch."""
        return self.place.may_have_changed()

    def close(self) -> None:
        """End the watch."""
        self.place.close()

    def settle(self, job: str, out: Path) -> None:
        """Take the name from the object: directories come and go with pods."""
        replace_file(
            out / run_files.HOLDER, f"{job}-{self.place.uid()[:8]}\n".encode(), mode=PRIVATE
        )


class ObjectLocation(RegisterLocation):
    """A prefix of an object store; its register is itself a place (``RegisterPlace``)."""

    write_again_s = (0.1, 0.3, 1.0, 3.0) + 60 * (5.0,)
    """As of a shared directory."""

    def __init__(self, url: str, scheme: str) -> None:
        from pliant.checkpoint.store.objects import open_objects  # fsspec takes 0.1 s to import

        self._storage = open_objects(url, scheme, StorageOptions(timeout_s=ANSWER_S))
        self._url = url
        self.register: RegisterPlace = self

    def __str__(self) -> str:
        return self._storage.place(run_files.REGISTER)

    def require_conditions(self) -> None:
        """See that of two writers one wins here.

        Raises:
            ConfigError: the store does not look at the conditions of writes, or lets nobody write.
            OSError: it does not answer.
        """
        probe = f"probe-{secrets.token_hex(8)}"
        try:
            try:
                self._storage.write(probe, b"1")
                is_kept = self._storage.heeds_conditions(probe)
            finally:
                with suppress(StorageError):  # what is said is why it could not be written
                    self._storage.remove(probe)
        except StorageError as error:
            if error.kind in REFUSALS:
                raise ConfigError(f"--register {error}") from error
            raise _os_error(error) from error
        if not is_kept:
            raise ConfigError(
                f"{self._url} takes writes whatever their condition (If-Match, If-None-Match), so "
                "it cannot keep two coordinators apart; choose another --register"
            )

    def read(self) -> bytes | None:
        """Return the register's object."""
        return self._read(run_files.REGISTER)

    def exchange(self, data: bytes, *, expected: bytes | None) -> bool:
        """Replace the register's object if it is as expected."""
        try:
            if expected is None:
                return self._storage.create(run_files.REGISTER, data)
            return self._storage.exchange(run_files.REGISTER, data, expected=expected)
        except StorageError as error:
            raise _os_error(error) from error

    def settle(self, job: str, out: Path) -> None:
        """Take the name that was put here first."""
        found = self._read(run_files.HOLDER)
        if found is None:
            try:
                self._storage.create(run_files.HOLDER, f"{holder_of(out, job)}\n".encode())
            except StorageError as error:
                raise _os_error(error) from error
            found = self._read(run_files.HOLDER) or b""
        require_own(found.decode(errors="replace").strip(), job, self._url)
        replace_file(out / run_files.HOLDER, found, mode=PRIVATE)

    def _read(self, path: str) -> bytes | None:
        try:
            return self._storage.read(path)
        except MissingError:
            return None
        except StorageError as error:
            raise _os_error(error) from error


def open_location(
    named: str | None, out: Path, environ: Mapping[str, str] | None = None
) -> RegisterLocation:
    """Return where a job's register lies: where it was named, or in the directory of the run.

    ``environ``: by which a cluster is found.

    Raises:
        ConfigError: no register can lie there.
        OSError: it does not answer.
    """
    if named is None:
        return DirectoryLocation(out, is_shared=False)
    if named == CONFIG_MAP:
        raise ConfigError(f"--register {named} names no object; give {CONFIG_MAP}NAME")
    if is_config_map(named):
        return ConfigMapLocation(named.removeprefix(CONFIG_MAP), environ or {})
    if "://" not in named:
        return DirectoryLocation(Path(named), is_shared=True)
    scheme = named.partition("://")[0]
    if scheme not in ("s3", "s3a"):
        raise ConfigError(
            f"--register {named}: a register lies in a directory that the hosts share, or on s3://"
        )
    if not named.removeprefix(f"{scheme}://").strip("/"):
        raise ConfigError(f"--register {named} names no bucket; write s3://BUCKET/DIR")
    location = ObjectLocation(named, scheme)
    location.require_conditions()
    return location


def _os_error(error: StorageError) -> OSError:
    return OSError(errno.EIO, str(error), error.place)


FILE_MARK = "@"
"""Begins what names a file."""

_SIGN: TypeAdapter[CoordinatorSign] = TypeAdapter(CoordinatorSign)


def agents_url(url: str) -> str:
    """Return where the agents of a coordinator connect."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise ConfigError(
            f"{url} is no place of a coordinator, such as gpu1:7000 or https://gpu1:7000"
        )
    return f"{schemes[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}/v1/agents"


def always_at(*urls: str) -> Places:
    """Return places that do not change."""
    found = tuple(map(agents_url, urls))
    return lambda: found


def places_of(join: str) -> Places:
    """Return the places that ``--join`` names.

    Raises:
        ConfigError: it names none.
    """
    if join.startswith(FILE_MARK):
        path = Path(join.removeprefix(FILE_MARK)).absolute()
        return lambda: (agents_url(read_sign(path).url),)
    return always_at(*listed(join))


def places_now(join: str) -> list[str]:
    """Return the places that ``--join`` names at this moment, as they were given.

    Raises:
        ConfigError: it names none, or a file that no coordinator has written.
    """
    if not join.startswith(FILE_MARK):
        return listed(join)
    try:
        return [read_sign(Path(join.removeprefix(FILE_MARK))).url]
    except FileNotFoundError:
        raise ConfigError(
            f"--join {join}: there is no such file; it is the coordinator.json of the "
            "coordinator's --out, and there while one serves"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"--join {join}: no coordinator has written that; name the coordinator.json of its "
            "--out"
        ) from error


def listed(join: str) -> list[str]:
    """Return the places of a list, as they were given.

    Raises:
        ConfigError: one of them is empty, or given twice.
    """
    places = [place.strip() for place in join.split(",")]
    if not all(places):
        raise ConfigError(f"--join {join} names an empty place; leave out the comma")
    if twice := next((place for place in places if places.count(place) > 1), None):
        raise ConfigError(f"--join {join} names {twice} twice; name each place once")
    return places


def read_sign(path: Path) -> CoordinatorSign:
    """Return what a coordinator has written into its file.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    try:
        return _SIGN.validate_json(read_own(path))
    except ValidationError:
        raise OSError(errno.EINVAL, "no coordinator has written that", str(path)) from None


def write_sign(path: Path, sign: CoordinatorSign) -> None:
    """Write a sign, whole or not at all."""
    replace_file(path, json.dumps(asdict(sign)).encode(), mode=PRIVATE, is_contended=True)
