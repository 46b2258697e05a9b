"""What is new in the ledgers of an agent whose directory the coordinator does not see.

Owns how far each file was told, and how far it was a while ago.  Whole lines go up as messages,
with the place of each, so that one that is told twice is written once.  Knows nothing of what a
line says.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pliant.core.values import ReplicaId
from pliant.machine import run_files
from pliant.wire.messages import LedgerGrown

PIECE_BYTES = 1 << 18
"""Of one message, which may have 1 MB; a longer line goes up in pieces."""

_NAME = re.compile(r"(r[1-9]\d*)(?:\.([1-9]\d{0,4}))?(?:\.(\d{6,}))?\.jsonl")


class LedgerNews:
    """Of one directory of a run."""

    def __init__(self, out: Path, looks_kept: int = 0) -> None:
        """``looks_kept``: after so many more, what was told has arrived, or never will."""
        self._ledgers = out / run_files.LEDGER
        self._told: dict[Path, int] = {}
        self._before: deque[dict[Path, int]] = deque(maxlen=looks_kept)
        """Of each of the last looks, how far what it told of was told before it."""

    def new(self, replica: ReplicaId | None = None) -> Iterator[LedgerGrown]:
        """Yield what was written since the last look, by all or by one; what is left is new yet."""
        before: dict[Path, int] = {}
        self._before.append(before)
        for path in sorted(self._ledgers.glob("*.jsonl")):
            name = _NAME.fullmatch(path.name)
            if name is None or replica not in (None, name[1]):
                continue
            while lines := self._lines(path):
                offset = self._told.get(path, 0)
                before.setdefault(path, offset)
                self._told[path] = offset + len(lines)
                yield LedgerGrown(
                    replica=ReplicaId(name[1]),
                    worker=None if name[2] is None else int(name[2]),
                    part=int(name[3] or 0),
                    offset=offset,
                    lines=lines.decode("ascii", "replace"),
                )

    def tell_all(self) -> None:
        """Count all as new: who was told it has lost it."""
        self._told.clear()
        self._before.clear()

    def tell_again(self) -> None:
        """Count as new what the last looks have told of."""
        for before in reversed(self._before):
            self._told |= before
        self._before.clear()

    def _lines(self, path: Path) -> bytes:
        """Return the whole lines that come next, a piece of them; empty: there is none."""
        with suppress(OSError), path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), PIECE_BYTES, self._told.get(path, 0))
            end = data.rfind(b"\n") + 1
            return data if not end and len(data) == PIECE_BYTES else data[:end]
        return b""
