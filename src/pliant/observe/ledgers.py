"""The ledgers of all replicas as one stream, step by step, in memory that does not grow.

Owns the order: a ledger is written lineage by lineage and step by step, so that all of them can be
merged line by line, and few files are open at once: those of replicas that trained at the same
time.  A file that is not in order is read whole.  Knows nothing of what the lines must say.

Ledgers may be growing.  Every slot of a commit was recorded before it, somewhere: so the slots of
a commit that is there when the sizes are taken are there when the files are opened afterwards;
commits that came in between may lack slots, and are left out.  On a host that does not see the
directory of the run a ledger is sent once a second: a commit that another member has recorded may
then lack slots for a moment, and ``first_unreported_step`` says from where on.

Owns, too, the form of the file beside them that keeps what an audit found in their oldest lines,
once these are gone (``observe.condensing``).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter, ValidationError

from pliant.machine import run_files
from pliant.machine.files import PRIVATE, read_own, replace_file
from pliant.observe.log import Record
from pliant.observe.reading import only, record_of

Key = tuple[int, int]
"""Lineage and step."""

BEFORE_ALL: Key = (-1 << 63, 0)
END: Key = (1 << 62, 0)

_PART = re.compile(r"\.\d{6,}$")


@dataclass(slots=True)
class LedgerFile:
    """The ledger of one replica as it was at one moment."""

    replica: str
    path: Path
    size: int
    is_in_order: bool = True
    skipped: int = 0
    is_torn: bool = False

    @property
    def unreadable(self) -> str:
        """Say how much of it could not be read."""
        return f"the ledger of {self.replica} has {self.skipped} unreadable line(s)"

    def commits(self) -> Iterator[Record]:
        """Yield the lines of commits."""
        with self.path.open("rb") as file:
            for line in _until(file, self.size):
                record = record_of(line) if b'"commit"' in line else None
                if record is not None and record.get("commit"):
                    yield record

    def lines(self) -> Iterator[tuple[Key, Record]]:
        """Yield each line with where it belongs; one without meaning with the line before it.

        Raises:
            OutOfOrderError: it has to be read whole.
        """
        return self._in_order() if self.is_in_order else iter(sorted(self._keyed(), key=_KEY))

    def _in_order(self) -> Iterator[tuple[Key, Record]]:
        last = BEFORE_ALL
        for key, record in self._keyed():
            if key < last:
                raise OutOfOrderError(self)
            last = key
            yield key, record

    def _keyed(self) -> Iterator[tuple[Key, Record]]:
        self.skipped, self.is_torn, at, key = 0, False, 0, BEFORE_ALL
        with self.path.open("rb") as file:
            for line in _until(file, os.fstat(file.fileno()).st_size):
                record = record_of(line)
                at += len(line)
                if record is None:
                    self.is_torn = not line.endswith(b"\n")
                    self.skipped += bool(line.strip()) and not self.is_torn
                elif at <= self.size or not record.get("commit"):
                    key = key_of(record, key)
                    yield key, record


_KEY = itemgetter(0)


class OutOfOrderError(Exception):
    """A line of a ledger belongs before the one above it."""

    def __init__(self, ledger: LedgerFile) -> None:
        super().__init__(str(ledger.path))
        self.ledger = ledger


def ledgers_in(directory: Path) -> list[LedgerFile]:
    """Return the ledgers below a directory, each part by itself, as they are at this moment.

    Of a part that begins meanwhile no commit counts, but slots of those that are in the others.
    """
    sizes, there = _sizes(directory), _sizes(directory)
    return [LedgerFile(replica_of(path), path, sizes.get(path, 0)) for path in sorted(there)]


def replica_of(path: Path) -> str:
    """Return whose ledger a file is a part of."""
    return _PART.sub("", path.stem)


def _sizes(directory: Path) -> dict[Path, int]:
    sizes = {}
    for path in directory.glob("*.jsonl"):
        with suppress(FileNotFoundError):  # it was condensed since
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                sizes[path] = found.st_size
    return sizes


def by_step(ledgers: Iterable[LedgerFile]) -> Iterator[tuple[Key, Iterator[tuple[str, Record]]]]:
    """Yield the (replica, line) of all ledgers together for each lineage and step, in order."""
    for key, group in groupby(_merged(ledgers), key=_KEY):
        yield key, ((replica, line) for _, replica, line in group)


def key_of(line: Record, otherwise: Key) -> Key:
    """Return where a line belongs."""
    try:
        return int(line["lineage"]), int(line["step"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return otherwise


def _merged(ledgers: Iterable[LedgerFile]) -> Iterator[tuple[Key, str, Record]]:
    """Merge them; each is opened when its first line is due, and closed at its end."""
    firsts = [(next(one.lines(), None), at, one) for at, one in enumerate(ledgers)]
    waiting = [(first[0], at, one) for first, at, one in firsts if first is not None]
    waiting.sort(key=itemgetter(0, 1), reverse=True)
    open_: list[tuple[Key, int, str, Record, Iterator[tuple[Key, Record]]]] = []
    while waiting or open_:
        while waiting and (not open_ or waiting[-1][0] <= open_[0][0]):
            _, at, ledger = waiting.pop()
            lines = ledger.lines()
            key, line = next(lines)
            heappush(open_, (key, at, ledger.replica, line, lines))
        key, at, replica, line, lines = heappop(open_)
        yield key, replica, line
        following = next(lines, None)
        if following is not None:
            heappush(open_, (following[0], at, replica, following[1], lines))


def _until(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the lines before an offset; a line that is longer is cut off there."""
    while size > 0 and (line := file.readline(size)):
        size -= len(line)
        yield line


