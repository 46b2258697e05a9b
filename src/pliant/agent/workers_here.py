"""What an agent does alike with all workers of its host, whoever speaks for their replica.

Owns the way of a replica's workers on this host: opened, started, reaped, drained, closed.
``replicas_here`` and ``local_replica`` add what an agent does for replicas that it speaks for,
``hosts.member`` what a part of a host group does for its head.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

from pliant.agent.this_host import ThisHost
from pliant.agent.worker import Worker
from pliant.core.events import Exited, ExitKind
from pliant.core.values import Incarnation, ReplicaId
from pliant.machine import run_files
from pliant.machine.files import PRIVATE_DIRECTORY
from pliant.wire import launch
from pliant.wire.codec import Message
from pliant.wire.launch import Assignment, KillReplica, StartWorker

SILENT_LOOKS = 3
"""Looks in a row that find no life in a follower, after which its replica shows none: it speaks
and is looked at every half second, and what is late by a little is not silent."""


class ReplicaWorkers(ABC):
    """The workers of one replica on this host: ``open``, ``start``, ``reap`` of each, ``close``."""

    def __init__(
        self,
        name: ReplicaId,
        devices: Mapping[int, int],
        host: ThisHost,
        *,
        beside: Sequence[int] = (),
        is_alone: bool = False,
    ) -> None:
        """``devices``: of each worker, by its place; ``beside``: others that the only one has;
        ``is_alone``: the replica has no other worker.
        """
        self.name = name
        self.here = {
            place: Worker(
                name,
                worker=None if is_alone else place,
                on_message=partial(self._hear_worker, place),
                on_refusal=host.refuse,
            )
            for place in devices
        }
        self.directory: Path | None = None
        """Where the workers meet, if they do."""

        self._listener = host.listener
        self._devices = devices
        self._beside = beside
        self._host = host
        self._is_alone = is_alone
        self._ends: dict[int, tuple[int, int, int]] = {}
        self._is_killed = False

    async def open(self, logs: Path) -> None:
        """Open what the workers need: sockets, pipes, the directory in which they meet.

        Raises:
            OSError: there is no room for all of it; ``close`` closes what is open.
        """
        for place, worker in self.here.items():
            log = logs / f"{worker.name}.log"
            self._ends[place] = await worker.open(log, self._listener)
        if not self._is_alone or self._host.job.starts_all:
            directory = self._host.servers.meeting_place() / self.name
            directory.mkdir(mode=PRIVATE_DIRECTORY)
            self.directory = directory

    def start(self, assignment: Assignment) -> None:
        """Ask for a process for each worker, which is told the same as the only one would be."""
        ends, self._ends = self._ends, {}
        all_devices = (*self._devices.values(), *self._beside)
        told_of = {one: self._host.config.of_pool(one) for one in all_devices}
        beside = tuple(one for one in self._beside if told_of[one][0] is not None)
        names = tuple(name for _, name in told_of.values())
        for place, device in self._devices.items():
            told = replace(
                assignment,
                place=place,
                inner=str(self.directory or ""),
                device=told_of[device][0],
                beside=beside,
                device_names=names,
            )
            self._host.servers.ask(StartWorker(assignment=told), ends[place])

    @abstractmethod
    def started(self, place: int, pid: int) -> None:
        """Note the process of a worker, and tell of it; kill one whose end was asked for before."""

    @abstractmethod
    def fail(self, why: str) -> Exited:
        """Return how the replica has ended, of which no worker could be started."""

    @abstractmethod
    async def reap(self, place: int, returncode: int) -> Exited | None:
        """Take the last words of a worker that was reaped; of the last one, return the end."""

    async def drain(self) -> None:
        """Read what is left of the output of all."""
        for worker in self.here.values():
            await worker.drain()

    def close(self) -> None:
        """Close and remove everything that belongs to them; again: nothing."""
        for worker in self.here.values():
            worker.close()
        ends, self._ends = self._ends, {}
        for end in chain.from_iterable(ends.values()):
            os.close(end)
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _kill_here(self) -> None:
        self._is_killed = True
        self._host.servers.ask(KillReplica(replica=self.name))

    @abstractmethod
    def _hear_worker(self, place: int, message: Message) -> None:
        """Pass on what a worker says, as far as it is for others."""


R = TypeVar("R", bound=ReplicaWorkers)


class RunningReplicas(ABC, Generic[R]):
    """The replicas that have workers on this host; ``close`` when the fork server is gone."""

    def __init__(self, host: ThisHost) -> None:
        self._host = host
        self._running: dict[ReplicaId, R] = {}

    def on_report(self, report: launch.Report) -> None:
        """Take what the fork server says of a worker, if it is of one of these."""
        match report:
            case launch.WorkerStarted(replica=name, place=place, pid=pid):
                if name in self._running:
                    self._running[name].started(place, pid)
            case launch.WorkerExited(replica=name, place=place, returncode=returncode):
                self.reap(name, place, returncode)
            case _:
                pass

    def reap(self, name: ReplicaId, place: int, returncode: int) -> None:
        """Take note that the process of a worker is gone, if it is of one of these."""
        if name in self._running:
            self._host.spawn(self._reap(self._running[name], place, returncode))

    def reap_orphans(self) -> None:
        """The fork server died, and with it all that it has started."""
        for replica in self._running.values():
            for place in replica.here:
                self._host.spawn(self._reap_orphan(replica, place))

    def close(self) -> None:
        """Close and remove what belongs to them."""
        for replica in self._running.values():
            replica.close()
        self._running.clear()

    def _add(self, replica: R, incarnation: Incarnation) -> None:
        self._running[replica.name] = replica
        self._host.spawn(self._launch(replica, incarnation))

    async def _launch(self, replica: R, incarnation: Incarnation) -> None:
        assignment = self._host.assignment(replica.name, incarnation)
        if assignment is None:  # the fork server has died for the last time: all are reaped
            return
        try:
            await replica.open(Path(assignment.work.out) / run_files.LOGS)
        except OSError as error:  # another may get what this one lacks
            replica.close()
            self._let_go(replica.name, replica.fail(str(error)))
            return
        replica.start(assignment)

    async def _reap(self, replica: R, place: int, returncode: int) -> None:
        if (exited := await replica.reap(place, returncode)) is None:
            return  # the others of it still have processes
        self._let_go(replica.name, exited)
        try:
            await replica.drain()
        finally:
            replica.close()

    async def _reap_orphan(self, replica: R, place: int) -> None:
        await replica.here[place].vanished()
        await self._reap(replica, place, -9)

    def _let_go(self, name: ReplicaId, exited: Exited) -> None:
        """Take note that a replica has no process here any more."""
        self._running.pop(name, None)


def not_started(replica: ReplicaId, why: str) -> Exited:
    """Return how one has ended that never had a process."""
    detail = f"it could not be started: {why}"
    return Exited(replica=replica, kind=ExitKind.SIGNAL, detail=detail)
