"""What a log tells so far, and what it told at a position, so that nobody need read it all.

Owns the snapshot beside a log: what ``History`` held at a position of the log.  A long log is read
from there.  A snapshot of another log, of another version or cut off by a crash is left aside, and
everything is read that is left of the log; where its first parts are gone (``observe.parts``),
figures over all the run's time are then of the rest.

    events.000001.jsonl, events.jsonl    |----------------|---------------|------>
    events.snapshot                      position, digest of what is before it, history
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from pliant.machine.files import PRIVATE, read_own, replace_file
from pliant.observe import parts
from pliant.observe.carried import Carried
from pliant.observe.explain import LAST, Explained
from pliant.observe.log import COMMIT, CONTINUED, Record
from pliant.observe.reading import carried_by, follow
from pliant.observe.status import Board

SUFFIX = ".snapshot"

_LOOKED_AT = 4096
"""Bytes before the position by which a snapshot knows its log."""

_MOST_BYTES = 64 << 20
"""Of a snapshot; one of a long run has some megabytes."""


@dataclass(slots=True)
class History:
    """Eats records in file order, in memory that does not grow with their number."""

    board: Board = field(default_factory=Board)
    explained: Explained = field(default_factory=Explained)

    carried: Carried = field(default_factory=Carried)

    position: int = 0
    """How far the log was read."""

    snapshot_at: int = 0
    """The position of the newest snapshot."""

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
        self.carried.add(record)


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
    for after, record in follow(log, history.position):
        if not history.position and record.get("kind") == CONTINUED:
            for each in carried_by(record):
                history.add(each)
        history.position = after
        history.add(record)
    return history


def snapshot_of(history: History, log: Path) -> bytes:
    """Return what ``write_snapshot`` is to write; ``history`` may go on at once."""
    snapshot = _Snapshot(schema=_schema(), digest=_digest(log, history.position), history=history)
    return _adapter().dump_json(snapshot)


def write_snapshot(data: bytes, log: Path) -> None:
    """Replace the snapshot of a log.

    Raises:
        OSError: the storage does not take it.
    """
    replace_file(log.with_suffix(SUFFIX), data, mode=PRIVATE)


def _restored(log: Path) -> History:
    try:
        data = read_own(log.with_suffix(SUFFIX), most_bytes=_MOST_BYTES)
        found = _adapter().validate_json(data)
        is_of_it = (found.schema, found.digest) == (_schema(), _digest(log, found.history.position))
    except (OSError, ValidationError):
        return History()
    if not is_of_it:
        return History()
    found.history.board.bound()
    found.history.explained.decisions = deque(found.history.explained.decisions, LAST)
    return found.history


def _digest(log: Path, position: int) -> str:
    """Return the digest of what stands before a position; another log has something else there."""
    found = parts.before(log, position, _LOOKED_AT)
    return hashlib.blake2b(found, digest_size=16).hexdigest()


@cache
def _schema() -> str:
    """Return the digest of what a history consists of: another version may have other fields."""
    shape = repr(sorted(_adapter().json_schema()["$defs"].items()))
    return hashlib.blake2b(shape.encode(), digest_size=16).hexdigest()
