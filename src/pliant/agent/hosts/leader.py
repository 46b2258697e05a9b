"""What the head of a host group hears of the workers that its parts run, and passes on as its own.

Owns that a part speaks for its own workers only.  Knows nothing of how links are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from pliant.agent.hosts.link import HostLink
from pliant.agent.hosts.listener import JOIN_S
from pliant.agent.hosts.remote_worker import RemoteWorker
from pliant.agent.replicas_here import ReplicasHere
from pliant.agent.this_host import ThisHost
from pliant.core.values import NodeId, ReplicaId
from pliant.machine.event_loop import first_of
from pliant.wire.codec import Refusal, decode
from pliant.wire.host_records import (
    LinkRecord,
    MeetParts,
    OfWorker,
    PartEnded,
    PartLeaving,
    PartMet,
    PartNews,
    PartReaped,
    PartSaid,
    PartSilent,
    PartStarted,
)
from pliant.wire.messages import LedgerGrown, OutputGrown

MEET_S = JOIN_S + 2.0
"""Longest wait until parts reach each other, in seconds; who does not says so before."""

NEWS = frozenset({LedgerGrown, OutputGrown})


class HeadWorkers:
    """Those of all links of one host group."""

    def __init__(
        self,
        replicas: ReplicasHere,
        host: ThisHost,
        on_leaving: Callable[[float], None],
    ) -> None:
        """``on_leaving``: a part was told to end, and replicas have so long to leave."""
        self._replicas = replicas
        self._host = host
        self._on_leaving = on_leaving
        self._awaited: set[NodeId] = set()
        """Parts that have not said so far that they reach the others."""

        self._all_met = asyncio.Event()
        self.unheard: tuple[NodeId, ...] = ()
        """Parts that fell silent meanwhile, or never said whether they reach the others."""

    def meet(self, link: HostLink) -> None:
        """Hear from now on what is said over a link."""
        link.attach(partial(self._hear_record, link))
        link.tunnels.directory_of = self._directory_of

    async def bring_together(self, links: Collection[HostLink]) -> bool:
        """Have the parts reach each other; whether all have done so in time."""
        if len(links) == 1:
            return True
        self._awaited = {link.other for link in links}
        for link in links:
            link.say(MeetParts())
        ended = [link.ended for link in links]
        is_told = await first_of(self._all_met, *ended, limit_s=MEET_S)
        late = () if is_told else self._awaited
        self.unheard = tuple(one.other for one in links if one.is_silent or one.other in late)
        return self._all_met.is_set()

    def _directory_of(self, replica: ReplicaId) -> Path | None:
        """Return where the workers of a replica meet."""
        known = self._replicas.get(replica)
        return None if known is None else known.directory

    def lose(self, link: HostLink) -> None:
        """Count as ended what the other end of a link runs."""
        for replica in self._replicas.running():
            for place in replica.lose(link.other, link.why):
                self._replicas.reap(replica.name, place, -9)

    def _hear_record(self, link: HostLink, record: LinkRecord) -> None:
        match record:
            case PartMet() if link.other in self._awaited:
                self._awaited.remove(link.other)
                if not self._awaited:
                    self._all_met.set()
            case PartNews(message=message):
                self._pass_on(link, message)
            case PartLeaving(notice_s=notice_s):
                self._on_leaving(notice_s)
            case OfWorker():
                worker = self._worker(link, record.replica, record.place)
                if worker is not None:
                    self._hear_of(worker, record)
            case _:
                raise ValueError(f"a part says no {type(record).__name__}")

    def _hear_of(self, worker: RemoteWorker, record: OfWorker) -> None:
        match record:
            case PartStarted(replica=replica, place=place, pid=pid, device=device):
                if (known := self._replicas.get(replica)) is not None:
                    known.started(place, pid, device)
            case PartReaped(replica=replica, place=place, returncode=returncode):
                if not worker.is_reaped:
                    worker.is_reaped = True
                    self._replicas.reap(replica, place, returncode)
            case PartEnded():
                worker.ended(record)
            case PartSilent(looks=looks):
                worker.silent_looks = looks
            case PartSaid(message=message):
                worker.hear_words(message)
            case _:
                pass

    def _worker(self, link: HostLink, replica: ReplicaId, place: int) -> RemoteWorker | None:
        """Return a worker of a part; None: it has none of this name, or no longer."""
        known = self._replicas.get(replica)
        worker = None if known is None else known.elsewhere.get(place)
        return worker if worker is not None and worker.host == link.other else None

    def _pass_on(self, link: HostLink, said: str) -> None:
        received = decode(said, NEWS)
        if isinstance(received, Refusal):
            self._host.refuse(link.other, received.reason)
        elif not getattr(received.message, "worker", None):
            self._host.refuse(link.other, "spoke for a worker 0")  # which is the head's own
        else:
            self._host.send(received.message)
