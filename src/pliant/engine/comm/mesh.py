"""Mesh: the members of one generation find each other, and nobody else gets in.

Owns all connections on their way: who says hello to whom, how often, for how long; how many
strangers are borne, and when this port is open.  Must not know what the members tell each other
(they greet), nor what they do once connected.

    hello to rank 0 -> it has greeted, so the models agree -> hello to all other lower ranks
    listen for the higher ranks, until the last of them is there -> all there: done

Whoever is not there yet, or hangs up, is tried again until somebody gives up: a member may have
heard of the generation a moment later.  Whoever does not answer is tried again beside that, for the
first attempt may only be waiting behind strangers.  The one that is answered first goes on, and a
member counts by what it proves on it: so both sides mean the same connection.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from pliant.engine.comm.handshake import (
    READ,
    WRITE,
    Handshake,
    HandshakeFailed,
    Steps,
    accepting,
    connecting,
)
from pliant.machine.tls import TlsContexts

MAX_STRANGERS = 64
"""Connections that have not said hello; with more, the oldest is closed."""

STRANGER_S = 3.0
"""How long a connection may take to say hello, in seconds."""

HANDSHAKE_S = 5.0
"""Longest handshake before another one is tried, in seconds."""

_FIRST_ANSWER_S, _MAX_ANSWER_S = 0.05, 2.0
"""Longest wait for an answer before another hello, doubled each time: a full queue of the other
side would have the kernel try again after a second."""

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.001, 0.02
"""Between two hellos to a member that does not listen yet, in seconds."""

_GONE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR

_SILENT_S = 3
"""For so long the kernel keeps a connection to itself that says nothing (tcp(7))."""

_BACKLOG = 4096
"""The system allows less; connections that wait are strangers' but for a few."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A member at the other end of a connection."""

    sock: socket.socket
    greeting: bytes


@dataclass(slots=True)
class _Attempt:
    """One connection that may become a member's."""

    handshake: Handshake
    steps: Steps[bytes]
    due_at: float
    connects: bool
    """This side does; else it was accepted."""

    is_under_way: bool = False
    """The other side has said hello or answered as a member does, so it was given more time."""

    @property
    def is_stranger(self) -> bool:
        return self.handshake.peer is None

    def events(self, waits: int) -> int:
        """What epoll is to look for; that it was given up matters where this side accepted it."""
        event = select.EPOLLIN if waits == READ else select.EPOLLOUT
        return event if self.connects else event | select.EPOLLRDHUP

    def begins(self) -> bool:
        """Whether the other side has shown just now that it is a member; gives it more time."""
        if self.is_under_way or not self.handshake.is_known:
            return False
        self.is_under_way = True
        self.due_at = time.monotonic() + HANDSHAKE_S
        return True


@dataclass(slots=True)
class _Try:
    """When and how patiently to try a member next."""

    due_at: float = 0.0
    pause_s: float = _FIRST_PAUSE_S
    answer_s: float = _FIRST_ANSWER_S

    def sent(self, now: float) -> None:
        """Wait for an answer before the next one, each time longer."""
        self.due_at = now + self.answer_s
        self.answer_s = min(2 * self.answer_s, _MAX_ANSWER_S)

    def again(self) -> None:
        """Pause before the next one, each time longer: this one was refused, or has failed."""
        self.due_at = time.monotonic() + self.pause_s
        self.answer_s = _FIRST_ANSWER_S
        self.pause_s = min(2 * self.pause_s, _MAX_PAUSE_S)


