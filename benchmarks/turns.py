"""Lets jobs that are alive together run one at a time, so that all sides see the same machine.

Owns the hand-over: a worker rests until the driver lets its side go on, and then hands in what it
measured meanwhile.  Must not know what is measured, and imports neither torch nor pliant.

    driver                                worker
    admit(side, size)    <- its side --   Player(path, side)
    call(side, word)     --- word ----->  rest(record) returns the word
                         <-- record ---   ... at its next rest
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

Record = dict[str, Any]

REST_S = 1800.0
"""How long a worker waits for its turn: longer than any run, so that only a bug meets it."""


class Player:
    """A worker's end."""

    def __init__(self, path: Path, side: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(REST_S)
        with connection:  # the lines keep it open
            connection.connect(str(path))
            self._lines: IO[str] = connection.makefile("rw")
        self._say({"side": side})

    def rest(self, record: Record) -> str:
        """Hand in a record; wait for the next turn and return what to do in it.

        Raises:
            SystemExit: the driver is gone.
        """
        self._say(record)
        try:
            word = self._lines.readline().strip()
        except ConnectionResetError:
            word = ""
        if not word:
            raise SystemExit(0)
        return word

    def close(self) -> None:
        """Leave."""
        self._lines.close()

    def _say(self, record: Record) -> None:
        self._lines.write(json.dumps(record) + "\n")
        self._lines.flush()


@dataclass(slots=True)
class Turns:
    """The driver's end; ``path`` is a socket that must not exist."""

    path: Path
    _sides: dict[str, list[IO[str]]] = field(default_factory=dict)
    _server: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_UNIX))

    def __post_init__(self) -> None:
        self._server.bind(str(self.path))
        self._server.listen(64)

    def admit(self, side: str, size: int, *, timeout_s: float) -> None:
        """Wait until all workers of a side have come to their first rest.

        Raises:
            TimeoutError: they have not in time.
        """
        while len(self._sides.get(side, [])) < size:
            self._server.settimeout(timeout_s)
            connection, _ = self._server.accept()
            connection.settimeout(timeout_s)
            with connection:
                lines = connection.makefile("rw")
            self._sides.setdefault(json.loads(lines.readline())["side"], []).append(lines)
        self._records(side)

    def call(self, side: str, word: str) -> list[Record]:
        """Let all workers of a side go on until their next rest; return what each measured.

        Raises:
            TimeoutError: one did not come to rest within the time given to ``admit``.
            RuntimeError: one is gone.
        """
        for lines in self._sides[side]:
            lines.write(word + "\n")
            lines.flush()
        return self._records(side)

    def close(self) -> None:
        """Let go of all workers, which end."""
        for lines in (lines for side in self._sides.values() for lines in side):
            lines.close()
        self._server.close()
        self.path.unlink()

    def _records(self, side: str) -> list[Record]:
        found = []
        for lines in self._sides[side]:
            line = lines.readline()
            if not line:
                raise RuntimeError(f"a worker of {side} ended before its time")
            found.append(json.loads(line))
        return found
