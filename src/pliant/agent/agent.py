"""The agent of one node: runs replicas, carries what they and the coordinator say to each other.

Owns the processes of its node: their devices, start and exits.  Its coordinator may die and another
follow: workers go on meanwhile.  Knows nothing of generations, torch or why: it decides nothing.

    coordinator ==WebSocket==> agent --socket pair--> fork server --fork--> workers
                                 \\=======one socket pair per worker=======/

A device is free only when all processes of the replica that had it were reaped.  A fork server that
dies takes its workers with it and is started once more; after a second death nothing is, here.
Of a pool's devices an agent may use those that it was told (``may_use``).  Who has one is for the
kernel to say: a worker takes the lock of its device itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, assert_never

from pliant.agent import local_replica
from pliant.agent.agent_config import AgentConfig
from pliant.agent.departure import Departure
from pliant.agent.fork_servers import ForkServers
from pliant.agent.local_replica import LocalReplica, not_started
from pliant.agent.node_facts import greeting
from pliant.agent.output import nobody_listens
from pliant.agent.placement import Devices
from pliant.agent.thinning import ALIVE_S, LIST_EVERY
from pliant.agent.uplink import Places, Uplink
from pliant.agent.work import JobHere
from pliant.agent.worker import LAST_WORDS_S
from pliant.core.commands import Command, EndJob, EndReplica, StartReplica
from pliant.core.errors import ConfigError, PermanentError
from pliant.core.events import Exited, ExitKind, Running
from pliant.core.values import Incarnation, ReplicaId
from pliant.machine import run_files
from pliant.machine.processes import new_life
from pliant.wire import launch
from pliant.wire.bounds import MOST_DEVICES
from pliant.wire.codec import Message
from pliant.wire.messages import AgentFailed, AgentLeft, Alive, Work
from pliant.wire.ports import OutputListener

_log = logging.getLogger(__name__)


class Agent:
    """Runs the workers of one job on one node.  ``open``, ``serve``, ``close``, each once."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        listener: OutputListener = nobody_listens,
        on_devices: Callable[[], None] = lambda: None,
    ) -> None:
        self.node = config.node
        self._config = config
        self._job = JobHere(config)
        self._listener = self._job.heard_by(listener)
        self._replicas: dict[ReplicaId, LocalReplica] = {}
        self._waiting: deque[ReplicaId] = deque()
        self._devices = Devices(range(config.devices) if config.locks is None else ())
        self._on_devices = on_devices
        self._exits: dict[ReplicaId, Exited] = {}
        self._servers = ForkServers(
            config,
            spawn=self._spawn,
            on_report=self._on_report,
            on_death=self._reap_orphans,
            on_end=self._fail,
        )
        self._uplink: Uplink | None = None
        self._early: list[Message] = []
        self._refused = self._signs = 0
        self._has_failed = self._is_leaving = False
        self._departure = Departure(config.node, config.grace_s)
        self._misfit: PermanentError | None = None
        self.life = new_life()
        self._over = asyncio.Event()
        self.ended: EndJob | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Start the fork server, which imports for a second or two; returns at once.

        Without work this waits for what the coordinator says.
        """
        if (work := self._job.work) is None:
            return
        self._servers.start(work)

    def guard(self) -> None:
        """Tell the fork server which files to remove if this process is killed."""
        self._servers.guard()

    @property
    def is_connected(self) -> bool:
        """Whether it has a coordinator now."""
        return self._uplink is not None and self._uplink.is_connected

    @property
    def used(self) -> Mapping[int, ReplicaId]:
        """Return the devices that have a worker, with its replica."""
        return self._devices.used

    def may_use(self, devices: Iterable[int]) -> None:
        """Replace the set of devices that workers may be put on; who is on one stays there."""
        self._devices.allow(devices)
        self._fill_devices()

    async def serve(self, places: Places, token: str) -> None:
        """Obey the coordinator, which is at one of these places, until it ends the job.

        Raises:
            PermanentError: the coordinator refuses this agent, cannot be reached any more, or is
                of a job that cannot run here.
        """
        self._uplink = Uplink(
            places,
            token,
            greeting=self._greeting,
            on_work=self._employ,
            on_command=self._obey,
            on_unfit=self._leave,
            give_up_s=self._config.give_up_s,
            tls=self._config.tls,
        )
        for message in self._early:
            self._uplink.send(message)
        uplink = asyncio.create_task(self._uplink.run())
        over = asyncio.create_task(self._over.wait())
        speaking = local_replica.speak_for_workers(self._replicas, self._send)
        signs = map(asyncio.create_task, (self._stay_alive(), speaking))
        tasks = (uplink, over, *signs)
        try:
            await asyncio.wait({uplink, over}, return_when=asyncio.FIRST_COMPLETED)
            if uplink.done():
                uplink.result()
            if self._misfit is not None:
                await self._uplink.emptied(LAST_WORDS_S)
                raise self._misfit
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def depart(self, hurried: asyncio.Event | None = None) -> None:
        """While served: let replicas leave in the grace, or until ``hurried``; end the others."""
        if self.is_connected and self._config.grace_s and self._all_here():
            self._send(self._departure.begun())
            await self._departure.over(self._all_here, self._over, hurried or asyncio.Event())
        self._is_leaving = True
        self._waiting.clear()
        await local_replica.end_all(self._replicas)
        self._send(AgentLeft(node=self.node))
        if self._uplink is not None:
            await self._uplink.emptied(LAST_WORDS_S)

    async def close(self) -> None:
        """End every worker and the fork server; returns when they are gone."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._servers.close()
        for replica in self._replicas.values():
            replica.close()
        self._replicas.clear()
        await asyncio.sleep(0)  # let transports close their files

    # --- what the coordinator says ------------------------------------------------

    def _employ(self, work: Work) -> None:
        """Take on a job; a coordinator that comes later must be of the same."""
        try:
            if self._job.take_on(work):
                self.open()
        except (ConfigError, OSError) as error:
            self._fail(str(error))
            self._send(AgentLeft(node=self.node))
            self._leave(str(error))

    def _leave(self, reason: str) -> None:
        """Have no part in this job, which may go on without this node."""
        self._misfit = PermanentError(reason)
        self._over.set()

    def _obey(self, command: Command, incarnation: Incarnation) -> None:
        """Carry out a command; one that was carried out before changes nothing."""
        if self._is_leaving:
            return
        match command:
            case StartReplica(replica=replica):
                self._start(replica)
            case EndReplica(replica=replica):
                self._end(replica)
            case EndJob():
                self.ended = command
                self._over.set()
            case _:
                for replica in command.to:
                    if replica in self._replicas:
                        self._replicas[replica].send(command, incarnation)

    def _start(self, replica: ReplicaId) -> None:
        if replica in self._exits:
            self._send(self._exits[replica])
        elif not local_replica.NAME.fullmatch(replica):
            self._refuse(replica, "is no name for a replica")
        elif replica not in self._replicas and replica not in self._waiting:
            self._waiting.append(replica)
            self._fill_devices()

    def _fill_devices(self) -> None:
        """Start those who wait, as far as devices are free; none where nothing can be started."""
        while self._waiting and self._has_failed:
            self._report_exit(not_started(self._waiting.popleft(), "its agent has failed"))
        count = 1 if self._job.work is None else self._job.work.workers_per_replica
        while self._waiting and (devices := self._devices.put(self._waiting[0], count)):
            replica = LocalReplica(
                self._waiting.popleft(),
                [self._config.of_pool(device) for device in devices],
                ask=self._servers.ask,
                on_message=self._send,
                on_refusal=self._refuse,
            )
            self._replicas[replica.name] = replica
            self._spawn(self._launch(replica))
            self._on_devices()

    async def _launch(self, replica: LocalReplica) -> None:
        name, work = replica.name, self._job.work
        if work is None or not self._servers.may_start:  # it died for the last time: all are reaped
            return
        logs = Path(work.out) / run_files.LOGS
        try:
            await replica.open(logs, self._listener, self._servers.meeting_place)
        except OSError as error:  # another may get what this one lacks
            replica.close()
            self._let_go(name, not_started(name, str(error)))
            return
        replica.start(
            launch.Assignment(
                replica=name,
                work=work,
                address=self._config.address,
                incarnation=self._uplink.incarnation if self._uplink else Incarnation(0),
                pid=os.getpid(),
                locks=str(self._config.locks or ""),
            )
        )

    def _end(self, replica: ReplicaId) -> None:
        """Kill a replica; its exit is reported once it was reaped, again if asked again.  One
        that this agent has never started is unknown to it, and will not be started (R21).
        """
        if replica in self._exits:
            self._send(self._exits[replica])
        elif replica in self._waiting:
            self._waiting.remove(replica)
            self._report_exit(Exited(replica=replica, kind=ExitKind.SIGNAL, detail="SIGKILL"))
        elif replica in self._replicas:
            self._replicas[replica].request_end()
        else:
            self._report_exit(Exited(replica=replica, kind=ExitKind.UNKNOWN))

    # --- what the fork server says ------------------------------------------------

    def _on_report(self, report: launch.Report) -> None:
        match report:
            case launch.ServerReady():
                pass
            case launch.ServerFailed(reason=reason):
                self._servers.give_up()
                self._fail(f"the engine cannot be imported: {reason}")
            case launch.WorkerStarted(replica=replica, place=place, pid=pid):
                if replica in self._replicas:
                    self._send(self._replicas[replica].started(place, pid, node=self.node))
            case launch.WorkerExited(replica=replica, place=place, returncode=returncode):
                if replica in self._replicas:
                    self._spawn(self._reap(self._replicas[replica], place, returncode))
            case _:
                assert_never(report)

    async def _reap(self, replica: LocalReplica, place: int, returncode: int) -> None:
        if (exited := await replica.reap(place, returncode)) is None:
            return  # the others of it still have processes
        self._let_go(replica.name, exited)
        try:
            await replica.drain()
        finally:
            replica.close()

    def _let_go(self, replica: ReplicaId, exited: Exited) -> None:
        """Report that a replica has no process any more, and give its devices to the next."""
        self._replicas.pop(replica, None)
        self._report_exit(exited)
        if exited.kind is not ExitKind.TAKEN:
            self._devices.leave(replica)
        elif (resting := self._devices.rest(replica, exited.worker or 0)) is not None:
            self._spawn(self._wake(*resting))
        self._on_devices()
        self._fill_devices()

    async def _wake(self, device: int, rest_s: float) -> None:
        """Let a device that somebody else uses be tried again after a while."""
        await asyncio.sleep(rest_s)
        self._devices.wake(device)
        self._fill_devices()

    def _report_exit(self, exited: Exited) -> None:
        self._exits[exited.replica] = exited
        if not self._is_leaving:  # or another would be started here in its place
            self._send(exited)

    def _reap_orphans(self) -> None:
        """The fork server died, and with it all that it has started."""
        for replica in tuple(self._replicas.values()):
            for place in range(len(replica.workers)):
                self._spawn(self._reap_orphan(replica, place))

    async def _reap_orphan(self, replica: LocalReplica, place: int) -> None:
        await replica.workers[place].vanished()
        await self._reap(replica, place, -9)

    # --- what goes up -----------------------------------------------------------------

    def _greeting(self) -> list[Message]:
        self._signs = 0  # the list of all that runs comes soon
        devices = 0 if self._has_failed else min(self._config.devices, MOST_DEVICES)
        said = greeting(self._config, devices, self._all_here(), self.life)
        return [*said, *self._departure.words()]

    def _all_here(self) -> tuple[ReplicaId, ...]:
        return (*self._replicas, *self._waiting)

    def _send(self, message: Message) -> None:
        has_room = self._uplink is not None and self._uplink.has_room
        for one in (*self._job.news_before(message, has_room=has_room), message):
            (self._early.append if self._uplink is None else self._uplink.send)(one)

    def _fail(self, reason: str) -> None:
        """Report the first failure; what follows follows from it."""
        if self._has_failed:
            return
        self._has_failed = True
        self._send(AgentFailed(node=self.node, reason=reason))
        self._fill_devices()

    def _refuse(self, worker: str, reason: str) -> None:
        self._refused += 1
        _log.warning("refused a message of %s: %s", worker, reason)

    async def _stay_alive(self) -> None:
        while True:
            self._send(Alive(node=self.node, refused=self._refused))
            if self._signs % LIST_EVERY == 0:
                self._send(Running(node=self.node, replicas=self._all_here()))
            self._signs += 1
            await asyncio.sleep(max(ALIVE_S, self._uplink.signs_every_s if self._uplink else 0.0))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(f"{type(error).__name__}: {error}")
