"""Who may write to a checkpoint root: one process takes it, beats, notices a loss, gives it back.

Owns one rule, ``decide``: a living holder is never displaced by another job; the file
``lease.json``; and the waiting while it is open whether a holder elsewhere lives.

No two wall clocks are ever compared, so a jump of any of them changes nothing.  A holder of this
machine is dead when its process is.  One elsewhere is dead when its beat, a counter that it raises
several times per ``ttl_s``, stood still for that long by the watcher's own monotonic clock.

Of several candidates one wins: the file is created or exchanged in one act where the storage can do
that.  As some stores only claim to, a candidate looks again after a pause unless the root is a
directory.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from time import monotonic

from pydantic import TypeAdapter, ValidationError

from pliant.checkpoint.dcp.layout import LEASE
from pliant.checkpoint.failures import LeaseHeldError, MissingError, StorageError
from pliant.checkpoint.store.base import Storage
from pliant.machine.processes import machine_id, process_lives, process_started

TTL_S = 180.0
"""Silence after which a job of another machine is taken for dead, in seconds: three times what the
largest piece takes on a storage of 1 MB/s, between two of which the writer beats."""

BEATS_PER_TTL = 4
"""How often a holder beats in the time after which it is taken for dead."""

SETTLE_S = 1.0
"""Pause before looking again on a store that may let two win."""

_wait = threading.Event().wait


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Who holds a root."""

    job: str
    """The job's id; whoever has the same is the same job, restarted."""
    holder: str
    """Unique to one acquisition: tells two processes of one job apart."""
    node: str
    """For people."""
    machine: str
    """Where ``pid`` means something: the boot, and the process namespace in it."""
    pid: int
    process_started: str
    beat: int = 0
    ttl_s: float = 60.0


_RECORD: TypeAdapter[LeaseRecord] = TypeAdapter(LeaseRecord)


class LeaseAction(Enum):
    """What a candidate does."""

    TAKE = "take"
    WATCH = "watch"
    REFUSE = "refuse"


def decide(
    found: LeaseRecord | None,
    me: LeaseRecord,
    *,
    is_alive: bool | None,
    still_for_s: float,
    has_beaten: bool,
) -> LeaseAction:
    """Say whether a root may be taken: a pure function of what the caller saw.

    Args:
        found: who holds it, as read; ``None`` if nobody does.
        me: the candidate.
        is_alive: whether the holder's process is, if it is of this machine; ``None`` elsewhere.
        still_for_s: how long the candidate has seen this very record, by its monotonic clock.
        has_beaten: whether the candidate has seen the record change.
    """
    if found is None or found.job == me.job or is_alive is False:
        return LeaseAction.TAKE
    if is_alive or has_beaten:
        return LeaseAction.REFUSE
    return LeaseAction.TAKE if still_for_s >= found.ttl_s else LeaseAction.WATCH


