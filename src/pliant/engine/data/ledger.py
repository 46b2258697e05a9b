"""Ledger: which samples each slot really used, and which slots were committed.

Owns append-only files of JSON lines per replica, a new one after each 4 MB, so that the oldest can
go once they were audited (``observe.condensing``); the lock of one says that its writer lives.  A
slot's line is written before the vote, so that whoever commits has its samples on record; the
commit's line after it.  Knows nothing of tensors, epochs or what an audit does with the lines
(``observe.audit``).

One ``os.write`` per line on an ``O_APPEND`` descriptor: a line is whole or absent, also when the
process is killed right after it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pliant.machine.files import make_private_directory, open_private
from pliant.machine.locks import lock
from pliant.observe import parts

PART_BYTES = 4 << 20
"""Size of a file after which the next one begins."""


class Ledger:
    """The ledger of one worker; without a path every line is dropped."""

    def __init__(self, path: Path | None, *, has_commits: bool = True) -> None:
        """``has_commits``: false where another worker of the replica records them."""
        self._has_commits = has_commits
        self._fd = -1
        self._is_torn = False
        self._path = path
        self._number = self._size = 0
        if path is not None:
            make_private_directory(path.parent)
            self._open(path, max(parts.closed(path), default=-1 + path.exists()) + 1)

    def _open(self, path: Path, number: int) -> None:
        """Write to a part from now on."""
        place = parts.closed_path(path, number) if number else path
        fd = open_private(place, os.O_RDWR | os.O_APPEND)  # for its lock on NFS
        with suppress(OSError):  # a file system without locks: then nothing is removed
            lock(fd, shared=True, within_s=0)
        self.close()
        self._fd, self._number, self._size = fd, number, os.fstat(fd).st_size

    def slot(
        self,
        *,
        lineage: int,
        step: int,
        generation: int,
        slot: int,
        ids: Sequence[int],
        is_used: bool,
    ) -> None:
        """Record that ``slot`` of ``step`` was computed from these samples.

        ``is_used``: the script ran a backward of a weight above 0.
        """
        unused = {} if is_used else {"unused": True}
        place = {"lineage": lineage, "step": step, "generation": generation, "slot": slot}
        self._write(**place, ids=list(ids), **unused)

    def commit(
        self, *, lineage: int, step: int, generation: int, digest: str, draws: str = ""
    ) -> None:
        """Record that ``step`` was committed with this result.

        ``draws``: of a sampler, a hash of what it draws for the step here.
        """
        if not self._has_commits:
            return
        place = {"lineage": lineage, "step": step, "generation": generation}
        drawn = {"draws": draws} if draws else {}
        self._write(**place, commit=True, digest=digest, **drawn)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, **line: object) -> None:
        """Write a line; one that the disk does not take is missed by the audit, not by the run."""
        if self._fd < 0:
            return
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        data, self._is_torn = b"\n" * self._is_torn + data, True
        with suppress(OSError):
            written = os.write(self._fd, data)
            self._is_torn = written < len(data)
            self._size += written
            if self._size >= PART_BYTES and not self._is_torn and self._path is not None:
                self._open(self._path, self._number + 1)
