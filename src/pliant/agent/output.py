"""What workers print: a file for each, and lines for whoever follows.

Owns reading the pipes.  Knows nothing of what is printed.

Bytes go to the file as they come, so nothing is lost when the agent dies; listeners get whole
lines.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from pliant.machine.rotating_file import RotatingFile

MAX_LINE_BYTES = 64 << 10
"""A longer line is handed on in pieces, in bytes."""

_log = logging.getLogger(__name__)


class OutputListener(Protocol):
    """Someone who follows the output of workers as it is written."""

    def __call__(self, worker: str, line: str, /) -> None:
        """Take one line of a worker, by its name, without its newline."""


def nobody_listens(worker: str, line: str, /) -> None:
    """Follow no output."""


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
