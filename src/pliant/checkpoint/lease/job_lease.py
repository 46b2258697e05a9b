"""The lease of a place, held by a job whose processes come and go.

Owns that whoever writes for the job holds its lease at that moment: any replica of the job takes
over from any other at once, and from another job only if that is dead.  Must not know the rules of
the lease (``rules``).  Used from one thread at a time.
"""

from __future__ import annotations

from contextlib import suppress

from pliant.checkpoint.failures import LeaseHeldError
from pliant.checkpoint.lease.holder import Lease, acquire, read_lease
from pliant.checkpoint.lease.rules import BEATS_PER_TTL, LeaseRecord
from pliant.checkpoint.store.base import Storage
from pliant.machine.processes import machine_id, process_started

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
