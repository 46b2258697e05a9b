"""What workers print: a size-bounded file for each, and lines for whoever follows.

Owns reading the pipes and rotating the files.  Knows nothing of what is printed.

Bytes go to the file as they come, so nothing is lost when the agent dies; listeners get whole
lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path

from pliant.machine.files import make_private_directory, open_private
from pliant.wire.ports import OutputListener

MAX_FILE_BYTES = 16 << 20
"""Size at which a file is rotated, in bytes."""

KEPT_FILES = 2
"""Rotated files that are kept beside the newest: at most 48 MB per worker in all."""

MAX_LINE_BYTES = 64 << 10
"""A longer line is handed on in pieces, in bytes."""

_log = logging.getLogger(__name__)


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
        for number in range(self._kept, 0, -1):
            newer = self._numbered(number - 1)
            if newer.exists():
                newer.replace(self._numbered(number))
        self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


class Output(asyncio.Protocol):
    """Reads one pipe of a worker until its end."""

    def __init__(self, worker: str, file: RotatingFile, listener: OutputListener) -> None:
        self.ended = asyncio.Event()
        self._worker = worker
        self._file = file
        self._listener = listener
        self._partial = b""
        self._has_failed = False

    def data_received(self, data: bytes) -> None:
        """Store bytes and hand on the lines they complete."""
        self._file.write(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > MAX_LINE_BYTES:
            lines.append(self._partial)
            self._partial = b""
        for line in lines:
            self._tell(line)

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on a last line that has no newline."""
        if self._partial:
            self._tell(self._partial)
        self._partial = b""
        self.ended.set()

    def _tell(self, line: bytes) -> None:
        """Hand on a line; whoever cannot show it does not close the pipe of the worker."""
        try:
            self._listener(self._worker, line.decode("utf-8", "replace"))
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                _log.exception("a line of %s could not be shown", self._worker)
