"""A file of bounded size: a full one is put aside, and the oldest of those goes.

Owns the names and the bounds.  Knows nothing of what is written.

    r1.log.2, r1.log.1    put aside, the oldest first
    r1.log                grows
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pliant.machine.files import make_private_directory, open_private

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
