"""Sockets: a communicator over one TCP connection between each two members.

Owns one thread's waiting for all connections at once, and how another thread ends that.  Must not
know how the members met, jobs, or what is moved.

Everything happens on the thread that calls ``post``, ``wait``, ``share`` and ``close``; while it
does something else, what arrives stays in the kernel.  ``abandon`` resets the connections and wakes
that thread, whatever the others do: an orderly end would come behind all that is on its way.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterable, Mapping

from pliant.engine.comm.communicator import Communicator, LeftAlone, Piece, Transfer
from pliant.engine.comm.connection import Connection, PeerGone
from pliant.machine.interfaces import send_again_soon

UNREACHABLE_S = 30
"""For so long a member may be silent to the kernel (not to us) before its connection ends."""


_ONLY_RESETS, _UNKNOWN = 0, -1
"""What epoll looks for, besides events: it tells of a reset whatever it looks for."""


class SocketCommunicator(Communicator):
    """See the module's text."""

    def __init__(
        self,
        generation: int,
        *,
        rank: int,
        socks: Mapping[int, socket.socket],
        collective_s: float,
    ) -> None:
        """Take over the connections to all others, by their ranks."""
        super().__init__(generation, rank=rank, size=len(socks) + 1)
        self._collective_s = collective_s
        self._connections = {peer: Connection(socks[peer], peer) for peer in self.others}
        self._by_descriptor = {each.fileno(): each for each in self._connections.values()}
        self._epoll = select.epoll()
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._waker, select.EPOLLIN)
        self._looked_for = dict.fromkeys(self._by_descriptor, _UNKNOWN)
        self._moving = threading.Lock()
        """Held while sockets are used; after ``abandon`` has had it none is."""
        self._closing = threading.Lock()
        """Held while descriptors are closed, and while another thread uses them."""
        for sock in socks.values():
            _tune(sock)

    def allow(self, collective_s: float) -> None:
        """Have a wait that begins from now on take so long at most."""
        self._collective_s = collective_s

    def post(self, *, sends: Iterable[Piece] = (), receives: Iterable[Piece] = ()) -> Transfer:
        """Queue, and send what the sockets take at once."""
        transfer = Transfer()
        with self._moving:
            self.check()
            for rank, tensor in receives:
                self._connections[rank].await_piece(tensor, transfer)
            for rank, tensor in sends:
                self._connections[rank].send(tensor, transfer)
            self._push()
        return transfer

    def wait(self, *transfers: Transfer) -> None:
        """Move until all of these have been moved."""
        deadline_at = time.monotonic() + self._collective_s
        self._pull()  # it may be here already: look before sleeping
        while any(transfer.pending for transfer in transfers):
            self._turn(deadline_at)

    def share(self, name: str, payload: bytes) -> list[bytes]:
        """Send a note to everybody, and wait for theirs."""
        transfer = Transfer()
        with self._moving:
            self.check()
            for connection in self._connections.values():
                connection.send_note(name, payload, transfer)
                connection.await_note(name)
            self._push()
        deadline_at = time.monotonic() + self._collective_s
        self._pull()
        while waits_for := [each for each in self._connections.values() if each.awaits_note]:
            if ahead := next((each for each in waits_for if each.is_ahead), None):
                reason = f"rank {ahead.rank} has gone on without {name}"
                raise LeftAlone(self.end.generation, reason)
            # Notes may say that all have to end, and who has them all does: that is nobody's fault.
            self._turn(deadline_at, idle=_UNKNOWN)
        self.wait(transfer)
        theirs = {rank: each.notes.pop(name) for rank, each in self._connections.items()}
        return [theirs.get(rank, payload) for rank in range(self.size)]

    def watch(self, within_s: float) -> None:
        """Watch for so long whether all members are there, in seconds; move nothing.

        Raises:
            GroupBroken: one is gone, or this was abandoned.
        """
        with self._moving:
            self.check()
            self._look(select.EPOLLRDHUP)
        happened = self._epoll.poll(within_s)
        with self._moving:
            self.check()
            for descriptor, events in happened:
                gone = self._by_descriptor[descriptor]
                if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                    raise self.broken(f"the connection to rank {gone.rank} has ended")

    def check_members(self) -> None:
        """See the end of a connection, too."""
        self.watch(0.0)

    def abandon(self, reason: str) -> None:
        """Reset all connections, once whoever is in the middle of moving has finished that."""
        self.end.set(reason)
        with self._closing:
            if not self._epoll.closed:
                os.eventfd_write(self._waker, 1)
            for connection in self._connections.values():
                connection.cut()
            with self._moving:
                for connection in self._connections.values():
                    connection.reset()

    def close(self) -> None:
        """Close all connections; the others still get what was sent."""
        with self._closing:
            if not self._epoll.closed:
                self._epoll.close()
                os.close(self._waker)
            for connection in self._connections.values():
                connection.close()

    # --- moving -----------------------------------------------------------------------------

    def _turn(self, deadline_at: float, *, idle: int = _ONLY_RESETS) -> None:
        """Sleep until something can be moved, and move it.

        ``idle``: what to look for where nothing is to be moved.
        """
        with self._moving:
            self.check()
            self._look(idle)
        left_s = deadline_at - time.monotonic()
        happened = self._epoll.poll(max(0.0, min(left_s, UNREACHABLE_S / 6)))
        with self._moving:
            self.check()
            if not happened and left_s <= 0:
                raise self.broken(f"no answer within {self._collective_s:g} s")
            try:
                for descriptor, events in happened:
                    self._by_descriptor[descriptor].serve(events)
                if not happened:
                    for connection in self._connections.values():
                        connection.check_answered(UNREACHABLE_S)
            except PeerGone as gone:
                raise self.broken(str(gone)) from None

    def _look(self, idle: int) -> None:
        """Tell epoll what the connections wait for; it also tells of the end of what it knows."""
        for descriptor, connection in self._by_descriptor.items():
            before = self._looked_for[descriptor]
            # It would tell of what is over again and again.
            wishes = connection.wishes or (_UNKNOWN if connection.is_over else idle)
            if wishes == before:
                continue
            if before == _UNKNOWN:
                self._epoll.register(descriptor, wishes)
            elif wishes == _UNKNOWN:
                self._epoll.unregister(descriptor)
            else:
                self._epoll.modify(descriptor, wishes)
            self._looked_for[descriptor] = wishes

    def _pull(self) -> None:
        with self._moving:
            self.check()
            try:
                for connection in self._connections.values():
                    if connection.wishes & select.EPOLLIN:
                        connection.pull()
            except PeerGone as gone:
                raise self.broken(str(gone)) from None

    def _push(self) -> None:
        try:
            for connection in self._connections.values():
                connection.push()
        except PeerGone as gone:
            raise self.broken(str(gone)) from None


def _tune(sock: socket.socket) -> None:
    """Send small pieces at once, and notice a host that is gone while nothing is sent to it.

    While something is: ``Connection.check_answered``.  Not by ``TCP_USER_TIMEOUT``: it ends a
    connection to who is there and takes nothing for a while.
    """
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, UNREACHABLE_S // 3),
        (socket.TCP_KEEPINTVL, UNREACHABLE_S // 6),
        (socket.TCP_KEEPCNT, 4),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    send_again_soon(sock)
    with contextlib.suppress(OSError):  # a system without it, or the other end is gone already
        if sock.getsockname()[0] == sock.getpeername()[0]:
            # One host: what the system has for networks paces (BBR), which costs a ninth more.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
