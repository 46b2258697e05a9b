"""The workers that a part of a host group runs of one replica, for its head.

Owns their processes on this host, until all of them are reaped, and the directory in which they
find the worker 0 of another host.  Decides nothing: whose end is the end of all, and what of their
words goes up, is the head's (``local_replica``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pliant.agent.hosts.link import HostLink
from pliant.agent.local_replica import SILENT_LOOKS, not_started
from pliant.agent.node_facts import PoolDevice
from pliant.agent.this_host import ThisHost
from pliant.agent.worker import Worker
from pliant.core.events import Exited, Progressed
from pliant.core.values import NO_INCARNATION
from pliant.machine import run_files
from pliant.machine.files import PRIVATE_DIRECTORY
from pliant.wire.codec import Message, encode
from pliant.wire.host_records import (
    PartEnded,
    PartNews,
    PartReaped,
    PartSaid,
    PartSilent,
    PartStarted,
    StartPart,
)
from pliant.wire.launch import Assignment, KillReplica, StartWorker


class PartReplica:
    """``open``, ``start``, then ``reap`` of each; ``close`` at the end."""

    def __init__(
        self, order: StartPart, devices: Sequence[PoolDevice], link: HostLink, host: ThisHost
    ) -> None:
        """It has one of the workers of ``order`` on each device."""
        self.name = order.replica
        self.workers = {
            place: Worker(
                order.replica,
                worker=place,
                on_message=partial(self._hear_worker, place),
                on_refusal=host.refuse,
            )
            for place in order.places
        }
        self._order = order
        self._devices = dict(zip(order.places, devices, strict=True))
        self._link = link
        self._host = host
        self._ends: dict[int, tuple[int, int, int]] = {}
        self._silent: dict[int, int] = {}
        self._left = set(order.places)
        self._directory = ""
        self._is_killed = False

    async def open(self, out: Path) -> None:
        """Open what the workers need; ``out`` is the directory of the run.

        Raises:
            OSError: there is no room for all of it; ``close`` closes what is open.
        """
        for place, worker in self.workers.items():
            log = out / run_files.LOGS / f"{worker.name}.log"
            self._ends[place] = await worker.open(log, self._host.listener)
        directory = self._host.servers.meeting_place() / self.name
        directory.mkdir(mode=PRIVATE_DIRECTORY)
        self._directory = str(directory)
        await self._link.tunnels.listen(self.name, directory)

    def start(self, assignment: Assignment) -> None:
        """Ask for a process for each worker."""
        ends, self._ends = self._ends, {}
        for place, device in self._devices.items():
            told = replace(
                assignment,
                place=place,
                inner=self._directory,
                device=device.number,
                device_name=device.name,
            )
            self._host.servers.ask(StartWorker(assignment=told), ends[place])

    def started(self, place: int, pid: int) -> None:
        """Note the process of a worker, and say so; kill one whose end was asked for before."""
        worker, device = self.workers[place], self._devices[place].number
        worker.started(pid)
        self._link.say(PartStarted(replica=self.name, place=place, pid=pid, device=device))
        if self._is_killed:
            self._host.servers.ask(KillReplica(replica=self.name))

    def kill(self, *, is_asked: bool) -> None:
        """Have all killed, those as well that have no process yet."""
        self._is_killed = True
        if is_asked:
            for worker in self.workers.values():
                worker.request_end()
        self._host.servers.ask(KillReplica(replica=self.name))

    def tell_life(self) -> None:
        """Say of each worker whether it shows life, if that is otherwise than before."""
        for place in self._left:
            worker = self.workers[place]
            worker.unsaid_life()
            looks = worker.silent_looks if worker.silent_looks >= SILENT_LOOKS else 0
            looks = min(looks, SILENT_LOOKS)
            if self._silent.get(place, 0) != looks:
                self._silent[place] = looks
                self._link.say(PartSilent(replica=self.name, place=place, looks=looks))

    async def reap(self, place: int, returncode: int) -> bool:
        """Tell the end of a worker that was reaped; whether it was the last of them."""
        if place not in self._left:
            return False
        self._link.say(PartReaped(replica=self.name, place=place, returncode=returncode))
        exited = await self.workers[place].exit(returncode)
        self._left.discard(place)
        if not self._left:  # before the head has heard of it: it may start others here then
            self._host.devices.leave(self.name)
        tell_news(self._link, self._host.job.news_before(exited, has_room=True))
        _tell_end(self._link, place, exited)
        return not self._left

    def refuse(self, why: str) -> None:
        """Tell that none of them could be started."""
        self._left.clear()
        self._host.devices.leave(self.name)
        tell_refused(self._link, self._order, why)

    async def drain(self) -> None:
        """Read what is left of the output of all."""
        for worker in self.workers.values():
            await worker.drain()

    def close(self) -> None:
        """Close and remove everything that belongs to them; again: nothing."""
        self._link.tunnels.forget(self.name)
        for worker in self.workers.values():
            worker.close()
        ends, self._ends = self._ends, {}
        for each in ends.values():
            for end in each:
                os.close(end)
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _hear_worker(self, place: int, message: Message) -> None:
        if isinstance(message, Progressed):
            return
        said = encode(message, self._order.incarnation).decode()
        self._link.say(PartSaid(replica=self.name, place=place, message=said))


def tell_refused(link: HostLink, order: StartPart, why: str) -> None:
    """Tell the head that none of the workers that it wants could be started."""
    for place in order.places:
        link.say(PartReaped(replica=order.replica, place=place, returncode=1))
        _tell_end(link, place, not_started(order.replica, why))


def _tell_end(link: HostLink, place: int, exited: Exited) -> None:
    link.say(
        PartEnded(
            replica=exited.replica,
            place=place,
            kind=exited.kind,
            detail=exited.detail,
            worker=exited.worker,
        )
    )


def tell_news(link: HostLink, news: Iterable[Message]) -> None:
    """Tell the head what workers here have written and printed that nobody else sees."""
    for message in news:
        link.say(PartNews(message=encode(message, NO_INCARNATION).decode()))


def assignment_for(order: StartPart, host: ThisHost) -> Assignment | None:
    """Return what each worker of an order is told, but for its place; None: there is no job."""
    if (work := host.job.work) is None:
        return None
    return Assignment(
        replica=order.replica,
        work=work,
        address=host.config.address,
        incarnation=order.incarnation,
        pid=os.getpid(),
        workers_per_replica=work.workers_per_replica,
        locks=str(host.config.locks or ""),
    )
