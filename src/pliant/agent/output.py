"""What workers print: a file for each, and lines for whoever follows.

Owns reading the pipes, and when log rules (``core.log_rules``) apply to what is printed; of that it
knows nothing else.

Bytes go to the file as they come, so nothing is lost when the agent dies; listeners get whole
lines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from pliant.core.commands import Command, Reform, Switch
from pliant.core.events import Finished, Switched
from pliant.core.log_rules import LogRule, Watched, begun, heard, overdue
from pliant.core.text import local_rank_of, replica_of
from pliant.core.values import ReplicaId
from pliant.machine.files import RotatingFile
from pliant.wire.codec import Message
from pliant.wire.messages import OutputGrown

MAX_LINE_BYTES = 64 << 10
"""A longer line is handed on in pieces, in bytes."""

_log = logging.getLogger(__name__)


OutputListener = Callable[[str, str], None]
"""Takes each line of a worker as it is written: the worker's name, and the line without newline."""


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


class RuledOutput:
    """What a replica prints, under the log rules of its job, from each beginning of a size."""

    def __init__(self, rules: Sequence[LogRule], fail: Callable[[str], None]) -> None:
        self._rules = rules
        self._fail = fail
        self._watched: tuple[Watched, ...] = ()
        self._is_held = False

    def hear_line(self, line: str) -> None:
        """Take a line."""
        if self._watched:
            self._watched, why = heard(self._watched, line, time.monotonic())
            self._judge(why)

    def look_for_silence(self) -> None:
        """Look whether one that should have come has not."""
        self._judge(overdue(self._watched, time.monotonic()))

    def take_command(self, command: Command) -> None:
        """Take a command to the replica: in a hold nothing is printed."""
        if isinstance(command, Switch | Reform):
            self._watched, self._is_held = (), command.order.hold

    def take_message(self, message: Message) -> None:
        """Take what the replica says: a size begins, or all is done."""
        if isinstance(message, Switched) and not self._is_held:
            self._watched = begun(self._rules, time.monotonic())
        elif isinstance(message, Finished):
            self._watched = ()

    def _judge(self, why: str | None) -> None:
        if why is not None:
            self._watched = ()
            self._fail(why)


KEPT_LETTERS = 64 << 10
"""Of a worker, until they are told: as escapes of JSON less than a message may have."""


class KeptLines:
    """The newest lines of one worker that were not told yet."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._begin = self._end = 0

    def add(self, line: str) -> None:
        """Keep a line; what is kept the longest gives way."""
        text = f"{line[1 - KEPT_LETTERS :]}\n"
        self._lines.append(text)
        self._end += len(text)
        while self._end - self._begin > KEPT_LETTERS:
            self._begin += len(self._lines.popleft())

    def take_all(self) -> tuple[int, str]:
        """Return what is kept, behind its place, and keep it no longer."""
        offset, text = self._begin, "".join(self._lines)
        self._lines.clear()
        self._begin = self._end
        return offset, text


class OutputNews:
    """Of the workers of one node."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptLines] = {}

    def add(self, worker: str, line: str) -> None:
        """Keep a line until it is told."""
        self._kept.setdefault(worker, KeptLines()).add(line)

    def new(self) -> Iterator[OutputGrown]:
        """Yield what was kept since the last time."""
        for worker, kept in self._kept.items():
            offset, text = kept.take_all()
            if text:
                yield OutputGrown(
                    replica=ReplicaId(replica_of(worker)),
                    worker=local_rank_of(worker),
                    offset=offset,
                    text=text,
                )
