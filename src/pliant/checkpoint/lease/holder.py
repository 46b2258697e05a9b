"""Holding a checkpoint root: one process takes it, beats, notices that it was lost, gives it back.

Owns the waiting while it is open whether a holder elsewhere lives, and the file ``lease.json``.
What to make of somebody else's record is decided in ``rules``.  Before every publication the holder
asks ``still_held``, which fails for one that was stopped for long.

Of several candidates one wins: the file is created or exchanged in one act where the storage can do
that.  As some stores only claim to, a candidate looks again after a pause unless the root is a
directory.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace

from pydantic import TypeAdapter, ValidationError

from pliant.checkpoint.dcp.layout import LEASE
from pliant.checkpoint.failures import LeaseHeldError, MissingError, StorageError
from pliant.checkpoint.lease import rules
from pliant.checkpoint.lease.rules import BEATS_PER_TTL, LeaseAction, LeaseDecision, LeaseRecord
from pliant.checkpoint.store.base import Storage
from pliant.machine.processes import machine_id, process_lives, process_started

DEFAULT_TTL_S = 60.0
"""Silence after which a holder on another machine is taken for dead."""

SETTLE_S = 1.0
"""Pause before looking again on a store that may let two win."""

_RECORD: TypeAdapter[LeaseRecord] = TypeAdapter(LeaseRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the lease asks of the machine; tests pass their own."""

    now_s: Callable[[], float] = time.monotonic
    wait: Callable[[float], object] = threading.Event().wait
    is_alive: Callable[[int, str], bool] = process_lives
    """Whether a process of this machine, named by id and start, lives."""

    machine: str = field(default_factory=machine_id)
    """Where process ids mean what they mean here."""


class Lease:
    """A root that this process holds.  Safe to use from several threads."""

    def __init__(self, storage: Storage, record: LeaseRecord, taken: str) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._is_lost = False
        self.record = record
        """What was last written."""
        self.taken = taken
        """Why it could be taken, for the log."""

    def beat(self) -> bool:
        """Show that the holder lives; false once somebody else holds the root.

        Raises:
            StorageError: the storage refused; nothing is lost yet, beat again.
        """
        with self._lock:
            if self._is_lost:
                return False
            fresh = replace(self.record, beat=self.record.beat + 1)
            renewed = _renew(self._storage, self.record, fresh)
            self.record, self._is_lost = renewed or self.record, renewed is None
            return not self._is_lost

    def still_held(self) -> bool:
        """Look at the storage, and return whether the root is still ours."""
        with self._lock:
            if not _is_held_by(self._storage, self.record.holder):
                self._is_lost = True
            return not self._is_lost

    def release(self) -> None:
        """Give the root back; nothing happens if it was lost.  Never raises: a lease runs out."""
        with suppress(StorageError):
            if self.still_held():
                self._storage.remove(LEASE)
        with self._lock:
            self._is_lost = True


def acquire(
    storage: Storage,
    job: str,
    *,
    ttl_s: float = DEFAULT_TTL_S,
    pid: int | None = None,
    surroundings: Surroundings | None = None,
    stop: Callable[[], bool] | None = None,
) -> Lease:
    """Take the root for a job; waits while it is open whether a holder elsewhere lives.

    A restarted job takes its own lease over at once.  If another process of the same job takes it
    at this moment the job has it, and that is enough: the lease returned is then not held, and
    ``beat`` and ``still_held`` say so.

    Args:
        storage, job: which root, for whom.
        ttl_s: silence after which others may take this holder for dead.
        pid: the process of this machine without which the job is dead; this one by default.
        surroundings: clock and processes.
        stop: asked about once a second while waiting; true refuses.

    Raises:
        LeaseHeldError: another job holds it, or took it at this moment; says who and what to do.
    """
    around = surroundings or Surroundings()
    me = _candidate(job, ttl_s, os.getpid() if pid is None else pid, around)
    watch = _Watch(me, around)
    while True:
        seen, found = _read_document(storage)
        decision = watch.decide(found)
        match decision.action:
            case LeaseAction.TAKE:
                if _put(storage, me, instead_of=seen, wait=around.wait):
                    return Lease(storage, me, decision.reason)
                if (winner := read_lease(storage)) is not None:
                    return _outrun(storage, me, winner)
                watch = _Watch(me, around)
            case LeaseAction.REFUSE:
                raise _refusal(storage, decision.reason)
            case LeaseAction.WATCH:
                if stop is not None and stop():
                    raise _refusal(storage, decision.reason)
                around.wait(watch.pause_s)