def first_unreported_step(ledgers: Sequence[LedgerFile], log: Path) -> Key:
    """Return the first step of which a member of the newest generation may have more to report."""
    members = _entered_at(log)
    newest: dict[str, Key] = {}
    for ledger in ledgers:
        for line in ledger.commits():
            key = key_of(line, BEFORE_ALL)
            newest[ledger.replica] = max(newest.get(ledger.replica, BEFORE_ALL), key)
    lineage = max(newest.values(), default=BEFORE_ALL)[0]
    reported = [
        max(newest.get(member, BEFORE_ALL), (lineage, entered - 1))
        for member, entered in members.items()
    ]
    if not reported:
        return END
    lineage, step = min(reported)
    return lineage, step + 1


def _entered_at(log: Path) -> dict[str, int]:
    """Return who has entered the newest generation that all members have entered, and where."""
    number, awaited, entered = 0, set[str](), dict[str, int]()
    complete: dict[str, int] = {}
    for record in only(log, "switch", "reform", "switched"):
        with suppress(KeyError, TypeError, ValueError):
            if record["kind"] != "switched":
                order = record["order"]
                if int(order["generation"]) > number:
                    number = int(order["generation"])
                    awaited = {str(seat["replica"]) for seat in order["members"]}
                    entered = {}
            elif record["generation"] == number:
                entered[str(record["replica"])] = int(record["step"])
        if awaited and awaited <= entered.keys():
            complete, awaited = {name: entered[name] for name in awaited}, set()
    return complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Condensed:
    """The audit of everything before one step of one lineage."""

    lineage: int
    until: int
    """The first step that it does not tell of."""

    unused: int = 0
    duplicates: int = 0
    superseded: int = 0
    uncommitted: int = 0
    problems: tuple[str, ...] = ()
    """What was wrong; what was not found wrong is proved."""

    uncovered: tuple[str, ...] = ()
    """Steps of which nothing is proved, and why."""

    uncovered_steps: int = 0

    @property
    def end(self) -> Key:
        """Where it ends."""
        return self.lineage, self.until


@cache
def _adapter() -> TypeAdapter[Condensed]:
    return TypeAdapter(Condensed)


def read_condensed(out: Path) -> Condensed | None:
    """Return what there is of a run; None: its ledgers are whole.

    Raises:
        OSError: it cannot be read now, or is no file of ours.
    """
    try:
        return _adapter().validate_json(read_own(out / run_files.CONDENSED))
    except FileNotFoundError:
        return None
    except ValidationError:
        said = f"{run_files.CONDENSED} cannot be read: what was audited of the oldest steps is lost"
        return Condensed(lineage=0, until=0, problems=(said,))


def write_condensed(out: Path, condensed: Condensed) -> None:
    """Replace it, durably: what it tells of is removed next.

    Raises:
        OSError: the storage does not take it.
    """
    data = _adapter().dump_json(condensed)
    replace_file(out / run_files.CONDENSED, data, mode=PRIVATE, is_durable=True)
