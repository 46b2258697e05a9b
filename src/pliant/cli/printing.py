"""How commands print: sentences, JSON, and what happens as it happens."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from pliant.cli.screens import clock
from pliant.observe import log
from pliant.observe.log import Record
from pliant.observe.pool_history import move_of, sentence


def as_json(values: Any) -> int:
    """Print one JSON value for machines; return the exit code of success."""
    print(json.dumps(log.plain(values), indent=2))
    return 0


def say(text: str) -> None:
    """Print a sentence, in one line."""
    Console(highlight=False).print(Text(text), soft_wrap=True)


def record(one: Record) -> None:
    """Print one record of an event log as it is."""
    print(json.dumps(one), flush=True)


def move(one: Record) -> None:
    """Print what a record of a pool's log tells people, if it tells something."""
    told = move_of(one)
    if told is not None:
        print(f"{clock(told.at)}  {sentence(told)}", flush=True)


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Let what is printed within go nowhere once its reader is gone: that is not the end of a job.

    A closed pipe (``pliant run train.py | head``), a terminal that was taken away, a full disk.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


class _Lasting(io.FileIO):
    """A file descriptor that takes everything."""

    def write(self, data: Any, /) -> int:
        """Write, if it can be; else to nowhere from now on."""
        try:
            return super().write(data)
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def _lasting(stream: TextIO) -> TextIO:
    try:
        fd = stream.fileno()
    except (OSError, ValueError):  # no file: a test reads it
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Lasting(fd, "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty(),
    )
