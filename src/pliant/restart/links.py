"""Links: what the restart workers of one generation tell each other.

Owns the connections of one generation, each of a follower with the first replica, and what came on
them and is not read yet.  A connection that ends is a fault of the generation.  Must not know what
any of it means.

    rank 0  <--{"kind": ..., ...}\\n-->  rank 1, rank 2, ...        JSON, one record a line

Members find each other and prove who they are as those of a session do (``engine.comm.mesh``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pliant.core.values import Order, ReplicaId
from pliant.engine.comm.mesh import Mesh, Port
from pliant.machine.tls import TlsContexts

CONNECT_S = 30.0
"""How long the members of a generation look for each other, in seconds."""

SEND_S = 5.0
"""How long a record may wait for room, in seconds: each has some hundred bytes."""

_PIECE = 1 << 16

Record = dict[str, Any]


class Unreached(Exception):  # noqa: N818
    """Not all members could be reached, or nobody wants them to be any more."""

    def __init__(self, reason: str, replicas: tuple[ReplicaId, ...] = ()) -> None:
        super().__init__(reason)
        self.replicas = replicas


class Building:
    """One attempt to connect the members of an order; ``connect`` on a thread of its own."""

    def __init__(
        self, order: Order, replica: ReplicaId, secret: bytes, port: Port, tls: TlsContexts | None
    ) -> None:
        self.order = order
        self.rank = order.replicas.index(replica)
        self._given_up = threading.Event()
        self._mesh = Mesh(
            generation=order.generation,
            secret=secret,
            rank=self.rank,
            endpoints=[seat.endpoint for seat in order.members],
            port=port,
            greeting=b"",
            greet=lambda _: b"",
            tls=tls,
        )

    def give_up(self) -> None:
        """Look for nobody any more; from any thread."""
        self._given_up.set()
        self._mesh.wake()

    def connect(self) -> dict[int, socket.socket]:
        """Return the connections to all others, by rank.

        Raises:
            Unreached: there is not one to every member.
        """
        until_s = time.monotonic() + CONNECT_S

        def check() -> None:
            if self._given_up.is_set():
                raise Unreached("it was given up")
            if time.monotonic() > until_s:
                missing = tuple(self.order.replicas[rank] for rank in self._mesh.missing())
                raise Unreached(f"cannot reach {', '.join(missing)}", missing)

        return {rank: peer.sock for rank, peer in self._mesh.connect(check).items()}


class Links:
    """The connections of one generation; of the thread of its loop."""

    def __init__(
        self,
        order: Order,
        rank: int,
        socks: Mapping[int, socket.socket],
        on_news: Callable[[], None],
    ) -> None:
        """``on_news`` is called when something came, or a connection has ended."""
        self.order = order
        self.rank = rank
        self.broken = ""
        """Who is gone; empty: nobody."""

        self._socks = {peer: sock for peer, sock in socks.items() if 0 in (peer, rank)}
        self._unused = [sock for peer, sock in socks.items() if peer not in self._socks]
        """Open while others may still look for members: who hangs up is not there."""

        self._on_news = on_news
        self._inbox: dict[int, deque[Record]] = {peer: deque() for peer in self._socks}
        self._partial = dict.fromkeys(self._socks, b"")
        self._loop = asyncio.get_running_loop()
        for peer, sock in self._socks.items():
            self._loop.add_reader(sock.fileno(), self._read, peer)

    @property
    def others(self) -> range:
        """Return the ranks of all but the first."""
        return range(1, len(self.order.members))

    def tell(self, rank: int, kind: str, **fields: Any) -> None:
        """Send a record; one to a member that is gone is lost."""
        sock = self._socks.get(rank)
        view = memoryview(json.dumps({"kind": kind, **fields}).encode() + b"\n")
        until_s = time.monotonic() + SEND_S
        while view and sock is not None:
            try:
                view = view[sock.send(view) :]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                select.select([], [sock], [], 0.1)
            except OSError:
                return self._lose(rank)
            if view and time.monotonic() > until_s:
                return self._lose(rank)
        return None

    def tell_all(self, kind: str, **fields: Any) -> None:
        """Send a record to everybody that this end has a connection to."""
        for rank in list(self._socks):
            self.tell(rank, kind, **fields)

    def next_of(self, rank: int, kind: str) -> Record | None:
        """Return the oldest record of this kind, which is taken out; None: there is none."""
        inbox = self._inbox.get(rank, deque())
        found = next((one for one in inbox if one.get("kind") == kind), None)
        if found is not None:
            inbox.remove(found)
        return found

    def next_of_any(self, kind: str) -> Record | None:
        """Return the oldest record of this kind from anybody."""
        found = (self.next_of(rank, kind) for rank in self._inbox)
        return next((one for one in found if one is not None), None)

    def close(self) -> None:
        """Hang up; again: nothing."""
        for rank in list(self._socks):
            self._hang_up(rank)
        for sock in self._unused:
            sock.close()

    def _read(self, rank: int) -> None:
        sock = self._socks[rank]
        while True:
            try:
                data = sock.recv(_PIECE)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError:
                data = b""
            if not data:
                self._lose(rank)
                return
            *lines, self._partial[rank] = (self._partial[rank] + data).split(b"\n")
            self._inbox[rank].extend(map(json.loads, lines))
            self._on_news()

    def _lose(self, rank: int) -> None:
        if rank in self._socks:
            self._hang_up(rank)
            self.broken = self.broken or f"lost {self.order.replicas[rank]}"
            self._on_news()

    def _hang_up(self, rank: int) -> None:
        sock = self._socks.pop(rank)
        self._loop.remove_reader(sock.fileno())
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
        sock.close()