class JobLease:
    """The right of one job to write to one place."""

    def __init__(
        self, storage: Storage, job: str, *, pid: int | None = None, ttl_s: float = TTL_S
    ) -> None:
        """Prepare; nothing is touched.

        Args:
            storage: the place.
            job: the same for all replicas of a job, and for the job when it is resumed.
            pid: the process of this machine without which the job is dead; None: this one.
            ttl_s: silence after which others may take this holder for dead.
        """
        self._storage = storage
        self._job = job
        self._pid = os.getpid() if pid is None else pid
        self._ttl_s = ttl_s
        self._record: LeaseRecord | None = None
        self._has_held = False
        self._seen: LeaseRecord | None = None

    def ensure(self) -> bool:
        """Hold the lease; true.  Waits while it is open whether a holder elsewhere lives.

        A restarted job takes its own lease over at once.  If another process of the same job takes
        it at this moment the job has it, and that is enough.

        Raises:
            LeaseHeldError: another job holds it, or took it at this moment; says who and what to
                do.
        """
        if self._record is None or not self._is_held_by(self._record):
            self._record = self._take_place()
        self._has_held = True
        return True

    def is_kept(self) -> bool:
        """Look whether nobody but this run has taken the lease, which is not taken again; true.

        It is the run's while it is that of any of its replicas on this machine: a copy of its
        directory is the same job, and its processes are others.

        Raises:
            LeaseHeldError: it is not.
        """
        found = read_lease(self._storage)
        mine = (self._job, machine_id(), self._pid, process_started(self._pid) or "")
        if found is None or (found.job, found.machine, found.pid, found.process_started) != mine:
            raise LeaseHeldError(
                f"the directory of the run is gone, and {self._storage.place()} is no longer held "
                "by this run: another may have gone on from there"
            )
        return True

    @property
    def beat_every_s(self) -> float | None:
        """How often ``beat`` has to be called; None before anything was held."""
        return self._ttl_s / BEATS_PER_TTL if self._has_held else None

    def beat(self) -> None:
        """Show that the job lives, or see to it that another of its replicas does.

        Raises:
            StorageError: the storage refused; nothing is lost yet, beat again.
        """
        if self._record is not None:
            self._record, self._seen = self._renewed(self._record), None
            return
        found = read_lease(self._storage)
        is_silent = found is not None and found.job == self._job and found == self._seen
        self._seen = found
        if is_silent:  # whoever took it over is gone, and to others the job looks dead
            with suppress(LeaseHeldError):  # the next publication will say so
                self.ensure()

    def release(self) -> None:
        """Give the place back, if this replica holds it.  Never raises: a lease runs out."""
        with suppress(StorageError):
            if self._record is not None and self._is_held_by(self._record):
                self._storage.remove(LEASE)
        self._record = None

    def _take_place(self) -> LeaseRecord:
        me = LeaseRecord(
            job=self._job,
            holder=uuid.uuid4().hex,
            node=socket.gethostname(),
            machine=machine_id(),
            pid=self._pid,
            process_started=process_started(self._pid) or "",
            ttl_s=self._ttl_s,
        )
        seen, since_s, has_beaten = None, monotonic(), False
        while True:
            data, found = _read_document(self._storage)
            if found != seen:
                has_beaten = bool(seen and found and seen.holder == found.holder)
                seen, since_s = found, monotonic()
            is_alive = None
            if found is not None and found.machine == me.machine:
                is_alive = process_lives(found.pid, found.process_started)
            still_for_s = monotonic() - since_s
            action = decide(
                found, me, is_alive=is_alive, still_for_s=still_for_s, has_beaten=has_beaten
            )
            if action is LeaseAction.TAKE:
                # replicas that start together would take it from each other for minutes
                if self._put(me, instead_of=data) or self._is_own(read_lease(self._storage)):
                    return me
            elif found is not None and action is LeaseAction.REFUSE:
                who = f"job {found.job} (process {found.pid} on {found.node})"
                raise self._refusal(f"{who} writes to it")
            elif found is not None:
                _wait(min(1.0, found.ttl_s / (2 * BEATS_PER_TTL)))

    def _is_own(self, winner: LeaseRecord | None) -> bool:
        """Whether a process of this job was quicker."""
        if winner is not None and winner.job != self._job:
            raise self._refusal(f"job {winner.job} on {winner.node} has just taken it")
        return winner is not None

    def _put(self, record: LeaseRecord, *, instead_of: bytes | None) -> bool:
        """Put a candidate's record in place of what it saw; return whether it holds the root."""
        try:
            if instead_of is None:
                won = self._storage.create(LEASE, _dump(record))
            else:
                won = self._storage.exchange(LEASE, _dump(record), expected=instead_of)
        except StorageError:
            if not self._is_held_by(record):  # or it has happened, and the answer was lost
                raise
            won = True
        if won and not self._storage.has_one_winner:
            _wait(SETTLE_S)
            return self._is_held_by(record)
        return won

    def _renewed(self, held: LeaseRecord) -> LeaseRecord | None:
        """Raise the beat; return what lies there now, None if somebody else's does."""
        fresh = replace(held, beat=held.beat + 1)
        if self._storage.exchange(LEASE, _dump(fresh), expected=_dump(held)):
            return fresh
        found = read_lease(self._storage)  # an exchange whose answer was lost had happened
        return found if found is not None and found.holder == held.holder else None

    def _is_held_by(self, record: LeaseRecord) -> bool:
        """Whether the root is held by this very acquisition."""
        found = read_lease(self._storage)
        return found is not None and found.holder == record.holder

    def _refusal(self, reason: str) -> LeaseHeldError:
        place = self._storage.place
        return LeaseHeldError(
            f"{place()} belongs to another job: {reason}; give this job a place of its own, or end"
            f" that one (if it is gone for good, remove {place(LEASE)})"
        )


def read_lease(storage: Storage) -> LeaseRecord | None:
    """Return who holds a root; ``None`` if nobody does, or nothing legible says so."""
    return _read_document(storage)[1]


def _read_document(storage: Storage) -> tuple[bytes | None, LeaseRecord | None]:
    """Return the file as it lies there, and what it says."""
    try:
        data = storage.read(LEASE)
    except MissingError:
        return None, None
    try:
        return data, _RECORD.validate_json(data)
    except ValidationError:
        return data, None  # whoever wrote that does not beat


def _dump(record: LeaseRecord) -> bytes:
    return json.dumps(asdict(record)).encode()
