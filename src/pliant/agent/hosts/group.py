"""This host in a host group of several: alone, the head that speaks for it, or a part of it.

Owns which of these it is, and how it becomes that.  Decides nothing: with whom it is joined the
coordinator says.  Where a replica has room on one host all of this is nothing.

    alone --JoinHosts--> awaits its parts, or seeks its head --all are there--> head, or part
      ^                             | one is not                                     |
      +-------------<---------------+------<-- all that ran is reaped <-- a link has ended

A host group is whole or gone: when one link ends, each of its hosts kills what it runs of it.  What
it is its coordinator hears with the greeting, so the connection is made anew when that changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pliant.agent.hosts.group_log import GroupLog
from pliant.agent.hosts.leader import HeadWorkers
from pliant.agent.hosts.link import HostLink
from pliant.agent.hosts.listener import HeadListener, reached
from pliant.agent.hosts.member import GONE_S, PartWorkers
from pliant.agent.node_facts import AgentConfig
from pliant.agent.replicas_here import ReplicasHere
from pliant.agent.this_host import ThisHost
from pliant.core.errors import ConfigError
from pliant.core.text import in_words
from pliant.core.values import NodeId, TlsFiles
from pliant.machine.descriptors import shortage_of
from pliant.machine.event_loop import cancelled, first_of
from pliant.wire import launch
from pliant.wire.host_records import AllJoined, PartLeaving
from pliant.wire.messages import HostAlone, JoinHosts

WAITS_S = 2.0
"""Until a host says here that it waits: such as come together are one by then, and where the job
has ended it has heard that."""

AGAIN_S = 5.0
"""Until a host tries again that has lacked what it needs to be one with others, in seconds."""

_log = logging.getLogger(__name__)


class JoinedHost:
    """Of one agent; ``close`` at the end."""

    def __init__(
        self,
        host: ThisHost,
        replicas: ReplicasHere,
        *,
        renew: Callable[[], None],
        begin_anew: Callable[[], None],
        release: Callable[[float], Awaitable[None]],
    ) -> None:
        """``renew`` greets the coordinator anew, as this host is something else now; ``begin_anew``
        leaves, and comes again as one that was just started; ``release`` lets all replicas leave,
        and ends those that have not in that time.
        """
        self._host = host
        self._renew, self._begin_anew, self._release = renew, begin_anew, release
        self._config: AgentConfig = host.config
        self._replicas = replicas
        self._listener: HeadListener | None = None
        self._task: asyncio.Task[None] | None = None
        self._again: asyncio.Task[None] | None = None
        self._told: JoinHosts | None = None
        """What it is part of, from when all are there until what ran is gone."""

        self.links: tuple[HostLink, ...] = ()
        """To the parts, in the order of their workers' places."""

        self._part: PartWorkers | None = None
        self._words = GroupLog(host.config.address)
        self._missed: tuple[NodeId, ...] = ()
        """With whom the last attempt failed.  It counts once, and is said until the next one, as it
        may not have been heard."""

        self._is_over = self._is_released = False

    # --- what it is -----------------------------------------------------------------

    @property
    def is_needed(self) -> bool:
        """Whether a replica of the job has workers on several hosts."""
        work = self._host.job.work
        return work is not None and work.hosts_per_replica > 1

    @property
    def head(self) -> str:
        """Return of which node this host is one; empty: of none."""
        return "" if self._told is None else self._told.head

    @property
    def parts(self) -> tuple[NodeId, ...]:
        """Return the other hosts of the node that this one speaks for."""
        is_head = self._told is not None and self._told.head == self._config.node
        return self._told.parts if self._told is not None and is_head else ()

    @property
    def is_part(self) -> bool:
        """Whether another host speaks for what runs here."""
        return self._part is not None

    @property
    def obstacle(self) -> str:
        """Return why no replica can be started here now; empty: it can."""
        return "its node has lost a host" if self.is_needed and not self.links else ""

    def devices(self, own: int) -> int:
        """Return for how many workers the node has room that this host speaks for."""
        work = self._host.job.work
        if work is None or not self.is_needed:
            return own
        here = self._host.job.workers_here
        each = [own, *(link.devices for link in self.links)]
        return min(each) // here * work.workers_per_replica if self.links else 0

    # --- what happens to it -----------------------------------------------------------

    def say_alone(self) -> None:
        """Tell the coordinator that this host is part of nothing, if it is so and of any use."""
        if not self.is_needed or self._task is not None or self._is_over:
            return
        try:
            self._listener = self._listener or HeadListener(self._config.address, self._tls())
        except OSError as error:
            self._say_lack(error)
            return
        self._words.say_missed(self._missed)
        if not self._missed:
            self._host.spawn(self._say_waits())
        self._host.send(
            HostAlone(
                node=self._config.node,
                endpoint=self._listener.endpoint,
                devices=self._config.devices,
                missed=self._missed,
            )
        )

    def _say_lack(self, error: OSError) -> None:
        """Say, here and to the coordinator, why this host cannot be one with others; try again."""
        why = shortage_of(error)
        self._words.say_lack(why, AGAIN_S)
        said = HostAlone(
            node=self._config.node, endpoint="", devices=0, missed=self._missed, obstacle=why
        )
        self._host.send(said)
        if self._again is None:
            self._again = asyncio.create_task(self._try_again())

    async def _try_again(self) -> None:
        await asyncio.sleep(AGAIN_S)
        self._again = None
        self.say_alone()

    async def _say_waits(self) -> None:
        """Say here that this host waits, if it still does in a moment."""
        await asyncio.sleep(WAITS_S)
        work = self._host.job.work
        is_alone = self._task is None and self._listener is not None
        if work is not None and is_alone and not self._is_over:
            self._words.say_waits(work)

    def join(self, told: JoinHosts) -> None:
        """Be one with others, as its head or a part; what is not of this moment changes nothing."""
        own = self._config.node
        if self._task is not None or self._listener is None or self._is_over or not self.is_needed:
            return
        if own == told.head:
            self._task = asyncio.create_task(self._run(self._be_head(told, self._listener)))
        elif own in told.parts:
            self._task = asyncio.create_task(self._run(self._be_part(told)))

    def on_report(self, report: launch.Report) -> None:
        """Take what the fork server says of workers that are no replica's of this node."""
        if self._part is not None:
            self._part.on_report(report)

    def reap_orphans(self) -> None:
        """The fork server died, and with it all that it has started."""
        if self._part is not None:
            self._part.reap_orphans()

    def give_up(self) -> None:
        """Be alone, and say so to nobody: nothing can be started here any more."""
        self._is_over = True
        for link in self.links:
            link.cut()
        if self._part is not None:
            self._part.link.cut()

    async def depart(self, notice_s: float, hurried: asyncio.Event) -> None:
        """This host was told to end: let what runs here leave in that time, unless in a hurry."""
        self._is_over = True
        if self._part is None or self._part.is_idle or not notice_s:
            return
        link = self._part.link
        link.say(PartLeaving(notice_s=notice_s))
        await first_of(link.ended, hurried, limit_s=notice_s)

    async def close(self) -> None:
        """End every link; what runs here ends with the fork server."""
        self._is_over = True
        tasks = [one for one in (self._task, self._again) if one is not None]
        await cancelled(*tasks)
        if self._listener is not None:
            self._listener.close()

    def forget(self) -> None:
        """Remove what is left of what ran here, once the fork server is gone."""
        if self._part is not None:
            self._part.close()

    # --- how it becomes one -------------------------------------------------------------

    async def _run(self, being: Awaitable[None]) -> None:
        """Be joined until that is over, and then alone again."""
        try:
            await being
        except (ConfigError, OSError) as error:
            why = shortage_of(error) if isinstance(error, OSError) else error
            _log.warning("this host cannot be joined with others: %s", why)
        except Exception:  # a boundary: this host may be of use yet
            _log.exception("this host is not joined with others any more")
        finally:
            if self._listener is not None:
                self._listener.close()
            self._task = self._told = self._listener = None
        if self._is_released:
            self._is_released = False
            self._begin_anew()
        else:
            self.say_alone()

    async def _be_head(self, told: JoinHosts, listener: HeadListener) -> None:
        self._missed = ()
        workers = HeadWorkers(self._replicas, self._host, self._let_leave)
        links: dict[NodeId, HostLink] = {}
        try:
            links = await listener.awaited(told, workers.meet)
            self._missed = tuple(part for part in told.parts if part not in links)
            if self._missed or self._is_over:
                return
            for link in links.values():
                link.say(AllJoined())
            self.links = tuple(links[part] for part in told.parts)
            self._become(told)
            await first_of(*(link.ended for link in self.links))
        finally:
            first = sorted(links.values(), key=lambda link: not link.ended.is_set())
            for link in first:
                link.cut()
        self._missed = tuple(link.other for link in first if link.is_silent)
        self._part_from_all()
        self._replicas.fill_devices()  # with nobody: there are no other hosts
        for link in first:
            workers.lose(link)
        while self._replicas.names():
            await asyncio.sleep(GONE_S)

    def _become(self, told: JoinHosts) -> None:
        """Be one with others, and say so."""
        self._told = told
        self._words.begin_anew()
        others = [node for node in (told.head, *told.parts) if node != self._config.node]
        _log.warning("this host is one node with %s now", in_words(others))
        self._renew()

    def _part_from_all(self) -> None:
        """Be no node any more, and say so before anything else is started here."""
        self._told, self.links = None, ()
        if not self._is_released:
            self._renew()

    def _let_leave(self, notice_s: float) -> None:
        if not self._is_released:
            self._is_released = True
            self._host.spawn(self._leave_all(notice_s))

    async def _leave_all(self, notice_s: float) -> None:
        await self._release(notice_s)
        for link in self.links:
            link.cut()

    async def _be_part(self, told: JoinHosts) -> None:
        self._missed = (told.head,)  # whatever comes in between
        link = await reached(told, self._config, self._tls())
        if link is None:
            return
        self._missed = ()
        workers = PartWorkers(link, self._host)
        link.attach(workers.obey)
        greeting = self._greet_as(told, workers)
        tasks = [asyncio.create_task(one) for one in (link.run(), greeting)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            link.cut()
            for task in tasks:
                task.cancel()
            _, failure = await asyncio.gather(*tasks, return_exceptions=True)
        self._missed = (told.head,) if link.is_silent else ()
        if self._part is not None:
            self._part_from_all()
        await workers.end()
        self._part = None
        self._host.job.tell_again()
        if isinstance(failure, Exception):
            raise failure

    async def _greet_as(self, told: JoinHosts, workers: PartWorkers) -> None:
        await workers.joined.wait()
        if self._is_over:  # nothing can be started here any more: the others are to look for others
            workers.link.cut()
            return
        self._part = workers
        self._become(told)
        await workers.tell_signs()

    def _tls(self) -> TlsFiles | None:
        """Return what both ends of a link show: what this host shows to its coordinator, or what
        replicas show to others.
        """
        own, work = self._config.tls, self._host.job.work
        return own if own is not None and own.is_whole else None if work is None else work.tls
