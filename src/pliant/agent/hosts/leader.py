"""What the head of a host group hears of the workers that its parts run, and passes on as its own.

Owns that a part speaks for its own workers only.  Knows nothing of how links are made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pliant.agent.hosts.link import HostLink
from pliant.agent.hosts.remote_worker import RemoteWorker
from pliant.agent.replicas_here import ReplicasHere
from pliant.agent.this_host import ThisHost
from pliant.core.values import ReplicaId
from pliant.wire.codec import Refusal, decode
from pliant.wire.host_records import (
    LinkRecord,
    OfWorker,
    PartEnded,
    PartLeaving,
    PartNews,
    PartReaped,
    PartSaid,
    PartSilent,
    PartStarted,
)
from pliant.wire.messages import LedgerGrown, OutputGrown

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

    def meet(self, link: HostLink) -> None:
        """Hear from now on what is said over a link."""
        link.attach(partial(self._hear_record, link))
        link.tunnels.directory_of = self._directory_of

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
