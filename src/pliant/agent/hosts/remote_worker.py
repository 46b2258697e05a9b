"""One worker on another host of a host group, as the head sees it: what its part says of it.

Owns what was heard of its life, its words and its end.  Knows nothing of processes, which are the
part's, nor of the link beyond what came over it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pliant.core.events import Exited, ExitKind
from pliant.core.text import worker_name
from pliant.core.values import NodeId, ReplicaId
from pliant.wire.codec import FOLLOWER_NOTES, Message, Refusal, decode
from pliant.wire.host_records import PartEnded

MOST_LETTERS = 10_000
"""Of how it has ended: its host is another machine, and no coordinator reads more than 1 MB."""


class RemoteWorker:
    """A worker from the request to start it until its exit was reported; never worker 0."""

    def __init__(
        self,
        replica: ReplicaId,
        host: NodeId,
        *,
        worker: int,
        on_message: Callable[[Message], None],
        on_refusal: Callable[[str, str], None],
    ) -> None:
        """``host``: whose it is; ``worker``: its place among those of its replica."""
        self.replica = replica
        self.host = host
        self.worker = worker
        self.name = worker_name(replica, worker)
        self.silent_looks = 0
        """Looks in a row at which its process has neither spoken nor shown life."""
        self.is_reaped = False
        """Its part has said so, or is lost."""
        self._on_message = on_message
        self._on_refusal = on_refusal
        self._exited: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()

    def hear_words(self, said: str) -> None:
        """Check what its part says that it has said, and hand it on."""
        received = decode(said, FOLLOWER_NOTES)
        if isinstance(received, Refusal):
            self._on_refusal(self.name, received.reason)
        elif getattr(received.message, "replica", None) != self.replica:
            self._on_refusal(self.name, "spoke for another")
        else:
            self._on_message(received.message)

    def ended(self, told: PartEnded) -> None:
        """Take how it has ended."""
        worker = None if told.worker is None else self.worker
        self._end(told.kind, told.detail[:MOST_LETTERS], worker)

    def lost(self, why: str) -> None:
        """Count as ended: nothing more will be heard of it."""
        self.is_reaped = True
        self._end(ExitKind.SIGNAL, f"host {self.host} is lost: {why}", self.worker)

    async def exit(self, returncode: int) -> Exited:
        """Return how it has ended, once its part has said so."""
        del returncode
        return await self._exited

    def _end(self, kind: ExitKind, detail: str, worker: int | None) -> None:
        if not self._exited.done():
            exited = Exited(replica=self.replica, kind=kind, detail=detail, worker=worker)
            self._exited.set_result(exited)
