"""Step log: a text file whose rows belong to steps, each once, whatever happens to the replicas.

Every replica runs the same tails, so every replica has the same rows.  Each keeps them in memory
until the leader of a tail has appended them; the leader dies, and the next one appends what the
file lacks.  Beside ``log.csv`` lies ``.log.csv.steps``, which says where in the file the rows of
each step end: from it a leader knows what is there, and a run that goes on from a checkpoint cuts
off the rows of the steps that it will do again.

    write (any replica, in a tail) -> in memory -> land (the leader, behind the tail) -> file, index

Owns the file, its index and what is not in it yet.  Must not know who leads, or what a step is.
Rows are in the page cache when the tail has ended: they survive the death of any process, and as
much of a machine's death as the file system does.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pliant.core.errors import ConfigError
from pliant.machine.files import replace_file
from pliant.machine.locks import WAIT_S, lock

LOOK_AFTER = 256
"""Steps whose rows a replica keeps until it looks which of them the leaders have appended."""


class Moment(NamedTuple):
    """Where in a run something is written; moments are ordered as the run is."""

    step: int
    part: int = 0
    """0: in the tail of the step; 1: behind the call of ``steps()`` that ended with it."""


BEFORE = Moment(-1)
"""Before the first step: the header."""

NOTHING = Moment(-2)
"""Before everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Which life of which run writes: what an earlier one wrote of later steps is cut off."""

    run: str
    lineage: int
    begun_at: int | None
    """Number of steps with which this life began; None: this replica joined it later."""


@dataclass(slots=True)
class Index:
    """What lies in the file: moments in order, and where the rows of each end, in bytes."""

    run: str = ""
    lineage: int = 0
    rows: list[tuple[Moment, int]] = field(default_factory=list)

    @property
    def last(self) -> tuple[Moment, int]:
        """Return the last moment that has rows, and the size of the file."""
        return self.rows[-1] if self.rows else (NOTHING, 0)

    def dump(self) -> bytes:
        """Return it as the text of its file."""
        head = json.dumps({"run": self.run, "lineage": self.lineage})
        return f"{head}\n".encode() + b"".join(_line(*row) for row in self.rows)

    @classmethod
    def load(cls, text: bytes) -> Index:
        """Read it; of a file that is damaged what stands before the damage."""
        lines = text.decode(errors="replace").splitlines()
        index = cls()
        try:
            head = json.loads(lines[0])
            index.run, index.lineage = str(head["run"]), int(head["lineage"])
            for line in lines[1:]:
                step, part, end = map(int, line.split())
                index.rows.append((Moment(step, part), end))
        except (IndexError, KeyError, TypeError, ValueError):
            pass
        return index


def _line(moment: Moment, end: int) -> bytes:
    return f"{moment.step} {moment.part} {end}\n".encode()


class StepLog(io.TextIOBase):
    """What ``session.open_log`` returns: write to it on every replica, in the tail of a step.

    ``write``, ``print(..., file=log)`` and ``csv.writer(log)`` work.  ``flush`` and ``close`` do
    nothing: rows are appended when their tail has ended.
    """

    def __init__(
        self,
        path: Path,
        *,
        moment: Callable[[], Moment | None],
        noted: Callable[[str], None],
        is_writer: bool = True,
    ) -> None:
        """Of a file.

        Args:
            path: absolute.
            moment: what is written now belongs to; None: to a phase that was over before this
                replica came, so that it is left out.
            noted: passes on one sentence for people.
            is_writer: False on those workers of a replica that do not speak for it.

        Raises:
            ConfigError: the file holds what no step log wrote, or cannot be written.
        """
        self.path = path
        self.index_path = path.with_name(f".{path.name}.steps")
        self._moment = moment
        self._noted = noted
        self._is_writer = is_writer
        self._rows: dict[Moment, list[str]] = {}
        self._known: tuple[Life, Moment, int] | None = None
        """Of the file as this replica left it: whose it is, its last moment, its size in bytes."""
        self._index_left: tuple[int, int] | None = None
        """What tells the index as this replica left it; another life replaces it."""
        if is_writer:
            self._check()

    def _check(self) -> None:
        try:
            is_foreign = self.path.stat().st_size > 0 and not self.index_path.exists()
        except FileNotFoundError:
            is_foreign = False
        except OSError as error:
            raise ConfigError(f"session.open_log cannot use {self.path}: {error}") from error
        if is_foreign:
            raise ConfigError(
                f"{self.path} is there and session.open_log did not write it; move it away, or "
                "give the log another name"
            )
        if not self.path.parent.is_dir():
            raise ConfigError(
                f"session.open_log({str(self.path)!r}): there is no directory {self.path.parent}; "
                "make it with os.makedirs(..., exist_ok=True)"
            )

    def close(self) -> None:
        """Do nothing: what was written is appended when its tail has ended."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Keep text for the step whose tail is running; return its length in characters.

        Raises:
            UsageError: inside the loop over a step, whose micro-batches differ between replicas.
        """
        if not isinstance(text, str):
            raise TypeError(f"a step log takes text, not {type(text).__name__}")
        moment = self._moment()
        if moment is not None and self._is_writer:
            for later in [one for one in self._rows if one > moment]:
                del self._rows[later]  # the run has gone back: those steps are done again
            self._rows.setdefault(moment, []).append(text)
        return len(text)

    def land(self, life: Life, *, leads: bool) -> None:
        """Append what the file lacks, if this replica leads; else keep it while it may be needed.

        Between two steps, on every replica.
        """
        if not self._is_writer:
            return
        if leads and (self._rows or self._known is None or self._known[0] != life):
            self._append(life)
        elif not leads:
            self._known = None
            if len(self._rows) > LOOK_AFTER:
                last, _ = self._read_index().last
                self._rows = {moment: rows for moment, rows in self._rows.items() if moment > last}

    def _append(self, life: Life) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock(fd)
            found = self._take_over(fd, life)
            if found is None:
                self._rows.clear()
                return
            last, size = found
            rows, lines = [], []
            for moment in sorted(one for one in self._rows if one > last):
                rows.append("".join(self._rows[moment]).encode())
                last, size = moment, size + len(rows[-1])
                lines.append(_line(moment, size))
            _write_all(fd, b"".join(rows))
            with self.index_path.open("ab") as index:
                index.write(b"".join(lines))
            self._known, self._index_left = (life, last, size), self._index_mark()
            self._rows.clear()
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        """Keep off a leader that was cut off and does not know it yet."""
        is_ours = True
        with suppress(OSError):  # a file system without locks: nothing to wait for
            is_ours = lock(fd, within_s=WAIT_S)
        if not is_ours:
            raise TimeoutError(f"another process has held the lock of {self.path} for {WAIT_S:g} s")

    def _take_over(self, fd: int, life: Life) -> tuple[Moment, int] | None:
        """Make file and index fit to append to; return the last moment and the size of the file.

        None: a later life of the run writes here, and this replica was cut off from it.
        """
        size = os.fstat(fd).st_size
        is_as_left = self._index_left is not None and self._index_left == self._index_mark()
        if is_as_left and self._known is not None and self._known[::2] == (life, size):
            os.lseek(fd, 0, os.SEEK_END)
            return self._known[1:]
        index = self._read_index()
        if index.run == life.run and index.lineage > life.lineage:
            return None
        if (index.run, index.lineage) != (life.run, life.lineage):
            self._cut(index, life)
        if size < index.last[1]:
            self._noted(
                f"something else than session.open_log has cut {self.path}: rows that it had are "
                "lost"
            )
        index.rows = [row for row in index.rows if row[1] <= size]
        replace_file(self.index_path, index.dump())
        os.ftruncate(fd, index.last[1])  # a leader died between the rows and their line
        os.lseek(fd, 0, os.SEEK_END)
        return index.last

    def _cut(self, index: Index, life: Life) -> None:
        """Leave of what an earlier life wrote what this one goes on with."""
        first = min(self._rows, default=BEFORE) if life.begun_at is None else Moment(life.begun_at)
        if first <= Moment(0):
            first = BEFORE
            if index.rows:
                self._noted(f"{self.path} begins anew: it had the rows of an earlier run")
        index.rows = [row for row in index.rows if row[0] < first]
        index.run, index.lineage = life.run, life.lineage

    def _index_mark(self) -> tuple[int, int] | None:
        try:
            found = self.index_path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size

    def _read_index(self) -> Index:
        try:
            return Index.load(self.index_path.read_bytes())
        except FileNotFoundError:
            return Index()


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


class StepLogs:
    """The step logs of one session."""

    def __init__(self, *, run: str, is_writer: bool, noted: Callable[[str], None]) -> None:
        """Of a run with this identity; ``is_writer``: see ``StepLog``."""
        self._run = run
        self._is_writer = is_writer
        self._noted = noted
        self._logs: dict[Path, StepLog] = {}
        self.begun_at: int | None = 0
        """See ``Life``."""

    def open(self, path: Path, moment: Callable[[], Moment | None]) -> StepLog:
        """Return the log of a file; the same one for the same file."""
        path = Path(os.path.abspath(path))  # noqa: PTH100  links stay as they are
        if path not in self._logs:
            self._logs[path] = StepLog(
                path, moment=moment, noted=self._noted, is_writer=self._is_writer
            )
        return self._logs[path]

    def land(self, lineage: int, *, leads: bool) -> None:
        """Append what the files lack, if this replica leads; between two steps, on all replicas."""
        life = Life(run=self._run, lineage=lineage, begun_at=self.begun_at)
        for log in self._logs.values():
            log.land(life, leads=leads)
