"""The replicas that one agent speaks for: those that wait for devices, that run, that have exited.

Owns which of them are there, who gets devices next, and that how each has ended is told, again if
it is asked again.  A device is free only when all processes of the replica that had it were reaped.
Knows nothing of the coordinator beyond what is said to it.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from pliant.agent import local_replica
from pliant.agent.hosts.link import HostLink
from pliant.agent.local_replica import LocalReplica, not_started
from pliant.agent.this_host import ThisHost
from pliant.core.commands import Command
from pliant.core.events import Exited, ExitKind
from pliant.core.values import Incarnation, ReplicaId
from pliant.machine import run_files
from pliant.wire.codec import Message
from pliant.wire.launch import Assignment


class ReplicasHere:
    """See the module's text; ``close`` when the fork server is gone."""

    def __init__(
        self,
        host: ThisHost,
        *,
        send: Callable[[Message], None],
        parts: Callable[[], Sequence[HostLink]],
        obstacle: Callable[[], str],
        on_devices: Callable[[], None],
    ) -> None:
        """``parts``: other hosts with workers of each replica; ``obstacle``: why nothing can be
        started now, if so; ``on_devices`` is called when others are on the devices than before.
        """
        self._incarnation = Incarnation(0)
        """Of the coordinator that was heard last."""

        self.are_told = True
        """Whether exits are told: else another would be started here in the place of one."""

        self._host = host
        self._send = send
        self._parts = parts
        self._obstacle = obstacle
        self._on_devices = on_devices
        self._running: dict[ReplicaId, LocalReplica] = {}
        self._waiting: deque[ReplicaId] = deque()
        self._exits: dict[ReplicaId, Exited] = {}

    def names(self) -> tuple[ReplicaId, ...]:
        """Return those that run or wait."""
        return (*self._running, *self._waiting)

    def running(self) -> tuple[LocalReplica, ...]:
        """Return those that run."""
        return tuple(self._running.values())

    def get(self, replica: ReplicaId) -> LocalReplica | None:
        """Return one that runs; None: it does not."""
        return self._running.get(replica)

    # --- what the coordinator wants ---------------------------------------------------

    def start(self, replica: ReplicaId) -> None:
        """Start a replica when devices are free; one that is there, or was, is not started."""
        if replica in self._exits:
            self._send(self._exits[replica])
        elif not local_replica.NAME.fullmatch(replica):
            self._host.refuse(replica, "is no name for a replica")
        elif replica not in self._running and replica not in self._waiting:
            self._waiting.append(replica)
            self.fill_devices()

    def end(self, replica: ReplicaId) -> None:
        """Kill a replica; its exit is reported once it was reaped, again if asked again.  One
        that this agent has never started is unknown to it, and will not be started (R21).
        """
        if replica in self._exits:
            self._send(self._exits[replica])
        elif replica in self._waiting:
            self._waiting.remove(replica)
            self._report_exit(Exited(replica=replica, kind=ExitKind.SIGNAL, detail="SIGKILL"))
        elif replica in self._running:
            self._running[replica].request_end()
        else:
            self._report_exit(Exited(replica=replica, kind=ExitKind.UNKNOWN))

    def hear_incarnation(self, incarnation: Incarnation) -> None:
        """Take note of whose commands are obeyed now; who is started later is told."""
        self._incarnation = incarnation

    def pass_on(self, replica: ReplicaId, command: Command, incarnation: Incarnation) -> None:
        """Pass a command on to a replica, if it is here."""
        if replica in self._running:
            self._running[replica].send(command, incarnation)

    def fill_devices(self) -> None:
        """Start those who wait, as far as devices are free; none where nothing can be started."""
        while self._waiting and (why := self._obstacle()):
            self._report_exit(not_started(self._waiting.popleft(), why))
        count = self._host.job.workers_here
        while self._waiting and (devices := self._host.devices.put(self._waiting[0], count)):
            replica = LocalReplica(
                self._waiting.popleft(),
                [self._host.config.of_pool(device) for device in devices],
                ask=self._host.servers.ask,
                on_message=self._send,
                on_refusal=self._host.refuse,
                parts=self._parts(),
            )
            self._running[replica.name] = replica
            self._host.spawn(self._launch(replica))
            self._on_devices()

    def tell_no_more(self) -> None:
        """Start nobody any more, and tell of no exit."""
        self.are_told = False
        self._waiting.clear()

    async def end_all(self) -> None:
        """Kill all that run, and wait until they are gone, but not for ever."""
        await local_replica.end_all(self._running)

    async def speak_for_workers(self) -> None:
        """Speak for workers that live and cannot say so, until cancelled."""
        await local_replica.speak_for_workers(self._running, self._send)

    def close(self) -> None:
        """Close and remove what belongs to them."""
        for replica in self._running.values():
            replica.close()
        self._running.clear()

    # --- what becomes of their processes ----------------------------------------------

    def started(self, replica: ReplicaId, place: int, pid: int, device: int | None = None) -> None:
        """Tell that a worker has a process, if it is of one here; ``device``: of another host."""
        if (known := self._running.get(replica)) is not None:
            node = self._host.config.node
            self._send(known.started(place, pid, node=node, elsewhere=device))

    def reap(self, replica: ReplicaId, place: int, returncode: int) -> None:
        """Take note that the process of a worker is gone, if it is of one here."""
        if replica in self._running:
            self._host.spawn(self._reap(self._running[replica], place, returncode))

    def reap_orphans(self) -> None:
        """The fork server died, and with it all that it has started."""
        for replica in self.running():
            for place in range(len(replica.here)):
                self._host.spawn(self._reap_orphan(replica, place))

    async def _launch(self, replica: LocalReplica) -> None:
        name, work, servers = replica.name, self._host.job.work, self._host.servers
        if work is None or not servers.may_start:  # it has died for the last time: all are reaped
            return
        try:
            logs = Path(work.out) / run_files.LOGS
            await replica.open(logs, self._host.listener, servers.meeting_place)
        except OSError as error:  # another may get what this one lacks
            replica.close()
            self._let_go(name, not_started(name, str(error)))
            return
        replica.start(
            Assignment(
                replica=name,
                work=work,
                address=self._host.config.address,
                incarnation=self._incarnation,
                pid=os.getpid(),
                locks=str(self._host.config.locks or ""),
            )
        )

    async def _reap(self, replica: LocalReplica, place: int, returncode: int) -> None:
        if (exited := await replica.reap(place, returncode)) is None:
            return  # the others of it still have processes
        self._let_go(replica.name, exited)
        try:
            await replica.drain()
        finally:
            replica.close()

    async def _reap_orphan(self, replica: LocalReplica, place: int) -> None:
        await replica.here[place].vanished()
        await self._reap(replica, place, -9)

    def _let_go(self, replica: ReplicaId, exited: Exited) -> None:
        """Report that a replica has no process any more, and give its devices to the next."""
        self._running.pop(replica, None)
        self._report_exit(exited)
        if exited.kind is not ExitKind.TAKEN:
            self._host.devices.leave(replica)
        elif (resting := self._host.devices.rest(replica, exited.worker or 0)) is not None:
            self._host.spawn(self._wake(*resting))
        self._on_devices()
        self.fill_devices()

    async def _wake(self, device: int, rest_s: float) -> None:
        """Let a device that somebody else uses be tried again after a while."""
        await asyncio.sleep(rest_s)
        self._host.devices.wake(device)
        self.fill_devices()

    def _report_exit(self, exited: Exited) -> None:
        self._exits[exited.replica] = exited
        if self.are_told:
            self._send(exited)
