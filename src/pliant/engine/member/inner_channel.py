"""Inner channel: the Unix sockets between worker 0 of a replica and its followers.

Owns connections and the one thread that reads each of them.  Knows nothing of what a message means.

The socket lies in the private directory of the replica; who connects must be of the same user.  To
workers of other hosts their agents carry what is said (``agent.hosts.tunnels``).  The
end of a connection is the end of a process, hence of the replica: the agent ends whoever is left.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter

from pliant.core.errors import PermanentError
from pliant.core.membership.failure.worker_activity import Whereabouts
from pliant.core.membership.follower_answers import Answer
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.values import Generation, Lineage, Order
from pliant.machine.interfaces import peer_of
from pliant.wire.launch import CHANNEL_SOCKET

SEND_S = 30.0
"""Longest time that a message waits for a worker that takes none: its thread does nothing else."""

RETRY_S = 0.05
"""Between two tries to connect to a worker 0 that has not come so far, in seconds."""

_LENGTH = struct.Struct("!Q")


class InnerConnection:
    """One end of a connection; ``send`` from any thread."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[InnerMessage], None],
        on_end: Callable[[], None],
    ) -> None:
        """Both are called on the thread that reads, ``on_end`` once and last."""
        self._sock = sock
        self._on_message = on_message
        self._on_end = on_end
        self._lock = threading.Lock()
        seconds = struct.pack("ll", int(SEND_S), 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        self._thread = threading.Thread(target=self._read, name="inner-channel", daemon=True)

    def start(self) -> None:
        """Start to read; once."""
        self._thread.start()

    def send(self, message: InnerMessage) -> None:
        """Send a message; one to a worker that has ended is dropped, for the replica ends too."""
        data = pack_message(message)
        with self._lock:
            try:
                self._sock.sendall(_LENGTH.pack(len(data)) + data)
            except OSError:  # half of it may be there: nothing after it could be read
                self.close()

    def close(self) -> None:
        """End the connection; a second call does nothing."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        try:
            while (message := self._receive()) is not None:
                self._on_message(message)
        finally:
            self._on_end()
            self._sock.close()

    def _receive(self) -> InnerMessage | None:
        header = self._receive_exactly(_LENGTH.size)
        data = None if header is None else self._receive_exactly(_LENGTH.unpack(header)[0])
        return None if data is None else unpack_message(data)

    def _receive_exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                part = self._sock.recv(min(count - len(data), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            data += part
        return bytes(data)


class InnerListener:
    """Where followers come to worker 0."""

    def __init__(
        self,
        directory: Path,
        on_connection: Callable[[socket.socket], None],
        *,
        name: str = CHANNEL_SOCKET,
    ) -> None:
        """Listen; ``on_connection`` is called on a thread of its own."""
        self._on_connection = on_connection
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.bind(str(directory / name))
        self._sock.listen()
        self._thread = threading.Thread(target=self._accept, name="inner-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more; not from ``on_connection``."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            peer = peer_of(sock)
            if peer is None or peer.uid != os.getuid():
                sock.close()
                continue
            self._on_connection(sock)


def connect_to_worker_0(directory: Path, within_s: float) -> socket.socket:
    """Return a connection to the worker 0 that listens in this directory.

    Raises:
        PermanentError: it has not come in time, or another user listens there.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(directory / CHANNEL_SOCKET))
        except OSError:
            sock.close()
            if time.monotonic() > deadline_s:
                raise PermanentError(
                    f"worker 0 of this replica has made no session within {within_s:g} s"
                ) from None
            threading.Event().wait(RETRY_S)
            continue
        peer = peer_of(sock)
        if peer is None or peer.uid != os.getuid():
            sock.close()
            raise PermanentError(f"another user listens in {directory}")
        return sock


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerCame:
    """A follower is there."""

    place: int
    endpoint: str
    """Where the followers of the same place in other replicas reach it."""

    traits: tuple[tuple[str, str], ...]
    """What every worker of a replica must have alike, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStanding:
    """What of worker 0's membership its followers take over."""

    lineage: Lineage
    committed: int
    calls: int
    made_by: Generation
    current: Generation
    has_state: bool
    leaving: bool

    @classmethod
    def of(cls, member: Member) -> MemberStanding:
        """Return what ``member`` stands at."""
        return cls(
            lineage=member.lineage,
            committed=member.committed,
            calls=member.calls,
            made_by=member.made_by,
            current=member.current,
            has_state=member.has_state,
            leaving=member.leaving,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlace:
    """Connect the group of this worker's place, in the background."""

    order: Order
    """With the endpoints of this place."""

    secret: str
    """Of this place in this generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonPlace:
    """Give up the group of a generation, at once, whatever waits in it."""

    generation: Generation


CALLS = {
    "arrive": "session.steps()",
    "formed": "the loop over a step",
    "reduce": "the end of a step",
    "decide": "the end of a step",
    "recover": "the loop over a step",
    "settle": "the loop over session.steps()",
    "await_kept": "the end of session.steps()",
    "place": "the end of session.steps()",
    "attend": "session.evaluate",
    "exchange": "session.evaluate",
    "save": "session.save",
    "finish": "the end of the session",
}
"""Calls of the membership, by what the script is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReturned:
    """A call of the membership is over: what it gave on worker 0."""

    call: str
    standing: MemberStanding
    number: int = 0
    """What the call returns, as far as that is a number."""

    is_stopped: bool = False
    is_saved: bool = False
    sizes: tuple[int, ...] = ()
    """Slots of each replica from now on, if the call divides them."""

    parts: tuple[str, ...] | None = None
    """What all members of the generation gave, each byte a character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBroke:
    """A call of the membership ended with GroupBroken on worker 0."""

    generation: Generation
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveNow:
    """The job goes on without this replica, or is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseMember:
    """A member of the generation is gone, or may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpAttempt:
    """Forget the unfinished attempt at a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitVoted:
    """Commit the step that was voted for, under this generation."""

    generation: Generation
    standing: MemberStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Give or take state over the group of ``order``."""

    order: Order
    resolution: Resolution
    owes_tail: bool
    standing: MemberStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterPlace:
    """Compute in this generation from now on."""

    order: Order
    standing: MemberStanding
    sizes: tuple[int, ...]
    """Slots of each replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepPart:
    """Keep the state of this boundary: hand over this worker's share of it."""

    seat: tuple[int, int]
    """Rank of this replica, and the number of members."""

    standing: MemberStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishKeeping:
    """Say once this worker has done its part of all that was to be kept."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereAreYou:
    """Say at once where the main thread is."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIsAt:
    """Where the main thread of a follower is; the answer to ``WhereAreYou``."""

    place: int
    number: int
    where: Whereabouts


Deed = (
    LeaveNow
    | LoseMember
    | GiveUpAttempt
    | CommitVoted
    | HandOver
    | EnterPlace
    | KeepPart
    | FinishKeeping
)
"""What is done in the middle of a call of the membership."""

Directive = BuildPlace | AbandonPlace | WhereAreYou | CallReturned | CallBroke | Deed
InnerMessage = FollowerCame | WorkerIsAt | Answer | Directive

_KINDS = {kind.__name__: kind for kind in get_args(InnerMessage)}
_adapter = functools.cache(TypeAdapter)


def pack_message(message: InnerMessage) -> bytes:
    """Return the bytes of a message."""
    return json.dumps([type(message).__name__, asdict(message)], separators=(",", ":")).encode()


def unpack_message(data: bytes) -> InnerMessage:
    """Return the message that these bytes are."""
    name, fields = json.loads(data)
    message: InnerMessage = _adapter(_KINDS[name]).validate_json(json.dumps(fields), strict=True)
    return message
