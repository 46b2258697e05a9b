"""The replicas that one agent speaks for: those that wait for devices, that run, that have exited.

Owns which of them are there, who gets devices next, and that how each has ended is told, again if
it is asked again.  A device is free only when all processes of the replica that had it were reaped.
Knows nothing of the coordinator beyond what is said to it.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence

from pliant.agent.hosts.link import HostLink
from pliant.agent.local_replica import LocalReplica
from pliant.agent.placement import FAILURES
from pliant.agent.this_host import ThisHost
from pliant.agent.worker import LOOK_S
from pliant.agent.workers_here import RunningReplicas, not_started
from pliant.core.commands import Command
from pliant.core.events import Exited, ExitKind
from pliant.core.values import Incarnation, ReplicaId

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # it becomes a file name

END_S = 2.0
"""How long an agent that was told to end waits for its replicas to be gone, in seconds."""


class ReplicasHere(RunningReplicas[LocalReplica]):
    """See the module's text."""

    def __init__(
        self,
        host: ThisHost,
        *,
        parts: Callable[[], Sequence[HostLink]],
        obstacle: Callable[[], str],
        on_devices: Callable[[], None],
    ) -> None:
        """``parts``: other hosts with workers of each replica; ``obstacle``: why nothing can be
        started now, if so; ``on_devices`` is called when others are on the devices than before.
        """
        super().__init__(host)
        self.incarnation = Incarnation(0)
        """Of the coordinator that was heard last; who is started is told."""

        self._are_told = True
        self._parts = parts
        self._obstacle = obstacle
        self._on_devices = on_devices
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
            self._host.send(self._exits[replica])
        elif not NAME.fullmatch(replica):
            self._host.refuse(replica, "is no name for a replica")
        elif replica not in self._running and replica not in self._waiting:
            self._waiting.append(replica)
            self.fill_devices()

    def end(self, replica: ReplicaId) -> None:
        """Kill a replica; its exit is reported once it was reaped, again if asked again.  One
        that this agent has never started is unknown to it, and will not be started (R21).
        """
        if replica in self._exits:
            self._host.send(self._exits[replica])
        elif replica in self._waiting:
            self._waiting.remove(replica)
            self._report_exit(Exited(replica=replica, kind=ExitKind.SIGNAL, detail="SIGKILL"))
        elif replica in self._running:
            self._running[replica].request_end()
        else:
            self._report_exit(Exited(replica=replica, kind=ExitKind.UNKNOWN))

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
                self._waiting.popleft(), devices, self._host, parts=self._parts()
            )
            self._add(replica, self.incarnation)
            self._on_devices()

    async def end_all(self) -> None:
        """Kill all that run, and wait until they are gone, but not for ever."""
        for replica in self._running.values():
            replica.request_end()
        looks = 40
        for _ in range(looks):
            if not self._running:
                return
            await asyncio.sleep(END_S / looks)

    async def end_for_good(self) -> None:
        """Kill all, start nobody any more, and tell of no exit: else another would be started here
        in the place of one.
        """
        self._are_told = False
        self._waiting.clear()
        await self.end_all()

    async def speak_for_workers(self) -> None:
        """Speak for workers that live and cannot say so; one that was stopped stays silent."""
        while True:
            for replica in self._running.values():
                if (life := replica.unsaid_life()) is not None:
                    self._host.send(life)
            await asyncio.sleep(LOOK_S)

    # --- what becomes of their processes ----------------------------------------------

    def _let_go(self, name: ReplicaId, exited: Exited) -> None:
        """Report that a replica has no process any more, and give its devices to the next."""
        super()._let_go(name, exited)
        self._report_exit(exited)
        devices, place = self._host.devices, exited.worker or 0
        after = {ExitKind.TAKEN: 1, ExitKind.DEVICE: FAILURES}.get(exited.kind)
        if after is None:
            devices.leave(name)
        elif (resting := devices.rest(name, place, after=after)) is not None:
            self._host.spawn(self._wake(*resting))
        self._on_devices()
        self.fill_devices()

    async def _wake(self, device: int, rest_s: float) -> None:
        """Let a device be tried again after a while."""
        await asyncio.sleep(rest_s)
        self._host.devices.wake(device)
        self.fill_devices()

    def _report_exit(self, exited: Exited) -> None:
        self._exits[exited.replica] = exited
        if self._are_told:
            self._host.send(exited)
