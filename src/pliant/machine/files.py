"""Files that other processes read: whole or not there, even after a power cut.

Owns how one is replaced, and room on a disk that nobody else can take, for what must be written
when it is full (``SpareSpace``).  Knows nothing of what is in them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pliant.core.errors import ConfigError

LEAST_BYTES = 16 << 10
"""Of ``SpareSpace``."""

PRIVATE = 0o600
"""Mode of a file that only this user may read."""

PRIVATE_DIRECTORY = 0o700

SHARED_DIRECTORY = 0o710
"""Mode of a directory that members of its group may enter and not list."""

SHARED_MARK = ".shared"
"""File in such a directory: the mode is what a umask or a person makes it, too."""

LEFTOVER = ".new"
"""Ends the names of files that were not whole when their writer died."""


NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
"""What a file system without hard links answers."""

MOST_BYTES = 64 << 10
"""Of a small file; those of ours have a few kilobytes."""

MOST_NAMED = 256 << 20
"""Letters of a file that people name: a million jobs; /dev/zero has no end."""


def is_shared_directory(directory: Path) -> bool:
    """Whether a directory was made for the users of a group, as far as this user may see."""
    with suppress(OSError):
        return (directory / SHARED_MARK).exists()
    return False


def replace_file(
    path: Path,
    data: bytes,
    *,
    mode: int = 0o666,
    is_durable: bool = False,
    is_contended: bool = False,
) -> None:
    """Replace a file, whole or not at all.

    Args:
        path, data, mode: the umask takes away from the mode.
        is_durable: it survives a power cut on return, and before that the old one does.
        is_contended: others may replace it at this moment.  Else the new file always has the same
            name, so that writers that are killed leave one at most, and the next replaces that.

    Raises:
        OSError: the storage does not take it; the file is as it was.
    """
    with fresh_beside(path, is_contended=is_contended) as fresh:
        write_new(fresh, data, mode=mode, is_durable=is_durable)
        fresh.replace(path)
        if is_durable:
            sync_directory(path.parent)


@contextmanager
def fresh_beside(path: Path, *, is_contended: bool = True) -> Iterator[Path]:
    """Yield a name beside a file that nobody else uses; remove what is still there at the end."""
    own = f".{uuid.uuid4().hex}" if is_contended else ""
    fresh = path.with_name(f".{path.name}{own}{LEFTOVER}")
    if not is_contended:
        fresh.unlink(missing_ok=True)
    try:
        yield fresh
    finally:
        with suppress(OSError):
            fresh.unlink()


def is_leftover(name: str) -> bool:
    """Whether a file is what ``fresh_beside`` could not remove: its writer was killed."""
    return name.startswith(".") and name.endswith(LEFTOVER)


def open_private(path: Path, flags: int) -> int:
    """Open a file of this user's that nobody else may read; make it if it is not there.

    Raises:
        OSError: it is a link, no file, or another user's: somebody may have put it there.
    """
    flags |= os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would block
    fd = os.open(path, flags, PRIVATE)
    found = os.fstat(fd)
    # Root's and those of whose directory it is, too: a shared file system may map all users to one.
    trusted = (os.geteuid(), 0, path.parent.stat().st_uid)
    if stat.S_ISREG(found.st_mode) and found.st_uid in trusted:
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, "it is no file of this user's", str(path))


def make_private_directory(path: Path) -> None:
    """Make a directory that only this user may enter, if it is not there, and those above it."""
    path.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)


def write_new(path: Path, data: bytes, *, mode: int = 0o666, is_durable: bool = False) -> None:
    """Write a file that is not there yet."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        if is_durable:
            file.flush()
            os.fsync(fd)


def make_once(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Make a file, whole, unless it is there: of several that do so at one moment one does.

    Where a file system has no hard links the last one does.
    """
    with fresh_beside(path) as fresh:
        write_new(fresh, data, mode=mode)
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            fresh.replace(path)


def sync_directory(path: Path) -> None:
    """Make durable which names a directory has."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class NoFileError(OSError):
    """What has the name of a file is something else."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file; a pipe in its place is not waited for.

    Raises:
        NoFileError: it is something else.
        OSError: it cannot be opened.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, PRIVATE)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise NoFileError(errno.EINVAL, "it is no regular file", str(path))


def open_to_read(path: Path) -> BinaryIO:
    """Open a file as ``open_regular`` does, to read its bytes."""
    return os.fdopen(open_regular(path), "rb")


def read_own(path: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a file that this program wrote, and not what someone has put in its place.

    Raises:
        OSError: it cannot be read, or is a link, no regular file or too long.
    """
    fd = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_size > most_bytes:
            raise OSError(errno.EINVAL, "none of ours", str(path))
        return file.read()


def read_named(path: Path) -> str:
    """Return the text of a file that people name.

    Raises:
        ConfigError: it cannot be read, or has no end.
    """
    try:
        with path.open() as file:
            text = file.read(MOST_NAMED)
            if file.read(1):
                raise ConfigError(f"{path} cannot be read: it has more than {MOST_NAMED >> 20} MB")
            return text
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} cannot be read: it is no UTF-8 text") from None


class SpareSpace:
    """So many bytes, allocated to a file until they are given up."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self._path = path
        self._nbytes = nbytes
        self.reserve()

    def reserve(self) -> None:
        """Have them again, or the half, and so on: as far as there are any."""
        nbytes = self._nbytes
        while nbytes >= LEAST_BYTES and not self._allocate(nbytes):
            nbytes //= 2

    def release(self) -> bool:
        """Let others have them; return whether there were any."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def _allocate(self, nbytes: int) -> bool:
        with suppress(OSError):
            if self._path.stat().st_size >= nbytes:
                return True
        try:
            fd = open_private(self._path, os.O_RDWR)
            try:
                os.posix_fallocate(fd, 0, nbytes)
            finally:
                os.close(fd)
        except OSError:
            self.release()
            return False
        return True


MAX_FILE_BYTES = 16 << 20
"""Size at which a file is rotated, in bytes."""

KEPT_FILES = 2
"""Rotated files that are kept beside the newest: at most 48 MB per worker in all."""


class RotatingFile:
    """Appends bytes to a file; a full one becomes ``.1``, that one ``.2``, and so on.

    What the disk does not take is lost: whoever prints is not to be disturbed.
    """

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_FILE_BYTES, kept: int = KEPT_FILES
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._fd = -1
        self._size = 0
        make_private_directory(path.parent)
        self._open()

    def write(self, data: bytes) -> None:
        """Append; rotates first if the file is full."""
        with contextlib.suppress(OSError):
            self._write(data)

    def _write(self, data: bytes) -> None:
        if self._size + len(data) > self._max_bytes and self._size:
            self._rotate()
        if self._fd < 0:
            self._open()
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self._size += len(data)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._fd = open_private(self._path, os.O_WRONLY | os.O_APPEND)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self.close()
        with contextlib.suppress(OSError):  # then it grows beyond its bound, and nothing is lost
            for number in range(self._kept, 0, -1):
                newer = self._numbered(number - 1)
                if newer.exists():
                    newer.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path
