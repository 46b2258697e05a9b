"""Output that a job never waits for: its reader may stop reading, or go away.

Owns one thread that writes what was printed, in order.  Knows nothing of what that is.

    print --> bounded queue --> thread --> stdout or stderr, which may block (``| less``, Ctrl-S)
                                       --> nowhere, once nobody reads (``| head``)
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, TextIO

MAX_HELD_BYTES = 16 << 20
"""What is kept for a reader that does not read; what comes then is left out."""


@contextlib.contextmanager
def patient_output() -> Iterator[None]:
    """Let nobody within wait for the readers of stdout and stderr; at the end all is written."""
    before = sys.stdout, sys.stderr
    writer = _OutputWriter()
    sys.stdout, sys.stderr = _through(writer, sys.stdout), _through(writer, sys.stderr)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        writer.finish()
        sys.stdout, sys.stderr = before
        if writer.num_left_out:
            sys.stderr.write(
                f"pliant: {writer.num_left_out} pieces of output were left out, as nobody read "
                "them; the files of the run have them\n"
            )


class _OutputWriter:
    """Writes to file descriptors, in the order of ``put``, on a thread of its own."""

    def __init__(self) -> None:
        self.num_left_out = 0
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def put(self, fd: int, data: bytes) -> None:
        """Have something written; never waits."""
        with self._changed:
            if self._size + len(data) > MAX_HELD_BYTES:
                self.num_left_out += 1
                return
            self._pieces.append((fd, data))
            self._size += len(data)
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all is written, as any program waits for its reader."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces or self._is_over)
                if not self._pieces:
                    return
                fd, data = self._pieces[0]
            _write(fd, data)
            with self._changed:
                self._pieces.popleft()
                self._size -= len(data)


class _QueuedFile(io.RawIOBase):
    """A file descriptor as a file; what is written goes through a writer."""

    def __init__(self, writer: _OutputWriter, fd: int) -> None:
        self._writer = writer
        self._fd = fd

    def writable(self) -> bool:
        """Return that it can be written."""
        return True

    def fileno(self) -> int:
        """Return the descriptor that the writer writes to."""
        return self._fd

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return os.isatty(self._fd)

    def write(self, data: Any, /) -> int:
        """Queue a piece."""
        self._writer.put(self._fd, bytes(data))
        return len(data)


def _write(fd: int, data: bytes) -> None:
    """Write a piece, if it can be; else to nowhere from now on."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # somebody has made the terminal non-blocking
            select.select([], [fd], [])
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, fd)
            os.close(nowhere)


def _through(writer: _OutputWriter, stream: TextIO) -> TextIO:
    try:
        fd = stream.fileno()
    except (OSError, ValueError):  # no file: a test reads it
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_QueuedFile(writer, fd)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty(),
    )
