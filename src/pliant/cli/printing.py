"""How commands print: sentences, JSON, and what happens as it happens."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from rich.console import RenderableType
from rich.text import Text

from pliant.cli.screens import clock
from pliant.cli.terminal import PlainConsole
from pliant.core.exits import EXIT_OK
from pliant.core.printable import in_one_line
from pliant.observe import log
from pliant.observe.log import Record
from pliant.observe.pool_history import move_of, sentence


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


def claim_printer(*, as_json: bool) -> Callable[..., None]:
    """Return what says where a claim stands, to a person or to a program, at each change."""
    last: tuple[str, str] | None = None

    def tell(state: str, text: str, **values: Any) -> None:
        nonlocal last
        if (state, text) == last:
            return
        last = (state, text)
        if as_json:
            print(json.dumps({"state": state, "reason": text, **values}), flush=True)
        else:
            say(text)

    return tell


def print_record(record: Record) -> None:
    """Print one record of an event log as it is."""
    print(json.dumps(record), flush=True)


def print_move(record: Record) -> None:
    """Print what a record of a pool's log tells people, if it tells something."""
    move = move_of(record)
    if move is not None:
        print(f"{clock(move.at)}  {in_one_line(sentence(move))}", flush=True)


@contextlib.contextmanager
def tolerate_closed_output() -> Iterator[None]:
    """Let what is printed within go nowhere once its reader is gone: that is not the end of a job.

    A closed pipe (``pliant run train.py | head``), a terminal that was taken away, a full disk.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _tolerant(sys.stdout), _tolerant(sys.stderr)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


class _TolerantFile(io.FileIO):
    """A file descriptor that never refuses what is written."""

    def write(self, data: Any, /) -> int:
        """Write, if it can be; else to nowhere from now on."""
        try:
            return super().write(data)
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def _tolerant(stream: TextIO) -> TextIO:
    try:
        fd = stream.fileno()
    except (OSError, ValueError):  # no file: a test reads it
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_TolerantFile(fd, "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty(),
    )
