"""Where a register lies: places in which one of several writers wins.

Owns that of two who replace the same bytes at one moment at most one does (R1), and that what was
written survives a power cut.  Knows nothing of what the bytes mean.

    LockedFile   one file below a lock; for coordinators of one host, or of a file system whose
                 locks hold as long as their owner believes
    LinkedFiles  each write is a new file with the next number, made by link(2), which fails where
                 the name is taken: on NFS, too, and for one that was cut off, was thought dead by
                 the server, and comes back with what it was about to write

Another is an object store (``run.register_location``), which asks over a network.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pliant.core.errors import PermanentError
from pliant.machine.files import (
    NO_LINKS,
    PRIVATE,
    SpareSpace,
    fresh_beside,
    make_private_directory,
    replace_file,
    sync_directory,
    write_new,
)
from pliant.machine.locks import held

SPACE_BYTES = 256 << 10
"""Room kept for the register: a full disk is not out of job either."""

LOOKS = 20
"""At a directory in which others remove what is older, before it counts as one that fails."""

_NAME = re.compile(r"register-(\d{12})\.json")

_LEFTOVER = re.compile(r"\.register-(\d{12})\.json\..*")


class RegisterPlace(Protocol):
    """Bytes that all coordinators of a job see; both methods may block, and raise OSError."""

    @property
    def write_again_s(self) -> tuple[float, ...]:
        """Pauses after a write that failed, in seconds; then the coordinator ends."""

    def read(self) -> bytes | None:
        """Return what is there; None: nothing ever was."""

    def exchange(self, data: bytes, *, expected: bytes | None) -> bool:
        """Replace what is as expected, durably.

        False if it is not: then nothing changed, or another has replaced this write already.
        """


class LockedFile:
    """One file, replaced under a lock that ends with the process."""

    write_again_s = (0.1, 0.3, 1.0, 3.0)
    """Together less than a heartbeat's patience."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_suffix(".lock")
        make_private_directory(path.parent)
        self._space = SpareSpace(path.with_suffix(".space"), SPACE_BYTES)

    def __str__(self) -> str:
        return str(self._path)

    def read(self) -> bytes | None:
        """Return the file's bytes."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def exchange(self, data: bytes, *, expected: bytes | None) -> bool:
        """Compare and replace; nobody else writes meanwhile."""
        with held(self._lock):
            if self.read() != expected:
                return False
            self._replace(data)
            return True

    def _replace(self, data: bytes) -> None:
        try:
            replace_file(self._path, data, mode=PRIVATE, is_durable=True)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._space.release():
                raise
            replace_file(self._path, data, mode=PRIVATE, is_durable=True)
        self._space.reserve()


class LinkedFiles:
    """A directory in which the file with the highest number counts."""

    write_again_s = (0.1, 0.3, 1.0, 3.0) + 60 * (5.0,)
    """Five minutes: a file server that is away comes back, and training goes on meanwhile."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __str__(self) -> str:
        return str(self._directory)

    def read(self) -> bytes | None:
        """Return the bytes of the newest file."""
        return self._newest()[1]

    def exchange(self, data: bytes, *, expected: bytes | None) -> bool:
        """Make the next file, unless somebody has made it.

        The number may have been made, and removed as old, while this process stood still: then a
        higher one is there, and this write has not happened.
        """
        make_private_directory(self._directory)
        number, found = self._newest()
        if found != expected:
            return False
        target = self._path(number + 1)
        with fresh_beside(target) as fresh:
            write_new(fresh, data, mode=PRIVATE, is_durable=True)
            if not _link(fresh, target):
                return False
        sync_directory(self._directory)
        if max(self._numbers()) > number + 1:
            return False
        self._remove_before(number)  # who reads at this moment may have seen that one
        return True

    def _remove_before(self, number: int) -> None:
        """Remove what is older, and what its writers could not remove, as they were killed."""
        for path in self._directory.iterdir():
            found = _NAME.fullmatch(path.name) or _LEFTOVER.fullmatch(path.name)
            if found is not None and int(found[1]) < number:
                with suppress(OSError):
                    path.unlink()

    def _newest(self) -> tuple[int, bytes | None]:
        for _ in range(LOOKS):
            number = max(self._numbers(), default=0)
            while self._path(number + 1).exists():  # a listing may be older than the files
                number += 1
            if not number:
                return 0, None
            with suppress(FileNotFoundError):  # two newer ones have come
                return number, self._path(number).read_bytes()
        raise OSError(errno.EBUSY, "it changes all the time", str(self._directory))

    def _numbers(self) -> list[int]:
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        return [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]

    def _path(self, number: int) -> Path:
        return self._directory / f"register-{number:012d}.json"


def _link(fresh: Path, target: Path) -> bool:
    """Give a file its name; false if another has it.

    Raises:
        PermanentError: this file system has no hard links.
    """
    try:
        os.link(fresh, target)
    except FileExistsError:  # or a server's answer was lost, and it was asked again
        with suppress(FileNotFoundError):
            return fresh.samefile(target)
        return False
    except FileNotFoundError:  # others have gone on, and took it for what a killed writer left
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        raise PermanentError(
            f"{target.parent} is on a file system without hard links ({error.strerror}), so it "
            "cannot keep two coordinators apart; choose another --register"
        ) from error
    return True
