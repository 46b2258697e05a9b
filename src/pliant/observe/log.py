"""The event log: one JSON object per line, schema version 1; everything people see derives from it.

Owns the shape of a record and the writer that appends.  Knows nothing of what a record means:
status, timeline, goodput and explain are pure functions over the records, and nothing of who reads
them (``observe.reading``).

A record::

    {"v": 1, "at": 1767225600.0, "mono": 8123.25, "job": "gpt", "kind": "switched",
     "replica": "r3", "generation": 4, "step": 118}

``docs/reference/records.md`` has the fields of each kind, and says whose records count.  Kinds are
the core's events and commands by their snake_case name, and some more.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, overload

from pliant.core.commands import type_name
from pliant.core.text import MOST_S, worker_name
from pliant.machine.files import make_private_directory, open_private
from pliant.machine.locks import lock
from pliant.observe import parts

SCHEMA = 1
ENVELOPE = frozenset({"v", "at", "mono", "job", "kind", "incarnation"})

COMMIT = "commit"
CONTINUED = "log_continued"

MOST = 1 << 53
"""Of a whole number: JSON carries larger ones badly."""

_encoder = json.JSONEncoder(separators=(",", ":"))
_log = logging.getLogger(__name__)

Record = dict[str, Any]
Listener = Callable[[Record], None]

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class EventLog:
    """Appends records to one file; a record is on its way to disk when ``write`` returns.

    Every line goes out in a single write, so a killed process leaves at most one torn line, at the
    end; the next writer closes that line before it appends, and so does the next line after one for
    which the disk had no room.  Two writers do not tear each other's
    lines; whose lines count is for the reader.
    """

    def __init__(
        self,
        path: Path,
        *,
        job: str,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        make_private_directory(path.parent)
        self.path = path
        self.written = 0
        """Bytes that this writer has appended."""

        self.carried: Callable[[], list[Record]] | None = None
        """What the next part begins with; until it is known no part begins with anything."""

        self._job = job
        self.incarnation: int | None = None
        self._wall = wall
        self._monotonic = monotonic
        self._listeners: list[Listener] = []
        self._failed: list[Listener] = []
        self._held: deque[Record] | None = None
        """Not written yet; None: what comes is written at once."""

        self._held_at_s = 0.0
        self._fd = -1
        self._open()

    def _open(self) -> None:
        """Open the part that grows; another process may close it at this moment."""
        self._close_part()
        while True:
            self.number = parts.growing(self.path)
            self._fd = open_private(self.path, os.O_RDWR | os.O_APPEND)
            if parts.growing(self.path) == self.number:
                break
            self._close_part()
        found = os.fstat(self._fd)
        size, self._inode = found.st_size, found.st_ino
        self._is_torn = bool(size) and os.pread(self._fd, 1, size - 1) != b"\n"
        self._is_bare = not size and self.number > 0

    def subscribe(self, listener: Listener) -> None:
        """Call ``listener`` with every later record, after it was written."""
        self._listeners.append(listener)

    def speak_for(self, incarnation: int) -> None:
        """Sign every later record with the number of the coordinator that writes it."""
        self.incarnation = incarnation

    def write(self, kind: str, /, **values: Any) -> Record:
        """Append one record and return it.  ``mono`` may be given; ``at`` then follows from it."""
        return self._add(self._record(kind, {name: plain(one) for name, one in values.items()}))

    def hold(self) -> None:
        """Hold back what is written from now on, each with its moment, until it is released."""
        if self._held is None:
            self._held, self._held_at_s = deque(), self._monotonic()

    @property
    def held_s(self) -> float | None:
        """For how long records are held back by now, in seconds; None: none is."""
        return self._monotonic() - self._held_at_s if self._held else None

    def release(self, most: int | None = None) -> None:
        """Write the oldest so many that are held back; once all are: hold back no more."""
        held = self._held or deque()
        for _ in range(len(held) if most is None else min(most, len(held))):
            self._put_out(held.popleft())
        if not held:
            self._held = None

    def _add(self, record: Record) -> Record:
        if self._held is None:
            self._put_out(record)
        else:
            self._held.append(record)
        return record

    def _put_out(self, record: Record) -> None:
        self._append(self._line(record))
        for listener in self._listeners:
            self._tell(listener, record)

    def _tell(self, listener: Listener, record: Record) -> None:
        """Hand on a record; who cannot take it does not end the process that it is about."""
        try:
            listener(record)
        except Exception:  # a boundary: views, and what others wrote is in the record
            if listener not in self._failed:
                self._failed.append(listener)
                _log.exception("a %s record could not be shown", record["kind"])

    def _record(self, kind: str, values: dict[str, Any]) -> Record:
        """Return a record of plain values."""
        now_mono = self._monotonic()
        mono = float(values.pop("mono", now_mono))
        record: Record = {
            "v": SCHEMA,
            "at": round(self._wall() - (now_mono - mono), 6),
            "mono": round(mono, 6),
            "job": self._job,
            "kind": kind,
        }
        if self.incarnation is not None:
            record["incarnation"] = self.incarnation
        record.update(values)
        return record

    def _line(self, record: Record) -> bytes:
        return _encoder.encode(record).encode() + b"\n"

    def _append(self, line: bytes) -> None:
        """Write a line into the part that grows; another coordinator may have closed ours."""
        if not self._is_current():
            self._open()
        if self._is_bare and self.carried is not None:
            self._is_bare = False
            if not self.size():
                self._put(self._line(self._record(CONTINUED, {"carried": plain(self.carried())})))
        self._put(line)

    def _is_current(self) -> bool:
        try:
            return self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _put(self, line: bytes) -> None:
        """Write a line, on a line of its own even if the disk was full in the midst of the last."""
        line = b"\n" + line if self._is_torn else line
        self._is_torn = True
        written = os.write(self._fd, line)
        self.written += written
        self._is_torn = written < len(line)

    def size(self) -> int:
        """Return how many bytes the part that grows has now, whoever wrote them."""
        return os.fstat(self._fd).st_size if self._fd >= 0 else 0

    def cut(self) -> bool:
        """Close the part that grows and begin the next; return whether that could be done.

        Killed at any line of this, what is there is a whole log: a part that was not made is made
        by the next who writes.  Two coordinators at once: the lock of the part says who may.
        """
        try:
            if not lock(self._fd, within_s=0) or not self._is_current():
                return False
            self.path.rename(parts.closed_path(self.path, self.number))
            self._open()
            parts.remove(self.path, before=self._oldest_needed())
        except OSError as error:
            _log.warning("%s could not be cut: %s", self.path, error)
            return False
        return True

    def _oldest_needed(self) -> int:
        """Return the part that all before may go: it tells by itself what must be known of them."""
        candidates = range(self.number - parts.KEPT_PARTS, 0, -1)
        return next((one for one in candidates if _carries(parts.head(self.path, one))), 0)

    def write_value(self, value: object, /, **more: Any) -> Record:
        """Append a core event, command or decision under its own name.

        A field named like one of the envelope's gets the kind in front: ``exited_kind``.
        """
        kind = kind_of(value)
        values = {
            f"{kind}_{name}" if name in ENVELOPE else name: item
            for name, item in fields_of(value).items()
        }
        values |= {name: plain(one) for name, one in more.items()}
        return self._add(self._record(kind, values))

    def close(self) -> None:
        """Write what is held back and close the file; a second call does nothing."""
        self.release()
        self._close_part()

    def _close_part(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Journal(EventLog):
    """A log that leaves out what cannot be written, and says how many records once it can be again.

    A full disk costs records and not the process, which keeps elsewhere what it must not forget.
    Who follows the log hears of every record.
    """

    _lost = 0

    def _append(self, line: bytes) -> None:
        try:
            if self._lost:
                super()._append(self._line(self._record("records_lost", {"number": self._lost})))
                self._lost = 0
            super()._append(line)
        except OSError:
            self._lost += 1


def _carries(line: bytes) -> bool:
    """Whether this is the first line of a part that was written whole."""
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and record.get("kind") == CONTINUED


def kind_of(value: object) -> str:
    """Name a core value as the log does: ``StartReplica`` is ``start_replica``."""
    return type_name(type(value))


def fields_of(value: object) -> dict[str, Any]:
    """List the fields of a core value, ready for a record.

    What a value keeps out of its repr is not written down either.
    """
    names = _shown(type(value))
    if names is None:
        raise TypeError(f"only a dataclass can be logged, not {type(value).__name__}")
    return {name: plain(getattr(value, name)) for name in names}


def _shown_of(kind: Any) -> tuple[str, ...] | None:
    return tuple(item.name for item in fields(kind) if item.repr) if is_dataclass(kind) else None


_shown: Callable[[type], tuple[str, ...] | None] = cache(_shown_of)
"""Returns the names of what is logged of a value; None: it has none."""


def plain(value: Any) -> Any:
    """Turn a value into what strict JSON can hold; NaN and infinities become strings."""
    if type(value) is str and value.isascii():  # of a thousand members each name and endpoint
        return value
    if (names := _shown(type(value))) is not None:
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # what others wrote may be no unicode
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, list | tuple | range):
        return [plain(item) for item in value]
    return str(value)


def number(value: Any) -> float | None:
    """Read a number that ``plain`` wrote; ``None`` for anything else."""
    if type(value) is float:  # most are
        return value
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float) or whole(value) is not None:
        return float(value)
    return _NOT_FINITE.get(value) if isinstance(value, str) else None


@overload
def whole(value: Any) -> int | None: ...
@overload
def whole(value: Any, otherwise: int) -> int: ...
def whole(value: Any, otherwise: int | None = None) -> int | None:
    """Read a whole number that can be counted with; ``otherwise`` for anything else."""
    is_one = type(value) is int  # a bool is none
    return value if is_one and -MOST <= value <= MOST else otherwise


def seconds(value: Any) -> float | None:
    """Read a duration that can be added to a moment; ``None`` for anything else."""
    value_s = number(value)
    return value_s if value_s is not None and 0 <= value_s <= MOST_S else None


def listed(record: Record, name: str) -> list[Any]:
    """Return what a record lists; nothing if it is damaged."""
    found = record.get(name)
    return found if isinstance(found, list) else []


def members_of(order: Record) -> tuple[str, ...]:
    """Return the replicas that an order names."""
    seats = [seat for seat in listed(order, "members") if isinstance(seat, dict)]
    return tuple(str(seat["replica"]) for seat in seats if seat.get("replica"))


def worker_of(record: Record) -> str:
    """Return which worker of a replica a record is about; of a replica as a whole that."""
    return worker_name(str(record.get("replica") or ""), whole(record.get("worker")))
