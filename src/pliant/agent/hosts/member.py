"""What a host does as a part of a host group: what the head asks, for as long as their link lasts.

Owns the replicas of which this host has workers.  When the link ends they are killed, and only once
all are reaped is this host free for others.  Knows nothing of the coordinator.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from pliant.agent.hosts.link import HostLink
from pliant.agent.hosts.member_replica import PartReplica, assignment_for, tell_news, tell_refused
from pliant.agent.local_replica import NAME
from pliant.agent.this_host import ThisHost
from pliant.agent.worker import LOOK_S
from pliant.core.values import ReplicaId
from pliant.wire import launch
from pliant.wire.host_records import AllJoined, KillPart, LinkRecord, MeetParts, StartPart
from pliant.wire.messages import Alive

GONE_S = 0.02
"""Between two looks whether all are reaped, in seconds."""

SIGNS_PER_NEWS = 2
"""Looks at signs of life for each at what workers have written: that is once a second."""


class PartWorkers:
    """Those of one link; ``end`` once, after it."""

    def __init__(self, link: HostLink, host: ThisHost) -> None:
        self.meets = asyncio.Event()
        """All parts are there, and are to reach each other."""

        self.joined = asyncio.Event()
        """All hosts of the node reach each other."""

        self.link = link
        self._host = host
        self._replicas: dict[ReplicaId, PartReplica] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs here."""
        return not self._replicas

    def obey(self, record: LinkRecord) -> None:
        """Do what the head asks.

        Raises:
            ValueError: it is not for a head to say.
        """
        match record:
            case MeetParts():
                self.meets.set()
            case AllJoined():
                self.joined.set()
            case StartPart() as order if self._fits(order):
                self._start(order)
            case KillPart(replica=replica, is_asked=is_asked):
                if replica in self._replicas:
                    self._replicas[replica].kill(is_asked=is_asked)
            case _:
                raise ValueError(f"a head says no {type(record).__name__}")

    def on_report(self, report: launch.Report) -> None:
        """Take what the fork server says of workers."""
        match report:
            case launch.WorkerStarted(replica=replica, place=place, pid=pid):
                if replica in self._replicas:
                    self._replicas[replica].started(place, pid)
            case launch.WorkerExited(replica=replica, place=place, returncode=returncode):
                if replica in self._replicas:
                    self._host.spawn(self._reap(self._replicas[replica], place, returncode))
            case _:
                pass

    def reap_orphans(self) -> None:
        """The fork server died, and with it all that it has started."""
        for replica in self._replicas.values():
            for place in replica.workers:
                self._host.spawn(self._reap_orphan(replica, place))

    async def tell_signs(self) -> None:
        """Say who shows life, and what is new, until cancelled."""
        node, looks = self._host.config.node, 0
        while True:
            for replica in self._replicas.values():
                replica.tell_life()
            if looks % SIGNS_PER_NEWS == 0:
                sign, has_room = Alive(node=node, refused=0), self.link.has_room
                tell_news(self.link, self._host.job.news_before(sign, has_room=has_room))
            looks += 1
            await asyncio.sleep(LOOK_S)

    async def end(self) -> None:
        """Kill all, and wait until they are reaped."""
        for replica in self._replicas.values():
            replica.kill(is_asked=True)
        while self._replicas:
            await asyncio.sleep(GONE_S)

    def close(self) -> None:
        """Remove what is left: the fork server is gone."""
        for replica in self._replicas.values():
            replica.close()
        self._replicas.clear()

    def _fits(self, order: StartPart) -> bool:
        """Whether an order is of a new replica, and for as many of its workers as a part has."""
        work, each = self._host.job.work, self._host.job.workers_here
        of_parts = () if work is None else range(each, work.workers_per_replica)
        return (
            NAME.fullmatch(order.replica) is not None
            and order.replica not in self._replicas
            and len(set(order.places)) == len(order.places) == each
            and all(place in of_parts for place in order.places)
        )

    def _start(self, order: StartPart) -> None:
        devices = self._host.devices.put(order.replica, len(order.places))
        if not devices:
            tell_refused(self.link, order, "no device is free there")
            return
        told = [self._host.config.of_pool(device) for device in devices]
        replica = PartReplica(order, told, self.link, self._host)
        self._replicas[order.replica] = replica
        self._host.spawn(self._launch(order, replica))

    async def _launch(self, order: StartPart, replica: PartReplica) -> None:
        assignment = assignment_for(order, self._host)
        if assignment is None:
            return
        try:
            await replica.open(Path(assignment.work.out))
        except OSError as error:
            self._replicas.pop(replica.name, None)
            replica.refuse(str(error))
            replica.close()
            return
        replica.start(assignment)

    async def _reap_orphan(self, replica: PartReplica, place: int) -> None:
        await replica.workers[place].vanished()
        await self._reap(replica, place, -9)

    async def _reap(self, replica: PartReplica, place: int, returncode: int) -> None:
        if not await replica.reap(place, returncode):
            return
        self._replicas.pop(replica.name, None)
        try:
            await replica.drain()
        finally:
            replica.close()
