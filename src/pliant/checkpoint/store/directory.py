"""A checkpoint root that is a directory.

Owns that what was written survives a power cut: files are fsynced, and so is every directory that
gained or lost a name.  Must not know what the bytes are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pliant.checkpoint.failures import storage_error
from pliant.checkpoint.store.base import Data, Sink, StorageEntry
from pliant.machine.files import fresh_beside, replace_file, sync_directory, write_new
from pliant.machine.locks import held_file

_BUFFER_BYTES = 1 << 20
"""A tensor's archive is some forty small writes and a large one."""


class LocalStorage:
    """One directory; the calls block as long as the disk does."""

    def __init__(self, root: str) -> None:
        self._root = Path(root).expanduser().absolute()

    @property
    def has_one_winner(self) -> bool:
        """The file system sees to it: links and locks."""
        return True

    def place(self, path: str = "") -> str:
        """Return the absolute path."""
        return str(self._root / path)

    def read(self, path: str) -> bytes:
        """Return a whole file."""
        with self._at(path, "read") as target:
            return target.read_bytes()

    def read_range(self, path: str, offset: int, length: int) -> Data:
        """Return up to ``length`` bytes."""
        with self._at(path, "read") as target, target.open("rb", buffering=0) as file:
            size = max(0, min(length, os.fstat(file.fileno()).st_size - offset))
            data = memoryview(bytearray(size))
            file.seek(offset)
            taken = 0
            while taken < size and (count := file.readinto(data[taken:])):
                taken += count
            return data[:taken]

    def write(self, path: str, data: bytes) -> None:
        """Write beside, fsync, rename."""
        with self._at(path, "written") as target:
            _make_directory(target.parent)
            replace_file(target, data, is_durable=True, is_contended=True)

    def create(self, path: str, data: bytes) -> bool:
        """Link a whole file under its name: the file system lets only one do it."""
        with self._at(path, "written") as target, fresh_beside(target) as fresh:
            _make_directory(target.parent)
            write_new(fresh, data, is_durable=True)
            try:
                os.link(fresh, target)
            except FileExistsError:
                return False
            sync_directory(target.parent)
            return True

    def exchange(self, path: str, data: bytes, *, expected: bytes) -> bool:
        """Compare and replace under a lock that ends with the process."""
        with self._at(path, "written") as target:
            try:
                with held_file(target) as file:
                    if file.read() != expected:
                        return False
                    replace_file(target, data, is_durable=True, is_contended=True)
                    return True
            except FileNotFoundError:
                return False

    def sink(self, path: str) -> Sink:
        """Begin a large file, in place: whoever reads it has another file that says it is whole."""
        with self._at(path, "written") as target:
            _make_directory(target.parent)
            return _FileSink(self, path, target.open("wb", buffering=_BUFFER_BYTES))

    def entries(self, path: str = "") -> list[StorageEntry]:
        """Return what is in a directory, by name."""
        found = []
        with self._at(path, "listed") as target:
            try:
                scanned = list(os.scandir(target))
            except (FileNotFoundError, NotADirectoryError):
                return []
            for item in scanned:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    is_directory = item.is_dir(follow_symlinks=False)
                    status = item.stat()
                    num_bytes, age_s = status.st_size, time.time() - status.st_mtime
                    num_bytes = 0 if is_directory else num_bytes
                    found.append(StorageEntry(item.name, num_bytes, is_directory, age_s))
        return sorted(found, key=lambda entry: entry.name)

    def remove(self, path: str) -> None:
        """Remove a file or a directory with all in it."""
        with self._at(path, "removed") as target:
            try:
                if target.is_dir() and not target.is_symlink():
                    shutil.rmtree(target)
                else:
                    target.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
            sync_directory(target.parent)

    @contextlib.contextmanager
    def _at(self, path: str, doing: str) -> Iterator[Path]:
        try:
            yield self._root / path
        except OSError as error:
            raise storage_error(error, self.place(path), doing) from error


class _FileSink:
    """One file being written."""

    def __init__(self, storage: LocalStorage, path: str, file: IO[bytes]) -> None:
        self._storage = storage
        self._path = path
        self._file = file

    def write(self, data: Data, /) -> int:
        """Add bytes."""
        with self._storage._at(self._path, "written"):  # noqa: SLF001 - one module
            return self._file.write(data)

    def close(self) -> None:
        """Make the file and its name durable."""
        with self._storage._at(self._path, "written"):  # noqa: SLF001
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            sync_directory(Path(self._file.name).parent)

    def abandon(self) -> None:
        """Leave what is there; its directory is rubbish."""
        with contextlib.suppress(OSError, ValueError):
            self._file.close()


def _make_directory(path: Path) -> None:
    missing = [path] if not path.exists() else []
    while missing and not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)
