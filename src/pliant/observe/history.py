"""What a log tells so far, and what it told at a position, so that nobody need read it all.

Owns the snapshot beside a log: what ``History`` held when the log had so many bytes.  A long log is
read from there.  The log stays the only truth: a snapshot of another log, of another version or cut
off by a crash is left aside, and everything is read.

    events.jsonl      |-----------------------------|--------->     whole, for whoever wants it all
    events.snapshot   offset, digest of what is before it, history
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from pliant.machine.files import PRIVATE, replace_file
from pliant.observe.explain import LAST, Explained
from pliant.observe.log import COMMIT, Record, follow
from pliant.observe.status import Board

SUFFIX = ".snapshot"

EVERY_BYTES = 16 << 20
"""Growth of a log after which it is worth another snapshot: what a restart has to read at most."""

_LOOKED_AT = 4096
"""Bytes before the offset by which a snapshot knows its log."""


@dataclass(slots=True)
class History:
    """Eats records in file order, in memory that does not grow with their number."""

    board: Board = field(default_factory=Board)
    explained: Explained = field(default_factory=Explained)

    offset: int = 0
    """How much of the log was read, in bytes."""

    snapshot_at: int = 0
    """The offset of the newest snapshot."""

    incarnation: int = 0
    """Of the newest coordinator so far; what an older one wrote later does not count."""

    def add(self, record: Record) -> None:
        """Take in one record; see ``observe.log`` for whose count."""
        incarnation = record.get("incarnation")
        if isinstance(incarnation, int):
            self.incarnation = max(self.incarnation, incarnation)
            if incarnation < self.incarnation and record.get("kind") != COMMIT:
                return
        self.board.add(record)
        self.explained.add(record)


@with_config(ConfigDict(ser_json_inf_nan="constants"))
@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    schema: str
    digest: str
    history: History


@cache
def _adapter() -> TypeAdapter[_Snapshot]:
    return TypeAdapter(_Snapshot)


def read_history(log: Path) -> History:
    """Read a log from its snapshot on; a missing log is an empty one."""
    history = _restored(log)
    for offset, record in follow(log, history.offset):
        history.offset = offset
        history.add(record)
    return history


def snapshot_of(history: History, log: Path) -> bytes:
    """Return what ``write_snapshot`` is to write; ``history`` may go on at once."""
    snapshot = _Snapshot(schema=_schema(), digest=_digest(log, history.offset), history=history)
    return _adapter().dump_json(snapshot)


def write_snapshot(data: bytes, log: Path) -> None:
    """Replace the snapshot of a log.

    Raises:
        OSError: the storage does not take it.
    """
    replace_file(log.with_suffix(SUFFIX), data, mode=PRIVATE)


def _restored(log: Path) -> History:
    try:
        found = _adapter().validate_json(log.with_suffix(SUFFIX).read_bytes())
        is_of_it = (found.schema, found.digest) == (_schema(), _digest(log, found.history.offset))
    except (OSError, ValidationError):
        return History()
    if not is_of_it:
        return History()
    found.history.board.bound()
    found.history.explained.decisions = deque(found.history.explained.decisions, LAST)
    return found.history


def _digest(log: Path, offset: int) -> str:
    """Return the digest of what stands before an offset; another log has something else there."""
    with log.open("rb") as file:
        start = max(offset - _LOOKED_AT, 0)
        file.seek(start)
        return hashlib.blake2b(file.read(offset - start), digest_size=16).hexdigest()


@cache
def _schema() -> str:
    """Return the digest of what a history consists of: another version may have other fields."""
    shape = repr(sorted(_adapter().json_schema()["$defs"].items()))
    return hashlib.blake2b(shape.encode(), digest_size=16).hexdigest()