class Mesh:
    """See the module's text; of one thread, but for ``wake``."""

    def __init__(
        self,
        *,
        generation: int,
        secret: bytes,
        rank: int,
        endpoints: Sequence[str],
        port: Port,
        greeting: bytes,
        greet: Callable[[bytes], bytes],
        admits: Callable[[int, bytes], bool] = lambda peer, greeting: True,
        tls: TlsContexts | None = None,
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            endpoints: of all members, in rank order.
            port: this worker's own.
            greeting: for those to whom this member says hello first.
            greet: gets the greeting of a member that says hello here, and returns the answer.
            admits: gets the greeting of a member that was answered, or of one that answered;
                False: it does not count as there.  May raise.
            tls: encrypts what follows a hello.
        """
        self._generation = generation
        self._secret = secret
        self._rank = rank
        self._endpoints = endpoints
        self._port = port
        self._greeting = greeting
        self._greet = greet
        self._admits = admits
        self._tls = tls
        self._hellos: set[bytes] = set()
        """All hellos so far: none counts twice."""
        self._there: dict[int, Peer] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._tries = {peer: _Try() for peer in range(rank)}
        self._listener: socket.socket | None = None
        self._epoll = select.epoll()
        self._wake_r, self._wake_w = socket.socketpair()
        self._epoll.register(self._wake_r.fileno(), select.EPOLLIN)
        self._woken = threading.Event()

    def wake(self) -> None:
        """Have ``connect`` look whether to give up; from any thread."""
        self._woken.set()
        with contextlib.suppress(OSError):
            self._wake_w.send(b"!", socket.MSG_DONTWAIT)

    def connect(self, check: Callable[[], None]) -> dict[int, Peer]:
        """Return all others by rank; closes everything if it raises.

        ``check`` raises to give up; it is called about each 0.1 s, and after ``wake``.
        """
        try:
            while self.missing():
                check()
                self._tend()
        except BaseException:
            for peer in self._there.values():
                self._hang_up(peer.sock)
            raise
        else:
            return self._there
        finally:
            for descriptor in list(self._attempts):
                self._drop(descriptor)
            self._close_listener()
            self._epoll.close()
            self._wake_r.close()
            self._wake_w.close()

    def missing(self) -> list[int]:
        """Return the ranks that are not there yet."""
        others = range(len(self._endpoints))
        return [peer for peer in others if peer != self._rank and peer not in self._there]

    # --- one turn ---------------------------------------------------------------------------

    def _tend(self) -> None:
        """Say hello where it is due, listen if needed, and serve who has something to say."""
        now = time.monotonic()
        self._greet_due(now)
        is_alike = self._rank == 0 or 0 in self._there  # who is not must let nobody in
        if is_alike and any(peer > self._rank for peer in self.missing()):
            self._listen()
        else:
            self._close_listener()
        listener = -1 if self._listener is None else self._listener.fileno()
        happened = self._epoll.poll(self._pause_s(now))
        # Last, for it may give a descriptor a second life that this list tells something else of.
        for descriptor, events in sorted(happened, key=lambda each: each[0] == listener):
            if self._listener is not None and descriptor == listener:
                self._accept(self._listener)
            elif descriptor == self._wake_r.fileno():
                self._wake_r.recv(64)
            elif descriptor in self._attempts:
                if events & select.EPOLLRDHUP:  # it was accepted, and given up there
                    self._drop(descriptor)
                else:
                    self._advance(descriptor)
            elif events & _GONE:
                self._forget(descriptor)
        for descriptor, attempt in list(self._attempts.items()):
            if attempt.due_at < time.monotonic():
                self._drop(descriptor)

    def _pause_s(self, now: float) -> float:
        due = [attempt.due_at for attempt in self._attempts.values()]
        due += [self._tries[peer].due_at for peer in self._to_greet()]
        return max(0.0, min([0.1, *(at - now for at in due)]))

    def _to_greet(self) -> list[int]:
        """Return the lower ranks that have not answered; first of all it is rank 0."""
        answered = {each.handshake.peer for each in self._attempts.values() if each.is_under_way}
        lower = range(self._rank if 0 in self._there else min(self._rank, 1))
        return [peer for peer in lower if peer not in self._there and peer not in answered]

    # --- connecting -------------------------------------------------------------------------

    def _greet_due(self, now: float) -> None:
        for peer in self._to_greet():
            attempt = self._tries[peer]
            if attempt.due_at > now:
                continue
            address = parse_endpoint(self._endpoints[peer])
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            handshake = self._handshake(socket.socket(family), peer)
            handshake.sock.setblocking(False)
            self._start(handshake, connecting(handshake, self._greeting), now + HANDSHAKE_S)
            attempt.sent(now)
            try:
                handshake.sock.connect(address)
            except BlockingIOError:
                pass  # under way
            except OSError:
                self._drop(handshake.sock.fileno())

    def _handshake(self, sock: socket.socket, peer: int | None = None) -> Handshake:
        return Handshake(
            sock=sock,
            generation=self._generation,
            secret=self._secret,
            size=len(self._endpoints),
            rank=self._rank,
            tls=self._tls,
            hellos=self._hellos,
            peer=peer,
        )

    # --- accepting --------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = self._port.listen()
            self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._unwatch(self._listener.fileno())
            self._port.stop_listening(self._listener)
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        """Take some of those who wait; read at once what they say, so that members get through."""
        for _ in range(MAX_STRANGERS):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # whoever it was has gone, or there is no descriptor left
                if not self._drop_oldest_stranger():
                    self._woken.wait(_MAX_PAUSE_S)  # epoll would tell of them again at once
                return
            sock.setblocking(False)
            handshake = self._handshake(sock)
            self._start(handshake, accepting(handshake, self._greet), time.monotonic() + STRANGER_S)
            self._advance(sock.fileno())
            if sum(attempt.is_stranger for attempt in self._attempts.values()) > MAX_STRANGERS:
                self._drop_oldest_stranger()

    def _drop_oldest_stranger(self) -> bool:
        for descriptor, attempt in self._attempts.items():
            if attempt.is_stranger:
                self._drop(descriptor)
                return True
        return False

    # --- handshakes -------------------------------------------------------------------------

    def _start(self, handshake: Handshake, steps: Steps[bytes], due_at: float) -> None:
        attempt = _Attempt(handshake, steps, due_at, connects=handshake.peer is not None)
        self._attempts[handshake.sock.fileno()] = attempt
        self._epoll.register(
            handshake.sock.fileno(), attempt.events(WRITE if attempt.connects else READ)
        )
        if attempt.connects:
            next(steps)  # to where it waits for the connection

    def _advance(self, descriptor: int) -> None:
        """Take one handshake as far as it goes."""
        attempt = self._attempts[descriptor]
        try:
            waits = next(attempt.steps)
        except StopIteration as end:
            self._arrive(descriptor, end.value)
            return
        except (OSError, HandshakeFailed):
            self._drop(descriptor)
            return
        if attempt.begins() and attempt.connects:
            self._drop_beside(attempt)
        self._epoll.modify(descriptor, attempt.events(waits))

    def _drop_beside(self, answered: _Attempt) -> None:
        """Give the others to the same member up: nothing is proved on two connections at once."""
        for descriptor, attempt in list(self._attempts.items()):
            if attempt is not answered and attempt.handshake.peer == answered.handshake.peer:
                self._drop(descriptor)

    def _arrive(self, descriptor: int, greeting: bytes) -> None:
        """Count a member as there, unless it is not to be."""
        handshake = self._attempts[descriptor].handshake
        peer = cast("int", handshake.peer)
        if not self._admits(peer, greeting):
            self._drop(descriptor)
            return
        del self._attempts[descriptor]
        if peer in self._there:  # it has given that connection up
            self._hang_up(self._there[peer].sock)
        self._there[peer] = Peer(handshake.sock, greeting)
        self._epoll.modify(descriptor, select.EPOLLRDHUP)

    def _drop(self, descriptor: int) -> None:
        """Give one connection up; if this side connects, it tries again a little later."""
        attempt = self._attempts.pop(descriptor)
        self._hang_up(attempt.handshake.sock, descriptor)
        if attempt.connects:
            self._tries[cast("int", attempt.handshake.peer)].again()

    def _forget(self, descriptor: int) -> None:
        """Take note that a member that was there has hung up; it may come again."""
        for peer, found in self._there.items():
            if found.sock.fileno() == descriptor:
                self._hang_up(found.sock)
                del self._there[peer]
                return

    def _hang_up(self, sock: socket.socket, descriptor: int | None = None) -> None:
        """Close a connection, also where a child of the script holds the descriptor."""
        self._unwatch(sock.fileno() if descriptor is None else descriptor)
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
        sock.close()

    def _unwatch(self, descriptor: int) -> None:
        """Hear no more of it: what a child of the script holds, epoll does not forget itself."""
        with contextlib.suppress(OSError):  # a wrapping that failed has closed it
            self._epoll.unregister(descriptor)


class Port:
    """One of a worker."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        """Reserve a port of ``address``.

        Raises:
            OSError: this machine has no such address.
        """
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        reserved = self._bound((address, 0))
        self._address = reserved.getsockname()[:2]
        host, number = self._address
        self.endpoint = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
        """``host:port``, as it goes into the registration."""
        self.close = weakref.finalize(self, os.close, reserved.detach())
        """Give the port back; as happens once nobody refers to this any more."""

    def listen(self) -> socket.socket:
        """Return a socket that listens; for ``stop_listening``.

        Several may listen: a connection comes to any of them, and the wrong one hangs up.
        """
        listener = self._bound(self._address)
        with contextlib.suppress(OSError):  # a kernel without it wakes us for who says nothing
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _SILENT_S)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener

    def stop_listening(self, listener: socket.socket) -> None:
        """Refuse whoever comes from now on, also where a child of the script holds it."""
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    def _bound(self, address: tuple[str, int]) -> socket.socket:
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
        except BaseException:
            sock.close()
            raise
        return sock


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[host]:port``."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)
