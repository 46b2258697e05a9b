"""Building: how the members of a new generation come to be a group.

Owns one attempt, from the first knock to a connected group, and giving up at any moment of it.
Must not know who decided on the members, nor what the group is for.

    provide the own window -> meet, comparing layouts with rank 0 -> map the others' windows
        -> tell whose could be mapped: members that all could are of one host

Nobody is knocked at before the layouts agree, so a member whose model differs leaves without the
others noticing; they wait until they are told to give up.
"""

from __future__ import annotations

import errno
import json
import logging
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from pliant.core.errors import PliantError
from pliant.engine.comm.communicator import GroupBroken
from pliant.engine.comm.group import Group
from pliant.engine.comm.handshake import SECRET_BYTES
from pliant.engine.comm.mesh import Mesh, Peer, Port, parse_endpoint
from pliant.engine.comm.sockets import SocketCommunicator
from pliant.engine.comm.windows import (
    Address,
    Window,
    WindowCache,
    WindowError,
    Windows,
    WindowSize,
    WindowView,
    neighbourhoods,
)
from pliant.engine.reduce.buckets import Layout, first_difference
from pliant.machine.tls import TlsContexts

SPEAK_S = 1.0
"""By how much who reaches everybody speaks after those who do not: members begin to look for each
other when each hears of it, in seconds."""

INTERVAL_S = 0.0002
"""While somebody meets; a main thread that gives the lock away itself notices nothing of it."""

PROBE_S = 2.0
"""How long an answer may take, in seconds: the first repetition of a lost packet is in it."""

_ANSWERS = (0, errno.ECONNREFUSED)

_log = logging.getLogger(__name__)


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


