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
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from pliant.agent.fork_servers import ForkServers
from pliant.agent.hosts.group import JoinedHost
from pliant.agent.node_facts import AgentConfig, greeting
from pliant.agent.output import OutputListener, nobody_listens
from pliant.agent.placement import Devices
from pliant.agent.replicas_here import ReplicasHere
from pliant.agent.this_host import ThisHost
from pliant.agent.uplink import ALIVE_S, LIST_EVERY, Places, Uplink
from pliant.agent.work import JobHere
from pliant.agent.worker import LAST_WORDS_S
from pliant.core.commands import Command, EndJob, EndReplica, StartReplica
from pliant.core.errors import ConfigError, PermanentError
from pliant.core.events import NodeLeaving, Running
from pliant.core.values import Incarnation, ReplicaId
from pliant.machine.device_health import DeviceHealth
from pliant.machine.event_loop import cancelled, within
from pliant.machine.processes import new_life
from pliant.wire import launch
from pliant.wire.bounds import MOST_DEVICES
from pliant.wire.codec import Message
from pliant.wire.messages import AgentFailed, AgentLeft, Alive, DevicesAiling, Work

_log = logging.getLogger(__name__)


LOOK_S = 0.1
"""Between two looks whether all replicas have left, in seconds."""


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
        is_of_pool = config.locks is not None
        self._devices = Devices(() if is_of_pool else range(config.devices))
        self._room = config.devices
        """For how many workers there is, as was said last."""

        names = {} if is_of_pool else {n: config.device_name(n) for n in range(config.devices)}
        self._health = DeviceHealth(names, self._on_ailments)
        self._hear_of_devices = on_devices
        self._servers = ForkServers(
            config,
            spawn=self._spawn,
            on_report=self._on_report,
            on_death=self._on_server_death,
            on_end=self._fail,
        )
        host = ThisHost(
            config=config,
            job=self._job,
            devices=self._devices,
            servers=self._servers,
            listener=self._job.heard_by(listener),
            send=self.send,
            refuse=self._refuse,
            spawn=self._spawn,
        )
        self._replicas = ReplicasHere(
            host,
            parts=lambda: self._joint.links,
            obstacle=self._obstacle,
            on_devices=self._on_devices,
        )
        self._joint = JoinedHost(
            host,
            self._replicas,
            renew=self._renew,
            begin_anew=self._begin_anew,
            release=self._release,
        )
        self._uplink: Uplink | None = None
        self._early: list[Message] = []
        self._refused = self._signs = 0
        self._has_failed = self._is_leaving = False
        self._leaves_at_s: float | None = None
        """When the replicas have had their time to leave; None: nobody was told to."""

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
        self._replicas.fill_devices()

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
            on_join=self._joint.join,
            give_up_s=self._config.give_up_s,
            looks_on=lambda: self._joint.is_part,
            tls=self._config.tls,
        )
        for message in self._early:
            self._uplink.send(message)
        uplink = asyncio.create_task(self._uplink.run())
        over = asyncio.create_task(self._over.wait())
        speaking = self._replicas.speak_for_workers()
        beside = (self._stay_alive(), speaking, self._health.watch())
        signs = map(asyncio.create_task, beside)
        tasks = (uplink, over, *signs)
        try:
            await asyncio.wait({uplink, over}, return_when=asyncio.FIRST_COMPLETED)
            if uplink.done():
                uplink.result()
            if self._misfit is not None:
                await self._uplink.emptied(LAST_WORDS_S)
                raise self._misfit
        finally:
            await cancelled(*tasks)

    async def depart(self, hurried: asyncio.Event | None = None) -> None:
        """While served: let replicas leave in the grace, or until ``hurried``; end the others."""
        hurried = hurried or asyncio.Event()
        await self._joint.depart(self._config.grace_s, hurried)
        await self._let_go_all(self._config.grace_s, hurried, is_end=True)
        self._is_leaving = True
        await self._replicas.end_for_good()
        self.send(AgentLeft(node=self.node))
        if self._uplink is not None:
            await self._uplink.emptied(LAST_WORDS_S)

    async def _let_go_all(
        self, notice_s: float, hurried: asyncio.Event, *, is_end: bool = False
    ) -> None:
        """Wait until no replica is left, the job or the time is over, or somebody is in a hurry.

        ``is_end``: this agent ends then, and says so as well to a coordinator that is new.
        """
        if not (self.is_connected and notice_s > 0 and self._replicas.names()):
            return
        until_s = time.monotonic() + notice_s
        if is_end:
            self._leaves_at_s = until_s
        self.send(NodeLeaving(node=self.node, notice_s=notice_s))
        while self._replicas.names() and not (self._over.is_set() or hurried.is_set()):
            if (left_s := until_s - time.monotonic()) <= 0:
                return
            await within(hurried.wait(), min(left_s, LOOK_S))

    async def close(self) -> None:
        """End every worker and the fork server; returns when they are gone."""
        await self._joint.close()
        await cancelled(*self._tasks)
        await self._servers.close()
        self._replicas.close()
        self._joint.forget()
        await asyncio.sleep(0)  # let transports close their files

    # --- what the coordinator says ------------------------------------------------

    def _employ(self, work: Work) -> None:
        """Take on a job; a coordinator that comes later must be of the same."""
        try:
            if self._job.take_on(work):
                self.open()
        except (ConfigError, OSError) as error:
            self._fail(str(error))
            self.send(AgentLeft(node=self.node))
            self._leave(str(error))
        else:
            self._joint.say_alone()

    def _leave(self, reason: str) -> None:
        """Have no part in this job, which may go on without this node."""
        self._misfit = PermanentError(reason)
        self._over.set()

    def _obey(self, command: Command, incarnation: Incarnation) -> None:
        """Carry out a command; one that was carried out before changes nothing."""
        if self._is_leaving:
            return
        self._replicas.incarnation = incarnation
        match command:
            case StartReplica(replica=replica):
                self._replicas.start(replica)
            case EndReplica(replica=replica):
                self._replicas.end(replica)
            case EndJob():
                self.ended = command
                self._over.set()
            case _:
                for replica in command.to:
                    self._replicas.pass_on(replica, command, incarnation)

    # --- what the fork server says ------------------------------------------------

    def _on_report(self, report: launch.Report) -> None:
        match report:
            case launch.ServerReady():
                pass
            case launch.ServerFailed(reason=reason):
                self._servers.give_up()
                self._fail(f"the engine cannot be imported: {reason}")
            case _:
                self._replicas.on_report(report)
                self._joint.on_report(report)

    def _on_server_death(self) -> None:
        self._replicas.reap_orphans()
        self._joint.reap_orphans()

    def _obstacle(self) -> str:
        """Say why no replica can be started here now, if so."""
        return "its agent has failed" if self._has_failed else self._joint.obstacle

    # --- what becomes of its devices --------------------------------------------------

    def _on_devices(self) -> None:
        """Others are on them than before: one that is cordoned may have lost who was on it."""
        self._hear_of_devices()
        if self._config.locks is None and self._room != self._devices.room:
            self._renew()

    def _on_ailments(self, ailments: Mapping[str, str]) -> None:
        self._devices.cordon(self._health.ailing)
        self._signs = 0  # who is on them is told at once
        if not ailments or self._room == self._devices.room:  # else the next greeting says so
            self.send(DevicesAiling(node=self.node, ailments=tuple(ailments.items())))
        self._on_devices()
        self._replicas.fill_devices()

    # --- what it is to other hosts ----------------------------------------------------

    def _begin_anew(self) -> None:
        """Leave, and come again with another life: also where nobody hears that this one left."""
        self.life = new_life()
        self.send(AgentLeft(node=self.node))

    def _renew(self) -> None:
        """Greet the coordinator anew: this host is something else now."""
        if self._uplink is not None:
            self._uplink.renew()

    async def _release(self, notice_s: float) -> None:
        """Let all replicas leave, and end those that have not in that time."""
        await self._let_go_all(notice_s, asyncio.Event())
        await self._replicas.end_all()

    # --- what goes up -----------------------------------------------------------------

    def _greeting(self) -> list[Message]:
        self._signs = 0  # the list of all that runs comes soon
        if self._config.locks is None:
            self._room = self._devices.room
        devices = 0 if self._has_failed else self._joint.devices(self._room)
        said = greeting(
            self._config,
            devices=min(devices, MOST_DEVICES),
            replicas=self._replicas.names(),
            life=self.life,
            head=self._joint.head,
            parts=self._joint.parts,
        )
        if self._health.ailments:
            ailments = tuple(self._health.ailments.items())
            said.append(DevicesAiling(node=self.node, ailments=ailments))
        if self._leaves_at_s is not None:
            left_s = max(0.0, self._leaves_at_s - time.monotonic())
            said.append(NodeLeaving(node=self.node, notice_s=left_s))
        return said

    def send(self, message: Message) -> None:
        """Say something to the coordinator, when there is one; what is new here before it."""
        has_room = self._uplink is not None and self._uplink.has_room
        if self._joint.is_part:  # its head says that
            self._say(message)
            return
        for one in (*self._job.news_before(message, has_room=has_room), message):
            self._say(one)

    def _say(self, message: Message) -> None:
        (self._early.append if self._uplink is None else self._uplink.send)(message)

    def _fail(self, reason: str) -> None:
        """Report the first failure; what follows follows from it."""
        if self._has_failed:
            return
        self._has_failed = True
        self._joint.give_up()
        self.send(AgentFailed(node=self.node, reason=reason))
        self._replicas.fill_devices()

    def _refuse(self, worker: str, reason: str) -> None:
        self._refused += 1
        _log.warning("refused a message of %s: %s", worker, reason)

    async def _stay_alive(self) -> None:
        while True:
            self.send(Alive(node=self.node, refused=self._refused))
            if self._signs % LIST_EVERY == 0:
                here, ailing = self._replicas.names(), self._devices.displaced
                self.send(Running(node=self.node, replicas=here, ailing=ailing))
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
