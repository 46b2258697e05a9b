"""What a log tells so far, and what it told at a position, so that nobody need read it all.

Owns the snapshot beside a log: what ``History`` held at a position of the log.  A long log is read
from there.  A snapshot of another log, of another version or cut off by a crash is left aside, and
everything is read that is left of the log; where its first parts are gone (``observe.parts``),
figures over all the run's time are then of the rest.

Owns, too, what each part of a log says of the parts before it, so that these may go (``Carried``).
How often something happened is not part of that: it is in the snapshot.

    events.000001.jsonl, events.jsonl    |----------------|---------------|------>
    events.snapshot                      position, digest of what is before it, history
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from pliant.machine.files import PRIVATE, read_own, replace_file
from pliant.observe import parts
from pliant.observe.audit_plan import identity_in
from pliant.observe.explain import LAST, Explained
from pliant.observe.log import COMMIT, CONTINUED, Record
from pliant.observe.reading import carried_by, follow
from pliant.observe.status import Board

SUFFIX = ".snapshot"

NEWEST = frozenset(
    {
        "coordinator_started",
        "plan",
        "policy_changed",
        "interval_chosen",
        "nodes_apart",
        "nodes_silent",
        "joint_nodes",
        "replicas_slow",
    }
)
"""Kinds of which the newest record is carried into the next part."""

_LOOKED_AT = 4096
"""Bytes before the position by which a snapshot knows its log."""

_MOST_BYTES = 64 << 20
"""Of a snapshot; one of a long run has some megabytes."""


@dataclass(slots=True)
class Carried:
    """The records without which a run cannot be resumed or audited, as they were written: how the
    job was started, at which step it began, every plan that a replica reported, and the newest of
    what is said seldom.  Eats records in file order, in bounded memory.

    A replica that was refused as a joiner never computed anything, and its plan counts for nothing.
    Until a replica trains it may still be refused; so all who reported a plan are kept until
    one of them trains, and then this one is enough.
    """

    newest: dict[str, Record] = field(default_factory=dict)
    """The last record of each kind in ``NEWEST``, since the job was started."""

    began: Record | None = None
    """The order that made the first generation."""

    plans: dict[str, list[Record]] = field(default_factory=dict)
    """Who reported each plan."""

    settled: dict[str, str] = field(default_factory=dict)
    """Plan -> who trained by it."""

    def add(self, record: Record) -> None:
        """Take in one record; kinds it does not know change nothing."""
        match record.get("kind"):
            case "job_started":
                self.newest = {"job_started": record}
            case kind if kind in NEWEST:
                self.newest.pop(str(kind), None)  # they stand in the order in which they came
                self.newest[str(kind)] = record
            case "switch" if self.began is None and isinstance(record.get("order"), dict):
                self.began = record
            case "spare" | "registered" if identity := identity_in(record):
                plan = json.dumps(identity, sort_keys=True)
                known = self.plans.get(plan, [])
                if plan not in self.settled and not _of(str(record.get("replica")), known):
                    self.plans[plan] = [*known, record]
            case "switched":
                self._settle(str(record.get("replica")))
            case "refused" if record.get("joiner"):
                self._forget(str(record.get("replica")))
            case _:
                pass

    def records(self) -> list[Record]:
        """Return what to write; an older coordinator's before a newer one's, else it is void."""
        spares = [spare for spares in self.plans.values() for spare in spares]
        began = [] if self.began is None else [self.began]
        return sorted([*self.newest.values(), *spares, *began], key=_incarnation)

    def _settle(self, replica: str) -> None:
        for plan, spares in self.plans.items():
            if plan not in self.settled and (mine := _of(replica, spares)):
                self.plans[plan] = mine[:1]
                self.settled[plan] = replica

    def _forget(self, replica: str) -> None:
        for plan, spares in list(self.plans.items()):
            if self.settled.get(plan) != replica:
                rest = [spare for spare in spares if spare.get("replica") != replica]
                self.plans[plan] = rest
                if not rest:
                    del self.plans[plan]


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
    history = snapshotted(log)
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


def snapshotted(log: Path) -> History:
    """Return what the snapshot beside a log tells, of the log up to its position; else nothing."""
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


def _incarnation(record: Record) -> int:
    number = record.get("incarnation")
    return number if isinstance(number, int) else 0


def _of(replica: str, spares: list[Record]) -> list[Record]:
    return [spare for spare in spares if spare.get("replica") == replica]
