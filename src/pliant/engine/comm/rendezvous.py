"""Rendezvous: the members of a new generation find each other, over sockets.

Owns one attempt, from the first hello until all members are connected, and giving up at any moment
of it: who they are, their secret, and that their layouts agree.  Must not know who decided on the
members, by which transport they exchange tensors, nor what for.

Members say hello to rank 0 first.  Only one whose layout agrees goes on to the others, so a member
whose model differs leaves without their notice; they wait until they are told to give up.
"""

from __future__ import annotations

import errno
import json
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pliant.core.errors import PliantError
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.handshake import SECRET_BYTES
from pliant.engine.comm.mesh import Mesh, Port, parse_endpoint
from pliant.machine.tls import TlsContexts

SPEAK_S = 1.0
"""By how much who reaches everybody speaks after those who do not: members begin to look for each
other when each hears of it, in seconds."""

INTERVAL_S = 0.0002
"""While somebody meets; a main thread that gives the lock away itself notices nothing of it."""

PROBE_S = 2.0
"""How long an answer may take, in seconds: the first repetition of a lost packet is in it."""

_ANSWERS = (0, errno.ECONNREFUSED)


class LayoutMismatch(PliantError):  # noqa: N818
    """This worker's model differs from the members'; the text is one sentence for the user."""


class Abort:
    """A reason to give up, set once from any thread; wakes whoever waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.reason: str | None = None

    def set(self, reason: str) -> None:
        """Give the reason; the first one counts."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``callback`` if the reason is set within, or was before; on whoever sets it."""
        with self._lock:
            is_set = self.reason is not None
            if not is_set:
                self._callbacks.append(callback)
        if is_set:
            callback()
        try:
            yield
        finally:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)


class Agreed(Protocol):
    """What all members must have alike: the layout of their gradients."""

    @property
    def digest(self) -> str:
        """Equal exactly where layouts are."""

    def describe(self) -> dict[str, Any]:
        """Return it as JSON values."""

    def difference(self, theirs: Mapping[str, Any]) -> str | None:
        """Return one sentence: how this one differs from another member's description."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The members of a generation, each connected to all others."""

    socks: dict[int, socket.socket]
    """Of the others, by rank."""
    offers: dict[int, dict[str, Any]]
    """What each of the others has said of its transport, by rank."""


