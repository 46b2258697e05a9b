"""The links between the parts of a host group, on which only signs of life go.

Owns that two parts reach each other, before they are of one node and for as long as they are: the
workers of a replica talk to each other directly, and would wait for ever where two parts have no
way to each other.  Of two the earlier one awaits the later.  Knows nothing of what runs there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from pliant.agent.hosts.link import HostLink
from pliant.agent.hosts.listener import HeadListener, reached
from pliant.agent.this_host import ThisHost
from pliant.core.text import counted, in_words
from pliant.core.values import NodeId, TlsFiles
from pliant.wire.host_records import LinkRecord
from pliant.wire.messages import JoinHosts, Work


class PartPeers:
    """Those of one part; ``meet`` once, ``close`` at the end."""

    def __init__(
        self,
        told: JoinHosts,
        host: ThisHost,
        listener: HeadListener,
        *,
        tls: TlsFiles | None,
        on_lost: Callable[[], None],
    ) -> None:
        """``listener``: this part's; ``on_lost`` is called once a link has ended."""
        at = told.parts.index(host.config.node)
        self._told = told
        self._config = host.config
        self._listener = listener
        self._tls = tls
        self._on_lost = on_lost
        self._earlier, self._later = told.parts[:at], told.parts[at + 1 :]
        self._links: dict[NodeId, HostLink] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._sought: tuple[NodeId, ...] = ()
        """Parts that this one is to reach, or to be reached by; none before that is so."""

    @property
    def missed(self) -> tuple[NodeId, ...]:
        """Return those to whom there has been no link so far, or one that has fallen silent."""
        links = {one: self._links.get(one) for one in self._sought}
        return tuple(one for one, link in links.items() if link is None or link.is_silent)

    async def meet(self) -> None:
        """Reach the other parts, and be reached; ``missed`` are those with whom it failed.

        Raises:
            ConfigError: the files of TLS cannot be used.
            OSError: nobody can be let in.
        """
        self._sought = (*self._earlier, *self._later)
        ways: list[Coroutine[Any, Any, object]] = [self._reach(one) for one in self._earlier]
        if self._later:
            seen = self._seen_from(self._config.node)
            ways.append(self._listener.awaited(seen, self._keep))
        await asyncio.gather(*map(self._spawn, ways))

    async def close(self) -> None:
        """End all of the links."""
        for task in self._tasks:
            task.cancel()
        for link in self._links.values():
            link.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _reach(self, part: NodeId) -> None:
        link = await reached(self._seen_from(part), self._config, self._tls)
        if link is not None:
            self._keep(link)
            self._spawn(link.run())

    def _keep(self, link: HostLink) -> None:
        link.attach(_refuse)
        self._links[link.other] = link
        self._spawn(self._watch(link))

    async def _watch(self, link: HostLink) -> None:
        await link.ended.wait()
        self._on_lost()

    def _seen_from(self, part: NodeId) -> JoinHosts:
        """Return what was told as if a part were the head of those behind it."""
        at = self._told.parts.index(part)
        return replace(
            self._told,
            head=part,
            parts=self._told.parts[at + 1 :],
            endpoint=self._told.part_endpoints[at],
        )

    def _spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        self._tasks.add(task := asyncio.create_task(work))
        return task


def _refuse(record: LinkRecord) -> None:
    raise ValueError(f"a part says no {type(record).__name__} to another")


_log = logging.getLogger(__name__)


class GroupLog:
    """Of one agent at ``address``."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lacks = ""
        self._missed: Sequence[NodeId] = ()
        self._has_waited = False

    def say_lack(self, why: str, again_s: float) -> None:
        """It cannot be one with others."""
        if why != self._lacks:
            _log.warning(
                "this host cannot be one with others: %s; it tries again every %g s", why, again_s
            )
        self._lacks, self._has_waited = why, False

    def say_missed(self, missed: Sequence[NodeId]) -> None:
        """The last attempt failed, with those of ``missed``, or a link to them fell silent; the
        same object is of one attempt.
        """
        self._lacks = ""
        if missed is self._missed or not missed:
            return
        self._missed = missed
        _log.warning(
            "this host and %s did not reach each other: open the ports above 1023 of %s to them, "
            "and theirs to it; it is tried again, after 5 min at most",
            in_words(missed),
            self._address,
        )

    def say_apart(self, parts: Sequence[NodeId]) -> None:
        """It has reached its parts, and they not each other."""
        _log.warning(
            "%s did not all reach each other, so this host is not one with them", in_words(parts)
        )

    def say_waits(self, work: Work) -> None:
        """It still waits for others."""
        if self._has_waited:
            return
        self._has_waited = True
        _log.warning(
            "this host waits for %s: a replica of job %s is on %s",
            counted(work.hosts_per_replica - 1, "other host"),
            work.job,
            counted(work.hosts_per_replica, "host"),
        )

    def begin_anew(self) -> None:
        """It is part of a host group: what comes when it is alone again is said again."""
        self._has_waited = False
