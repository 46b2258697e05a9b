"""What a host does as a part of a host group: what the head asks, for as long as their link lasts.

Owns the workers that this host has of each replica, until all of them are reaped, and the directory
in which they find the worker 0 of another host.  When the link ends they are killed, and only once
all are reaped is this host free for others.  Decides nothing: whose end is the end of all, and what
of their words goes up, is the head's (``local_replica``).  Knows nothing of the coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from pliant.agent.hosts.link import HostLink
from pliant.agent.replicas_here import NAME
from pliant.agent.this_host import ThisHost
from pliant.agent.worker import LOOK_S
from pliant.agent.workers_here import SILENT_LOOKS, ReplicaWorkers, RunningReplicas, not_started
from pliant.core.events import Exited, Progressed
from pliant.core.values import NO_INCARNATION
from pliant.wire.codec import Message, encode
from pliant.wire.host_records import (
    AllJoined,
    KillPart,
    LinkRecord,
    PartEnded,
    PartNews,
    PartReaped,
    PartSaid,
    PartSilent,
    PartStarted,
    StartPart,
)
from pliant.wire.messages import Alive

GONE_S = 0.02
"""Between two looks whether all are reaped, in seconds."""

SIGNS_PER_NEWS = 2
"""Looks at signs of life for each at what workers have written: that is once a second."""


class PartReplica(ReplicaWorkers):
    """The workers of one replica that a part runs, for its head."""

    def __init__(
        self, order: StartPart, devices: Sequence[int], link: HostLink, host: ThisHost
    ) -> None:
        """It has one of the workers of ``order`` on each device."""
        super().__init__(order.replica, dict(zip(order.places, devices, strict=True)), host)
        self._order = order
        self._link = link
        self._silent: dict[int, int] = {}
        self._left = set(order.places)

    async def open(self, logs: Path) -> None:
        """Open what the workers need, and the way to the worker 0 of the head.

        Raises:
            OSError: there is no room for all of it; ``close`` closes what is open.
        """
        await super().open(logs)
        if self.directory is not None:
            await self._link.tunnels.listen(self.name, self.directory)

    def started(self, place: int, pid: int) -> None:
        """Note the process of a worker, and tell of it; kill one whose end was asked for before."""
        device, _ = self._host.config.of_pool(self._devices[place])
        self.here[place].started(pid)
        self._link.say(PartStarted(replica=self.name, place=place, pid=pid, device=device))
        if self._is_killed:
            self._kill_here()

    def kill(self, *, is_asked: bool) -> None:
        """Have all killed, those as well that have no process yet."""
        if is_asked:
            for worker in self.here.values():
                worker.is_end_requested = True
        self._kill_here()

    def tell_life(self) -> None:
        """Say of each worker whether it shows life, if that is otherwise than before."""
        for place in self._left:
            worker = self.here[place]
            worker.unsaid_life()
            looks = SILENT_LOOKS if worker.silent_looks >= SILENT_LOOKS else 0
            if self._silent.get(place, 0) != looks:
                self._silent[place] = looks
                self._link.say(PartSilent(replica=self.name, place=place, looks=looks))

    async def reap(self, place: int, returncode: int) -> Exited | None:
        """Tell the end of a worker that was reaped; return that of the last one."""
        if place not in self._left:
            return None
        self._link.say(PartReaped(replica=self.name, place=place, returncode=returncode))
        exited = await self.here[place].exit(returncode)
        self._left.discard(place)
        if not self._left:  # before the head has heard of it: it may start others here then
            self._host.devices.leave(self.name)
        tell_news(self._link, self._host.job.news_before(exited, has_room=True))
        _tell_end(self._link, place, exited)
        return None if self._left else exited

    def fail(self, why: str) -> Exited:
        """Tell that none of them could be started."""
        self._left.clear()
        self._host.devices.leave(self.name)
        return tell_refused(self._link, self._order, why)

    def close(self) -> None:
        """Close and remove everything that belongs to them; again: nothing."""
        self._link.tunnels.forget(self.name)
        super().close()

    def _hear_worker(self, place: int, message: Message) -> None:
        if isinstance(message, Progressed):
            return
        said = encode(message, self._order.incarnation).decode()
        self._link.say(PartSaid(replica=self.name, place=place, message=said))


class PartWorkers(RunningReplicas[PartReplica]):
    """The replicas of one link; ``end`` once, after it."""

    def __init__(self, link: HostLink, host: ThisHost) -> None:
        super().__init__(host)
        self.joined = asyncio.Event()
        """All hosts of the node are there."""

        self.link = link

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs here."""
        return not self._running

    def obey(self, record: LinkRecord) -> None:
        """Do what the head asks.

        Raises:
            ValueError: it is not for a head to say.
        """
        match record:
            case AllJoined():
                self.joined.set()
            case StartPart() as order if self._fits(order):
                self._start(order)
            case KillPart(replica=replica, is_asked=is_asked):
                if replica in self._running:
                    self._running[replica].kill(is_asked=is_asked)
            case _:
                raise ValueError(f"a head says no {type(record).__name__}")

    async def tell_signs(self) -> None:
        """Say who shows life, and what is new, until cancelled."""
        node, looks = self._host.config.node, 0
        while True:
            for replica in self._running.values():
                replica.tell_life()
            if looks % SIGNS_PER_NEWS == 0:
                sign, has_room = Alive(node=node, refused=0), self.link.has_room
                tell_news(self.link, self._host.job.news_before(sign, has_room=has_room))
            looks += 1
            await asyncio.sleep(LOOK_S)

    async def end(self) -> None:
        """Kill all, and wait until they are reaped."""
        for replica in self._running.values():
            replica.kill(is_asked=True)
        while self._running:
            await asyncio.sleep(GONE_S)

    def _fits(self, order: StartPart) -> bool:
        """Whether an order is of a new replica, and for as many of its workers as a part has."""
        work, each = self._host.job.work, self._host.job.workers_here
        of_parts = () if work is None else range(each, work.workers_per_replica)
        return (
            NAME.fullmatch(order.replica) is not None
            and order.replica not in self._running
            and len(set(order.places)) == len(order.places) == each
            and all(place in of_parts for place in order.places)
        )

    def _start(self, order: StartPart) -> None:
        devices = self._host.devices.put(order.replica, len(order.places))
        if not devices:
            tell_refused(self.link, order, "no device is free there")
            return
        self._add(PartReplica(order, devices, self.link, self._host), order.incarnation)


def tell_refused(link: HostLink, order: StartPart, why: str) -> Exited:
    """Tell the head that none of the workers that it wants could be started, and why."""
    exited = not_started(order.replica, why)
    for place in order.places:
        link.say(PartReaped(replica=order.replica, place=place, returncode=1))
        _tell_end(link, place, exited)
    return exited


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