class Rendezvous:
    """One attempt to connect the members of one generation."""

    def __init__(
        self,
        *,
        generation: int,
        seats: Sequence[tuple[str, str]],
        replica: str,
        secret: bytes,
        port: Port,
        layout: Agreed,
        deadline_s: float = 30.0,
        abort: Abort | None = None,
        tls: TlsContexts | None = None,
    ) -> None:
        """Prepare; all members do so with the same but ``replica``, ``port`` and ``layout``.

        Args:
            generation: never used before.
            seats: (replica, endpoint) in rank order; rank 0, a survivor, is the reference for
                the layout.
            secret: of this generation; who knows it is a member.
            port: this worker's own.
            abort: set it to give up from another thread.
            tls: encrypts what travels; all members or none.
        """
        self.generation = generation
        self._names = [name for name, _ in seats]
        self.endpoints = [endpoint for _, endpoint in seats]
        self.rank = self._names.index(replica)
        self.size = len(seats)
        self._secret = secret
        self._port = port
        self._layout = layout
        self._deadline_s = deadline_s
        self._deadline_at = time.monotonic() + deadline_s
        self.abort = abort or Abort()
        self._tls = tls

    @property
    def left_s(self) -> float:
        """Time until the deadline, in seconds; at least 0.1."""
        return max(0.1, round(self._deadline_at - time.monotonic(), 1))

    def meet(self, offer: Mapping[str, Any]) -> Connected:
        """Connect to the other members; block until done, aborted, or the deadline.

        ``offer``: what the others need to know of this member's transport, JSON values.
        For a background thread; an abort returns at once.

        Raises:
            GroupBroken: they could not be connected.
            LayoutMismatch: this worker's layout differs from that of rank 0, who does not notice.
        """
        if len(self._secret) != SECRET_BYTES:
            raise self.failed("its members were given no secret")
        greeting = {"layout": self._layout.digest, **offer}
        self.check()  # before it opens descriptors, which only ``connect`` closes
        mesh = Mesh(
            generation=self.generation,
            secret=self._secret,
            rank=self.rank,
            endpoints=self.endpoints,
            port=self._port,
            greeting=json.dumps(greeting).encode(),
            greet=lambda theirs: self._greet(greeting, theirs),
            admits=self._admits,
            tls=self._tls,
        )
        try:
            with self.abort.calling(mesh.wake):
                peers = mesh.connect(lambda: self.check(mesh.missing()))
        except OSError as error:
            raise self.failed(f"no socket can be opened: {error.strerror}") from None
        return Connected(
            {rank: peer.sock for rank, peer in peers.items()},
            {rank: json.loads(peer.greeting) for rank, peer in peers.items()},
        )

    def check(self, missing: Sequence[int] = ()) -> None:
        """Raise GroupBroken if this was given up, or the deadline has passed.

        ``missing``: ranks that are waited for.
        """
        if self.abort.reason is not None:
            raise self.failed(self.abort.reason)
        if time.monotonic() > self._deadline_at:
            who = ", ".join(self._names[rank] for rank in missing)
            reason = f"not built within {self._deadline_s:g} s"
            reason = f"{reason}; not there: {who}" if who else reason
            unreached = unreachable({self._names[rank]: self.endpoints[rank] for rank in missing})
            if missing and not unreached:
                self._let_others_speak()
            raise GroupBroken(self.generation, reason, unreached=unreached)

    def failed(self, reason: str) -> GroupBroken:
        """Return the error to raise."""
        return GroupBroken(self.generation, reason)

    def _greet(self, greeting: Mapping[str, Any], theirs: bytes) -> bytes:
        """Answer a member; to one with another model rank 0 says what its own is like."""
        if self.rank == 0 and not self._is_alike(theirs):
            greeting = {**greeting, "described": self._layout.describe()}
        return json.dumps(greeting).encode()

    def _admits(self, peer: int, theirs: bytes) -> bool:
        """Refuse a member whose model is not the reference's, or to be one."""
        if peer == 0 and not self._is_alike(theirs):
            raise LayoutMismatch(
                self._layout.difference(json.loads(theirs).get("described") or {})
                or "this worker lays out its gradients in another way than the members"
            )
        return self.rank != 0 or self._is_alike(theirs)

    def _is_alike(self, theirs: bytes) -> bool:
        return bool(json.loads(theirs)["layout"] == self._layout.digest)

    def _let_others_speak(self) -> None:
        """Wait until whoever found a member out of reach has said so, or this is given up.

        The first word of a failure ends the attempt for all.  Were it that of one who reaches
        everybody, the same members would be tried again and again.
        """
        given_up = threading.Event()
        with self.abort.calling(given_up.set):
            given_up.wait(PROBE_S + SPEAK_S)


_lock = threading.Lock()
_usual_s: list[float] = []
"""What was set before, once for each who meets now: the setting is the interpreter's, too."""


@contextmanager
def quick_handovers() -> Iterator[None]:
    """Have the lock change hands quickly for as long as this; any thread, any number at once."""
    with _lock:
        usual_s = sys.getswitchinterval()
        _usual_s.append(_usual_s[0] if _usual_s else usual_s)
        if usual_s > INTERVAL_S:
            sys.setswitchinterval(INTERVAL_S)
    try:
        yield
    finally:
        with _lock:
            usual_s = _usual_s.pop()
            is_ours = abs(sys.getswitchinterval() - INTERVAL_S) < INTERVAL_S / 100
            if not _usual_s and is_ours:  # else the script has set another one meanwhile
                sys.setswitchinterval(usual_s)


def unreachable(endpoints: Mapping[str, str]) -> tuple[str, ...]:
    """Return the members whose endpoints do not answer; blocks for ``PROBE_S`` at most."""
    silent: set[str] = set(endpoints)
    waiting: dict[int, tuple[str, socket.socket]] = {}
    poll = select.poll()
    for name, endpoint in endpoints.items():
        address = parse_endpoint(endpoint)
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        sock.setblocking(False)
        waiting[sock.fileno()] = name, sock
        if sock.connect_ex(address) in _ANSWERS:
            silent.discard(name)
        poll.register(sock, select.POLLOUT)
    deadline_at = time.monotonic() + PROBE_S
    try:
        while waiting and (left_s := deadline_at - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left_s * 1000):
                poll.unregister(descriptor)
                name, sock = waiting.pop(descriptor)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _ANSWERS:
                    silent.discard(name)
                sock.close()
    finally:
        for _, sock in waiting.values():
            sock.close()
    return tuple(name for name in endpoints if name in silent)
