"""Where and how commands print: sentences, JSON, and drawings on a console that obeys no text.

Owns that nothing printed is taken for markup, an emoji's name or a terminal's control sequence,
wherever it came from; and that a job never waits for who reads its output (``patient_output``).
Knows nothing of what is shown.

    print --> bounded queue --> thread --> stdout or stderr, which may block (``| less``, Ctrl-S)
                                       --> nowhere, once nobody reads (``| head``)
"""

from __future__ import annotations

import io
import json
import os
import queue
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from pliant.core.errors import EXIT_OK
from pliant.core.text import in_one_line, printable
from pliant.observe import log
from pliant.observe.log import Record

MAX_HELD_BYTES = 16 << 20
"""What is kept for a reader that does not read; what comes then is left out."""


PADDING = 2
"""Columns between two columns of a table."""


class PlainConsole(Console):
    """Takes text as it is, whoever wrote it; the colours are those of our own styles."""

    def __init__(self, **options: object) -> None:
        settings: dict[str, object] = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(**(settings | options))  # type: ignore[arg-type]  # Rich's own options

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is drawn; what the views have let pass shows here at the latest."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


@dataclass(frozen=True, slots=True)
class ByWidth:
    """What is drawn in another way where there are fewer columns."""

    drawn: Callable[[int], Iterable[RenderableType]]
    """Returns what there is to draw in so many columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.drawn(options.max_width)


def plain_table(*columns: Column | str, **options: Any) -> Table:
    """Return a table without lines."""
    return Table(*columns, box=None, padding=(0, PADDING, 0, 0), header_style="dim", **options)


def open_closed_streams() -> None:
    """Open the standard streams that whoever has started this process has closed.

    They lead nowhere, errors to standard output if that is open.  Else a file that is opened later
    would get such a number, and what is printed.
    """
    is_shown = sys.stdout is not None
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            to_stdout = name == "stderr" and is_shown
            opened = os.dup(1) if to_stdout else os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            file = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115  for good
            setattr(sys, name, file)


def complain(sentence: str, code: int) -> int:
    """Say in one line on stderr what is wrong; return the exit code."""
    say_aside(f"pliant: {' '.join(sentence.split())}")
    return code


def say_aside(sentence: str) -> None:
    """Print a sentence on stderr, in one line."""
    print(in_one_line(sentence), file=sys.stderr, flush=True)


def print_json(values: Any) -> int:
    """Print one JSON value for machines; return the exit code of success."""
    print(json.dumps(log.plain(values), indent=2))
    return EXIT_OK


def draw(drawn: RenderableType, *, soft_wrap: bool = False) -> int:
    """Print a table, a panel or a text; return the exit code of success."""
    PlainConsole().print(drawn, soft_wrap=soft_wrap)
    return EXIT_OK


def say(text: str) -> int:
    """Print a sentence, in one line; return the exit code of success."""
    return draw(Text(text), soft_wrap=True)


def print_record(record: Record) -> None:
    """Print one record of an event log as it is."""
    print(json.dumps(record), flush=True)


@contextmanager
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
        self._pieces: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._size = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def put(self, fd: int, data: bytes) -> None:
        """Have something written; never waits."""
        with self._lock:
            if self._size + len(data) > MAX_HELD_BYTES:
                self.num_left_out += 1
                return
            self._size += len(data)
            self._pieces.put((fd, data))

    def finish(self) -> None:
        """Wait until all is written, as any program waits for its reader."""
        self._pieces.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            _write(*piece)
            with self._lock:
                self._size -= len(piece[1])


class _QueuedFile(io.FileIO):
    """A file descriptor as a file; what is written goes through a writer."""

    def __init__(self, writer: _OutputWriter, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self._writer = writer

    def write(self, data: Any, /) -> int:
        """Queue a piece."""
        self._writer.put(self.fileno(), bytes(data))
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
