"""The register on storage: a locked, fsynced file, written by compare-and-swap (R1).

Owns that a write either happened and is durable, or raises.  Knows nothing of what the register
means.  Two coordinators on one directory cannot both believe that they decide: the second write
over the same value is a conflict.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pliant.core.errors import ConflictError, PermanentError
from pliant.core.values import Register
from pliant.machine.descriptors import SpareDescriptors
from pliant.machine.event_loop import aside
from pliant.machine.files import PRIVATE, make_private_directory, replace_file
from pliant.machine.locks import held
from pliant.machine.spare_space import SpareSpace

WRITE_AGAIN_S = (0.1, 0.3, 1.0, 3.0)
"""Pauses after a write of the register that failed; together less than a heartbeat's patience, in
seconds."""

SPARE = 4
"""Descriptors kept for the register: out of descriptors is not out of job."""

SPACE_BYTES = 256 << 10
"""Room kept for the register: a full disk is not out of job either."""

_log = logging.getLogger(__name__)
_ADAPTER: TypeAdapter[Register] = TypeAdapter(Register)


class RegisterFile:
    """One register in one file; every method may block on the disk for milliseconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_suffix(".lock")
        self._spare = SpareDescriptors(SPARE)
        make_private_directory(path.parent)
        self._space = SpareSpace(path.with_suffix(".space"), SPACE_BYTES)

    def read(self) -> Register | None:
        """Return what is recorded; ``None`` if nothing ever was.

        Raises:
            PermanentError: the file is no register.
        """
        try:
            return _ADAPTER.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise PermanentError(f"{self._path} is no register: {error}") from error

    def write(self, register: Register, *, expected: Register | None) -> None:
        """Replace ``expected`` by ``register``; on return it survives a power cut.

        Raises:
            ConflictError: something else is recorded.
        """
        with self._spare.lent(), held(self._lock):
            self._require(expected)
            self._replace(_ADAPTER.dump_json(register))

    def confirm(self, expected: Register) -> None:
        """Raise ConflictError unless ``expected`` is still what is recorded (R20)."""
        with self._spare.lent(), held(self._lock):
            self._require(expected)

    def _replace(self, data: bytes) -> None:
        try:
            replace_file(self._path, data, mode=PRIVATE, is_durable=True)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._space.release():
                raise
            replace_file(self._path, data, mode=PRIVATE, is_durable=True)
        self._space.reserve()

    def _require(self, expected: Register | None) -> None:
        found = self.read()
        if found != expected:
            raise ConflictError(
                "another coordinator has taken over this job: "
                f"{self._path} is now that of incarnation {found.incarnation}"
                if found
                else f"{self._path} was removed while the job ran"
            )


class HeldRegister:
    """The register as this coordinator has written it; another's is a conflict."""

    def __init__(self, file: RegisterFile) -> None:
        self._file = file
        self._recorded: Register | None = None

    async def read(self) -> Register | None:
        """Return what a coordinator before has left."""
        self._recorded = await aside(self._file.read)
        return self._recorded

    async def confirm(self) -> None:
        """Raise ConflictError if another coordinator has taken over (R20)."""
        if self._recorded is not None:
            await aside(self._file.confirm, self._recorded)

    async def write(self, register: Register) -> None:
        """Write, and where it is not known whether that worked, look and write again (R2).

        Raises:
            ConflictError: another coordinator has taken over.
            PermanentError: storage does not take it.
        """
        if register == self._recorded:
            return
        expected, failure = self._recorded, OSError()
        for wait_s in WRITE_AGAIN_S:
            try:
                await aside(self._file.write, register, expected=expected)
            except OSError as error:
                failure = error
                _log.warning("the register could not be written: %s", error)
                await asyncio.sleep(wait_s)
                if await aside(self._file.read) == register:
                    expected = register  # it was written, but perhaps not yet durably
            else:
                self._recorded = register
                return
        raise PermanentError(f"the register cannot be written: {failure}") from failure
