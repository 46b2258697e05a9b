"""What an agent and its fork server tell each other, over a socket pair of records.

Owns the requests (with three file descriptors beside a start: control socket, stdout, stderr)
and the reports.  Knows nothing of torch or of jobs.  Both ends are of one installation and one
parent, so unlike messages between machines these carry no version; a record that cannot be read
is a bug and raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from pliant.core.values import Incarnation, ReplicaId
from pliant.wire.messages import Work

MAX_RECORD_BYTES = 128 * 1024
"""Largest record, in bytes; below the default send buffer of a Unix socket (208 KiB)."""

CHANNEL_SOCKET, STORE_SOCKET = "channel", "store"
"""What worker 0 of a replica of several listens on, in the directory in which they meet."""

NUM_START_FDS = 3
"""Control socket, stdout, stderr: sent with every ``StartWorker``, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Who a new worker is, where it runs, and what."""

    replica: ReplicaId
    work: Work

    address: str
    """Address of this node under which members elsewhere reach it."""

    incarnation: Incarnation

    pid: int = 0
    """The process that runs the job on this node; without it the job is dead."""

    device: int | None = None
    """The device of a pool that it runs on; it holds the lock of that device while it lives."""

    device_names: tuple[str, ...] = ()
    """What the devices of all workers of its replica on this host are called, with their kinds, in
    the order of the workers; one that is a number only has no name."""

    beside: tuple[int, ...] = ()
    """Further devices of the pool that it holds likewise, where one process starts all others of
    its replica (restart mode)."""

    locks: str = ""
    """Directory of the locks of the pool's devices, absolute."""

    place: int = 0
    """Which worker of its replica it is, from 0; that one speaks for the replica."""

    workers_per_replica: int = 1
    """Of which each host has as many as every other, in order, where there are several."""

    inner: str = ""
    """Private directory in which the workers of this replica meet, absolute, with room below for
    the name of a socket; it lasts as long as they do.  Empty: there is one worker."""

    @property
    def worker(self) -> int | None:
        """Return its place if its replica has several workers."""
        return self.place if self.workers_per_replica > 1 else None

    @property
    def workers_per_host(self) -> int:
        """Return how many workers of its replica each host has."""
        return self.workers_per_replica // self.work.hosts_per_replica

    @property
    def local_rank(self) -> int:
        """Return which of them it is, from 0."""
        return self.place % self.workers_per_host

    @property
    def device_name(self) -> str:
        """Return what its own device is called, with its kind; empty: it is a number only."""
        return self.device_names[self.local_rank] if self.device_names else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Fork a worker."""

    assignment: Assignment
    type: Literal["start"] = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class KillReplica:
    """SIGKILL the workers of a replica and their process groups; who is gone is left alone."""

    replica: ReplicaId
    type: Literal["kill"] = "kill"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardFiles:
    """Remove these files and directories if the agent dies, unless others lie there by then."""

    paths: tuple[str, ...]
    type: Literal["guard"] = "guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReady:
    """Everything is imported; starts are warm from now on."""

    pid: int
    type: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFailed:
    """The engine cannot be imported; the fork server ends."""

    reason: str
    type: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted:
    """A worker was forked."""

    replica: ReplicaId
    place: int
    pid: int
    type: Literal["started"] = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerExited:
    """A worker was reaped."""

    replica: ReplicaId
    place: int
    pid: int

    returncode: int
    """Exit code, or the negated number of the signal that ended it."""

    type: Literal["exited"] = "exited"


Request = StartWorker | KillReplica | GuardFiles
Report = ServerReady | ServerFailed | WorkerStarted | WorkerExited

REQUESTS: TypeAdapter[Request] = TypeAdapter(Request)
REPORTS: TypeAdapter[Report] = TypeAdapter(Report)
"""Turn records into values and back: ``dump_json``, ``validate_json``."""
