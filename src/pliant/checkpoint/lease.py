"""Lease: a checkpoint root belongs to one job at a time.

Owns the file ``lease.json``: taking it, beating, noticing that it was lost, giving it back.  What
to make of somebody else's is decided in ``lease_rules``.  Must not know what is written there.

Of several candidates one wins, because the file is created or exchanged in one act where the
storage can do that.  As some stores only claim to, each candidate looks again after a pause unless
the root is a directory.  Before every publication the holder asks ``still_held``, which fails for
one that was stopped for long.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pliant.checkpoint.dcp.layout import LEASE
from pliant.checkpoint.failures import LeaseHeldError, MissingError, StorageError
from pliant.checkpoint.lease_rules import BEATS_PER_TTL, Judgement, LeaseRecord, LeaseVerdict, judge
from pliant.checkpoint.store.base import Storage
from pliant.machine.processes import process_lives, process_started

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
    is_alive: Callable[[int, str], bool] | None = None
    """Whether a process of this machine, named by id and start, lives."""
    machine: str | None = None

    def machine_here(self) -> str:
        """Return where process ids mean what they mean here."""
        return self.machine if self.machine is not None else machine_id()

    def lives(self, pid: int, started: str) -> bool:
        """Return whether a process of this machine lives."""
        return (self.is_alive or process_lives)(pid, started)


class Lease:
    """A root that this process holds.  Safe to use from several threads."""

    def __init__(self, storage: Storage, record: LeaseRecord, taken: str) -> None:
        self._storage = storage
        self._record = record
        self._lock = threading.Lock()
        self._is_lost = False
        self.taken = taken
        """Why it could be taken, for the log."""

    @property
    def record(self) -> LeaseRecord:
        """What was last written."""
        return self._record

    @property
    def beat_every_s(self) -> float:
        """How often ``beat`` has to be called."""
        return self._record.ttl_s / BEATS_PER_TTL

    def beat(self) -> bool:
        """Show that the holder lives; false once somebody else holds the root.

        Raises:
            StorageError: the storage refused; nothing is lost yet, beat again.
        """
        with self._lock:
            if self._is_lost:
                return False
            fresh = replace(self._record, beat=self._record.beat + 1)
            if self._storage.exchange(LEASE, _dump(fresh), expected=_dump(self._record)):
                self._record = fresh
                return True
            found = read_lease(self._storage)
            if found is not None and found.holder == self._record.holder:
                self._record = found  # an exchange whose answer was lost had happened
                return True
            self._is_lost = True
            return False

    def still_held(self) -> bool:
        """Look at the storage, and return whether the root is still ours.

        Raises:
            StorageError: the storage refused.
        """
        with self._lock:
            found = read_lease(self._storage)
            if found is None or found.holder != self._record.holder:
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

    If another process of the same job takes it at this moment the job has it, and that is enough:
    the lease returned is then not held, and ``beat`` and ``still_held`` say so.

    Args:
        storage: the checkpoint root.
        job: the job's id; a restarted job takes its own lease over at once.
        ttl_s: silence after which others may take this holder for dead.
        pid: the process of this machine without which the job is dead; this one by default.
        surroundings: clock and processes.
        stop: asked about once a second while waiting; true refuses.

    Raises:
        LeaseHeldError: another job holds it, or took it at this moment; says who and what to do.
        StorageError: the storage refused.
    """
    around = surroundings or Surroundings()
    me = _me(job, ttl_s, os.getpid() if pid is None else pid, around)
    seen: LeaseRecord | None = None
    first_seen_s = around.now_s()
    has_beaten = False
    while True:
        data, found = _read(storage)
        if found != seen:
            has_beaten = seen is not None and found is not None and found.holder == seen.holder
            seen, first_seen_s = found, around.now_s()
        judgement = judge(
            found,
            me,
            is_alive=_is_alive(found, me, around),
            still_for_s=around.now_s() - first_seen_s,
            has_beaten=has_beaten,
        )
        if judgement.verdict is LeaseVerdict.TAKE:
            if _take(storage, me, data, around):
                return Lease(storage, me, judgement.reason)
            seen, has_beaten = None, False  # another was faster: look who
            first_seen_s = around.now_s()
            data, found = _read(storage)
            if found is not None and found.job != me.job:
                why = f"job {found.job} on {found.node} has just taken it"
                raise _refusal(storage, Judgement(LeaseVerdict.REFUSED, why))
            if found is not None:  # replicas that start together would take it from each other
                return Lease(storage, me, "another process of this job has just taken it")
            continue
        if judgement.verdict is LeaseVerdict.REFUSED or (stop is not None and stop()):
            raise _refusal(storage, judgement)
        assert found is not None  # noqa: S101 - nobody is not watched
        around.wait(min(1.0, found.ttl_s / (2 * BEATS_PER_TTL)))


def read_lease(storage: Storage) -> LeaseRecord | None:
    """Return who holds a root; ``None`` if nobody does, or nothing legible says so."""
    return _read(storage)[1]


def machine_id() -> str:
    """Return an id of this boot and process namespace: where a process id is unique."""
    parts = []
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts) or socket.gethostname()


def _me(job: str, ttl_s: float, pid: int, around: Surroundings) -> LeaseRecord:
    return LeaseRecord(
        job=job,
        holder=uuid.uuid4().hex,
        node=socket.gethostname(),
        machine=around.machine_here(),
        pid=pid,
        process_started=process_started(pid) or "",
        ttl_s=ttl_s,
    )


def _is_alive(found: LeaseRecord | None, me: LeaseRecord, around: Surroundings) -> bool | None:
    if found is None or found.machine != me.machine:
        return None
    return around.lives(found.pid, found.process_started)


def _read(storage: Storage) -> tuple[bytes | None, LeaseRecord | None]:
    try:
        data = storage.read(LEASE)
    except MissingError:
        return None, None
    try:
        return data, _RECORD.validate_json(data)
    except ValidationError:
        return data, None  # whoever wrote that does not beat


def _take(storage: Storage, me: LeaseRecord, seen: bytes | None, around: Surroundings) -> bool:
    document = _dump(me)
    try:
        won = (
            storage.create(LEASE, document)
            if seen is None
            else storage.exchange(LEASE, document, expected=seen)
        )
    except StorageError:
        found = read_lease(storage)  # it may have happened, and the answer been lost
        if found is None or found.holder != me.holder:
            raise
        won = True
    if won and not storage.has_one_winner:
        around.wait(SETTLE_S)
        found = read_lease(storage)
        return found is not None and found.holder == me.holder
    return won


def _refusal(storage: Storage, judgement: Judgement) -> LeaseHeldError:
    return LeaseHeldError(
        f"{storage.place()} belongs to another job: {judgement.reason}; give this job a place of"
        f" its own, or end that one (if it is gone for good, remove {storage.place(LEASE)})"
    )


def _dump(record: LeaseRecord) -> bytes:
    return json.dumps(asdict(record)).encode()