class GroupBuild:
    """One try at building the group of a generation."""

    def __init__(
        self,
        *,
        generation: int,
        seats: Sequence[tuple[str, str]],
        replica: str,
        secret: bytes,
        port: Port,
        layout: Layout,
        deadline_s: float = 30.0,
        collective_s: float = 1800.0,
        abort: Abort | None = None,
        window_cache: WindowCache | None = None,
        window_size: WindowSize | None = None,
        tls: TlsContexts | None = None,
    ) -> None:
        """Prepare; all members do so with the same but ``replica``, ``port`` and ``layout``.

        Args:
            generation: never used before.
            seats: (replica, endpoint) in rank order; rank 0, a survivor, is the reference for
                the layout.
            secret: of this generation; who knows it is a member.
            port: this worker's own.
            collective_s: longest wait inside one collective before the group counts as broken.
                Long, for it includes a slow member's computing: supervision notices a hang.
            abort: set it to give up from another thread.
            window_cache: keeps this worker's window; without it no member uses windows.
            tls: encrypts what travels; all members or none.
        """
        self._generation = generation
        self._names = [name for name, _ in seats]
        self._endpoints = [endpoint for _, endpoint in seats]
        self._rank = self._names.index(replica)
        self._secret = secret
        self._port = port
        self._layout = layout
        self._deadline_s = deadline_s
        self._deadline_at = time.monotonic() + deadline_s
        self._collective_s = collective_s
        self._abort = abort or Abort()
        self._window_cache = window_cache
        self._window_size = window_size
        self._tls = tls
        self._window: Window | None = None

    def run(self) -> Group:
        """Connect to the other members; block until done, aborted, or the deadline.

        For a background thread (also fine on the main thread: an abort returns at once).
        Afterwards the members have met, not exchanged anything.

        Raises:
            GroupBroken: it could not be built.
            LayoutMismatch: this worker's layout differs from that of rank 0, who does not notice.
        """
        if len(self._endpoints) == 1:
            return Group.alone(self._generation, self._existing_window())
        if len(self._secret) != SECRET_BYTES:
            raise self._failed("its members were given no secret")
        self._window = self._provide_window()
        self._check()
        with quick_handovers():
            return self._connected()

    def _connected(self) -> Group:
        peers = self._meet()
        communicator = SocketCommunicator(
            self._generation,
            rank=self._rank,
            socks={rank: peer.sock for rank, peer in peers.items()},
            collective_s=max(0.1, round(self._deadline_at - time.monotonic(), 1)),
        )
        try:
            with self._abort.calling(lambda: communicator.abandon(str(self._abort.reason))):
                windows = self._map_windows(communicator, peers)
            communicator.check()
            communicator.allow(self._collective_s)
        except BaseException:
            communicator.close()
            raise
        return Group(communicator, collective_s=self._collective_s, windows=windows)

    # --- meeting ----------------------------------------------------------------------------

    def _meet(self) -> dict[int, Peer]:
        mesh = Mesh(
            generation=self._generation,
            secret=self._secret,
            rank=self._rank,
            endpoints=self._endpoints,
            port=self._port,
            greeting=self._greeting(),
            greet=self._greet,
            admits=self._admits,
            tls=self._tls,
        )
        try:
            with self._abort.calling(mesh.wake):
                return mesh.connect(lambda: self._check(mesh.missing()))
        except OSError as error:
            raise self._failed(f"no socket can be opened: {error.strerror}") from None

    def _greeting(self, **more: Any) -> bytes:
        window = None if self._window is None else asdict(self._window.address)
        return json.dumps({"layout": self._layout.digest, "window": window, **more}).encode()

    def _greet(self, theirs: bytes) -> bytes:
        """Answer a member; to one with another model rank 0 says what its own is like."""
        if self._rank == 0 and not self._is_alike(theirs):
            return self._greeting(described=self._layout.describe())
        return self._greeting()

    def _admits(self, peer: int, theirs: bytes) -> bool:
        """Refuse a member whose model is not the reference's, or to be one."""
        if peer == 0 and not self._is_alike(theirs):
            described = json.loads(theirs).get("described") or {}
            raise LayoutMismatch(
                first_difference(self._layout.describe(), described)
                or "this worker lays out its gradients in another way than the members"
            )
        return self._rank != 0 or self._is_alike(theirs)

    def _is_alike(self, theirs: bytes) -> bool:
        return bool(json.loads(theirs)["layout"] == self._layout.digest)

    def _check(self, missing: Sequence[int] = ()) -> None:
        if self._abort.reason is not None:
            raise self._failed(self._abort.reason)
        if time.monotonic() > self._deadline_at:
            who = ", ".join(self._names[rank] for rank in missing)
            reason = f"not built within {self._deadline_s:g} s"
            reason = f"{reason}; not there: {who}" if who else reason
            unreached = unreachable({self._names[rank]: self._endpoints[rank] for rank in missing})
            if missing and not unreached:
                self._let_others_speak()
            raise GroupBroken(self._generation, reason, unreached=unreached)

    def _let_others_speak(self) -> None:
        """Wait until whoever found a member out of reach has said so, or this is given up.

        The first word of a failure ends the attempt for all.  Were it that of one who reaches
        everybody, the same members would be tried again and again.
        """
        given_up = threading.Event()
        with self._abort.calling(given_up.set):
            given_up.wait(PROBE_S + SPEAK_S)

    def _failed(self, reason: str) -> GroupBroken:
        return GroupBroken(self._generation, reason)

    # --- windows ----------------------------------------------------------------------------

    def _existing_window(self) -> Window | None:
        """Return the window that is there already: new memory would cost page faults."""
        if self._window_cache is None or self._window_size is None:
            return None
        return self._window_cache.existing(self._window_size)

    def _provide_window(self) -> Window | None:
        """Return this worker's window; None if it wants or gets none."""
        if self._window_cache is None or self._window_size is None or not self._window_size.nbytes:
            return None
        try:
            return self._window_cache.provide(self._window_size)
        except OSError as error:
            _log.debug("generation %d: no window: %s", self._generation, error)
            return None

    def _map_windows(
        self, communicator: SocketCommunicator, peers: dict[int, Peer]
    ) -> Windows | None:
        """Map the windows of the others; those are used whose members can map each other's."""
        said = {rank: json.loads(peer.greeting)["window"] for rank, peer in peers.items()}
        said[self._rank] = None if self._window is None else asdict(self._window.address)
        size = len(self._endpoints)
        if sum(said[rank] is not None for rank in range(size)) < 2:
            return None  # so all conclude
        views = self._mapped(said)
        reached = json.dumps([rank for rank, view in enumerate(views) if view is not None])
        told = communicator.share("windows", reached.encode())
        hosts = neighbourhoods([frozenset(json.loads(ranks)) for ranks in told])
        (mine,) = (host for host in hosts if self._rank in host)
        if len(hosts) == size:
            return None
        return Windows(
            self._generation,
            self._window,
            [view if rank in mine else None for rank, view in enumerate(views)],
            rank=self._rank,
            hosts=hosts,
            sizes=[said[rank]["nbytes"] if said[rank] else 0 for rank in range(size)],
        )

    def _mapped(self, said: dict[int, Any]) -> list[WindowView | None]:
        """Map what can be mapped of the windows that the others have told of."""
        views: list[WindowView | None] = [None] * len(said)
        if self._window is None or self._window_cache is None:
            return views
        for rank, where in said.items():
            if where is None or rank == self._rank:
                continue
            try:
                views[rank] = self._window_cache.map(Address(**where))
            except WindowError as error:
                _log.debug("generation %d: not in memory: %s", self._generation, error)
        return views


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