class _Watch:
    """What a candidate has seen of a holder, and for how long."""

    def __init__(self, me: LeaseRecord, around: Surroundings) -> None:
        self._me = me
        self._around = around
        self._seen: LeaseRecord | None = None
        self._since_s = around.now_s()
        self._has_beaten = False

    def decide(self, found: LeaseRecord | None) -> LeaseDecision:
        """Take in what lies there, and say what to do."""
        if found != self._seen:
            before, self._seen, self._since_s = self._seen, found, self._around.now_s()
            self._has_beaten = bool(before and found and before.holder == found.holder)
        is_alive = None
        if found is not None and found.machine == self._me.machine:
            is_alive = self._around.is_alive(found.pid, found.process_started)
        return rules.decide(
            found,
            self._me,
            is_alive=is_alive,
            still_for_s=self._around.now_s() - self._since_s,
            has_beaten=self._has_beaten,
        )

    @property
    def pause_s(self) -> float:
        """How long to wait before the next look."""
        ttl_s = self._seen.ttl_s if self._seen is not None else DEFAULT_TTL_S
        return min(1.0, ttl_s / (2 * BEATS_PER_TTL))


def _outrun(storage: Storage, me: LeaseRecord, winner: LeaseRecord) -> Lease:
    """Return what a candidate has that lost to its own job; refuse if it lost to another."""
    if winner.job != me.job:
        raise _refusal(storage, f"job {winner.job} on {winner.node} has just taken it")
    # replicas that start together would take it from each other for minutes
    return Lease(storage, me, "another process of this job has just taken it")


def _candidate(job: str, ttl_s: float, pid: int, around: Surroundings) -> LeaseRecord:
    return LeaseRecord(
        job=job,
        holder=uuid.uuid4().hex,
        node=socket.gethostname(),
        machine=around.machine,
        pid=pid,
        process_started=process_started(pid) or "",
        ttl_s=ttl_s,
    )


def _refusal(storage: Storage, reason: str) -> LeaseHeldError:
    return LeaseHeldError(
        f"{storage.place()} belongs to another job: {reason}; give this job a place of"
        f" its own, or end that one (if it is gone for good, remove {storage.place(LEASE)})"
    )


# --- the file ---------------------------------------------------------------------------


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


def _is_held_by(storage: Storage, holder: str) -> bool:
    """Whether the root is held by this very acquisition."""
    found = read_lease(storage)
    return found is not None and found.holder == holder


def _put(
    storage: Storage,
    record: LeaseRecord,
    *,
    instead_of: bytes | None,
    wait: Callable[[float], object],
) -> bool:
    """Put a candidate's record in place of what it saw; return whether it holds the root."""
    document = _dump(record)
    try:
        if instead_of is None:
            won = storage.create(LEASE, document)
        else:
            won = storage.exchange(LEASE, document, expected=instead_of)
    except StorageError:
        if not _is_held_by(storage, record.holder):  # or it has happened, and the answer was lost
            raise
        won = True
    if won and not storage.has_one_winner:
        wait(SETTLE_S)
        return _is_held_by(storage, record.holder)
    return won


def _renew(storage: Storage, held: LeaseRecord, fresh: LeaseRecord) -> LeaseRecord | None:
    """Replace a holder's own record; return what it is now, None if somebody else's is there."""
    if storage.exchange(LEASE, _dump(fresh), expected=_dump(held)):
        return fresh
    found = read_lease(storage)  # an exchange whose answer was lost had happened
    return found if found is not None and found.holder == held.holder else None


def _dump(record: LeaseRecord) -> bytes:
    """Return the file that says what a record does."""
    return json.dumps(asdict(record)).encode()


TTL_S = 180.0
"""Silence after which a job of another machine is taken for dead, in seconds: three times what the
largest piece takes on a storage of 1 MB/s, between two of which the writer beats."""


class JobLease:
    """The right of one job to write to one place."""

    def __init__(self, storage: Storage, job: str, *, pid: int) -> None:
        """Prepare; nothing is touched.

        ``job`` is the same for all replicas of a job, and for the job when it is resumed; ``pid``
        the process without which it is dead.
        """
        self._storage = storage
        self._job = job
        self._pid = pid
        self._lease: Lease | None = None
        self._has_held = False
        self._seen: LeaseRecord | None = None

    def ensure(self) -> bool:
        """Hold the lease; true.

        Raises:
            LeaseHeldError: another job does, and lives.
        """
        if self._lease is None or not self._lease.still_held():
            self._lease = acquire(self._storage, self._job, ttl_s=TTL_S, pid=self._pid)
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
        return TTL_S / BEATS_PER_TTL if self._has_held else None

    def beat(self) -> None:
        """Show that the job lives, or see to it that another of its replicas does.

        Raises:
            StorageError: the storage refused; beat again.
        """
        if self._lease is not None:
            if not self._lease.beat():
                self._lease, self._seen = None, None
            return
        found = read_lease(self._storage)
        is_silent = found is not None and found.job == self._job and found == self._seen
        self._seen = found
        if is_silent:  # whoever took it over is gone, and to others the job looks dead
            with suppress(LeaseHeldError):  # the next publication will say so
                self.ensure()

    def release(self) -> None:
        """Give the place back, if this replica holds it."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None
