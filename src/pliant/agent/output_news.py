"""What is new of what workers print, for a coordinator that does not see their files.

Owns how much of it is kept until it can be told: the newest, in letters, whatever is printed and
however long nobody hears it.  What had no room is left out, and the place of what follows shows
that.  Knows nothing of the files, which have all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pliant.core.text import local_rank_of, replica_of
from pliant.core.values import ReplicaId
from pliant.wire.messages import OutputGrown

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
