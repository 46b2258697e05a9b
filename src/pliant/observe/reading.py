"""How a log is read: record by record, across its parts, with what a crash leaves behind.

Owns what counts as a record, whose records count, what stands for parts that are gone, and one
clock for a whole log.  Knows nothing else of what a record means.  The ledger of the audit is read
with the same reader.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from pydantic_core import from_json

from pliant.core.text import is_moment
from pliant.observe import parts
from pliant.observe.log import COMMIT, CONTINUED, SCHEMA, Record, listed, number

STARTS = frozenset({"job_started", "coordinator_started", "pool_started"})
"""Kinds with which a process begins to write; they say on which boot."""


def read(path: Path) -> list[Record]:
    """Read a short log whole, as far as it is left; a missing one is empty."""
    return list(every(path))


def follow(path: Path, position: int = 0) -> Iterator[tuple[int, Record]]:
    """Yield (position after it, record) for each whole line from a position on; does not wait."""
    for after, line in parts.lines(path, position):
        record = record_of(line)
        if record is not None:
            yield after, record


def every(path: Path) -> Iterator[Record]:
    """Yield the records of a log that count, one by one, as far as it is left."""
    return counted(unfolded(record for _, record in follow(path)))


def left(path: Path) -> Iterator[Record]:
    """Yield the records of a log that count and are left, without what stands for the others."""
    return counted(record for _, record in follow(path))


def only(path: Path, *kinds: str) -> Iterator[Record]:
    """Yield the records of these kinds; of all others nothing is looked at but the kind's name."""
    names = [json.dumps(kind).encode() for kind in (*kinds, CONTINUED)]
    found = (line for _, line in parts.lines(path) if any(name in line for name in names))
    records = (record for record in map(record_of, found) if record is not None)
    return (record for record in unfolded(records) if record.get("kind") in kinds)


def lacks_beginning(path: Path) -> bool:
    """Whether parts of a log are gone, and what is left does not say what they told."""
    there = [*parts.closed(path), *([parts.growing(path)] if path.is_file() else [])]
    first = record_of(parts.head(path, there[0])) if there else None
    return bool(there) and there[0] > 0 and (first is None or first.get("kind") != CONTINUED)


def record_of(line: bytes) -> Record | None:
    """Return the record of a line; None if it is none, or of a later schema version.

    Its kind is a word, and its times can be computed with and shown.  All else in it may be
    anything, and is for those to look at who read it.
    """
    try:
        value = from_json(line)
    except ValueError:
        return None
    return value if _is_record(value) else None


def _is_record(value: object) -> TypeGuard[Record]:
    if not isinstance(value, dict) or value.get("v", SCHEMA) != SCHEMA:
        return False
    is_told = isinstance(value.get("kind", ""), str)
    return is_told and is_moment(value.get("at", 0)) and is_moment(value.get("mono", 0))


def carried_by(record: Record) -> list[Record]:
    """Return what a part that begins with this record tells of the parts before it."""
    return [one for one in listed(record, "carried") if _is_record(one)]


def unfolded(records: Iterable[Record]) -> Iterator[Record]:
    """Yield records; if what was before the first one is gone, what it says of that before it."""
    for at, record in enumerate(records):
        if record.get("kind") == CONTINUED and at == 0:
            yield from carried_by(record)
        yield record


def counted(records: Iterable[Record]) -> Iterator[Record]:
    """Yield what the newest coordinator so far wrote, or what no coordinator was needed to."""
    newest = 0
    for record in records:
        incarnation = record.get("incarnation")
        if isinstance(incarnation, int):
            newest = max(newest, incarnation)
            if incarnation < newest and record.get("kind") != COMMIT:
                continue
        yield record


@dataclass(slots=True)
class LogClock:
    """Eats records in file order; tells when each was, by the monotonic clock of its machine.

    That clock begins anew with a reboot or on another machine, and this one goes on there, by what
    has passed of the wall clock, which alone outlives both.  Elsewhere a wall clock that is set
    changes nothing::

        mono    100 ... 900 | 5 ... 60          job_started, coordinator_started, pool_started
        clock   100 ... 900 | 1500 ... 1555     600 s later by the wall clock
    """

    boot: str = ""
    """Of the newest start; empty: it did not say."""

    ahead_s: float = 0.0
    """What this clock is ahead of the machine's."""

    newest_s: float | None = None
    """The newest moment by this clock, and by the wall clock."""

    newest_at: float = 0.0

    now_s: float = 0.0
    """When the record was that was taken in last."""

    def add(self, record: Record) -> bool:
        """Take in the next record; return whether its machine's clock has begun anew."""
        mono = number(record.get("mono"))
        if mono is None:
            self.now_s = self.newest_s or 0.0
            return False
        if record.get("kind") == CONTINUED and not self.boot:
            self.boot = next(filter(None, map(_boot_of, reversed(carried_by(record)))), "")
        at = number(record.get("at")) or self.newest_at
        is_new = record.get("kind") in STARTS and self._begins_anew(record, mono)
        if is_new and self.newest_s is not None:
            self.ahead_s = self.newest_s + max(0.0, at - self.newest_at) - mono
        now_s = self.now_s = mono + self.ahead_s
        if self.newest_s is None or now_s >= self.newest_s:
            self.newest_s, self.newest_at = now_s, at
        return is_new

    def moment_s(self, record: Record) -> float:
        """Return when a record was that was taken in; one that does not say it: as the newest."""
        mono = number(record.get("mono"))
        return (self.newest_s or 0.0) if mono is None else mono + self.ahead_s

    def _begins_anew(self, record: Record, mono: float) -> bool:
        before, self.boot = self.boot, _boot_of(record)
        is_earlier = self.newest_s is not None and mono + self.ahead_s < self.newest_s
        return is_earlier or (bool(before) and self.boot != before)


def _boot_of(record: Record) -> str:
    machine = str(record.get("machine") or "")  # the boot, and the namespace of its processes
    return str(record.get("boot") or machine.partition(" ")[0])
