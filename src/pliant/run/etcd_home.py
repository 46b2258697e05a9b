"""A job's register in etcd, and beside it what else every coordinator of the job must find.

Owns the keys of one job.  Of two coordinators that replace the register at one moment the one that
names the revision which lies there wins (R1).
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path

from pliant.coordinator.register_places import RegisterPlace
from pliant.core.errors import ConfigError, PermanentError
from pliant.core.takeover import CoordinatorSign
from pliant.machine import run_files
from pliant.machine.files import PRIVATE, replace_file
from pliant.run.coordinator_places import bytes_of, sign_of
from pliant.run.etcd import EtcdKeys, EtcdPlace, EtcdRefusedError, EtcdValue
from pliant.run.run_directory import holder_of, require_own

BEGIN_S = 60.0
"""How long a cluster is waited for that does not answer yet, in seconds."""

AGAIN_S = 5.0
"""Between two tries, in seconds."""

_log = logging.getLogger(__name__)

NOTHING = 0
"""Revision of what is not there."""


class EtcdHome:
    """A prefix in etcd; its register is itself a place (``RegisterPlace``)."""

    write_again_s = (0.1, 0.3, 1.0, 3.0) + 60 * (5.0,)
    """As of a shared directory."""

    def __init__(self, url: str) -> None:
        self._url = url.partition("?")[0].rstrip("/")
        self._keys = EtcdKeys(EtcdPlace.named(url))
        self._seen: EtcdValue | None = None
        """Of the register, last: no two writes of it have the same bytes, so that these bytes are
        of this revision, and of no other."""
        self.register: RegisterPlace = self

    def __str__(self) -> str:
        return f"{self._url}/{run_files.REGISTER}"

    def require_etcd(self) -> None:
        """See that there is a cluster which answers who asks like this.

        It is waited for: hosts and cluster may have been switched on at one moment.

        Raises:
            ConfigError: it wants a user or a certificate, or is none.
            PermanentError: it does not answer.
        """
        until_s, said = time.monotonic() + BEGIN_S, ""
        while not said or time.monotonic() < until_s:
            try:
                self._keys.read(run_files.REGISTER)
            except OSError as error:
                was, said = said, f"--register {self._url}: {error.filename}: {error.strerror}"
                if isinstance(error, EtcdRefusedError):
                    raise ConfigError(said) from error
                if said != was:
                    _log.warning("%s; it is waited for", said)
                threading.Event().wait(AGAIN_S)
            else:
                return
        raise PermanentError(f"{said}, for {BEGIN_S:g} s")

    def read(self) -> bytes | None:
        """Return the register's bytes."""
        self._seen = found = self._keys.read(run_files.REGISTER)
        return None if found is None else found.data

    def exchange(self, data: bytes, *, expected: bytes | None) -> bool:
        """Replace the register if it is as expected."""
        seen = self._seen
        if expected is not None and (seen is None or seen.data != expected):
            seen = self._keys.read(run_files.REGISTER)
            if seen is None or seen.data != expected:
                return False
        revision = NOTHING if expected is None or seen is None else seen.revision
        written = self._keys.exchange(run_files.REGISTER, data, revision=revision)
        if written is not None:
            self._seen = written
        return written is not None

    def read_sign(self) -> CoordinatorSign | None:
        """Return what the value of the sign says."""
        found = self._keys.read(run_files.COORDINATOR)
        return None if found is None else sign_of(found.data, f"{self._url}/coordinator.json")

    def write_sign(self, sign: CoordinatorSign) -> None:
        """Replace that value."""
        self._keys.write(run_files.COORDINATOR, bytes_of(sign))

    def remove_sign(self) -> None:
        """Remove that value."""
        with suppress(OSError):
            self._keys.remove(run_files.COORDINATOR)

    def settle(self, job: str, out: Path) -> None:
        """Take the name that was put here first."""
        found = self._keys.read(run_files.HOLDER)
        if found is None:
            own = f"{holder_of(out, job)}\n".encode()
            self._keys.exchange(run_files.HOLDER, own, revision=NOTHING)
            found = self._keys.read(run_files.HOLDER)
        holder = b"" if found is None else found.data
        require_own(holder.decode(errors="replace").strip(), job, self._url)
        replace_file(out / run_files.HOLDER, holder, mode=PRIVATE)
