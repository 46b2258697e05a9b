"""Spare space: room on a disk that nobody else can take, for what must be written when it is full.

Owns one file that holds the room.  Must not know what it is kept for.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pliant.machine.files import open_private

LEAST_BYTES = 16 << 10


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
