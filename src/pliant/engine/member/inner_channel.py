"""Inner channel: the Unix sockets between worker 0 of a replica and its followers.

Owns connections and the one thread that reads each of them.  Knows nothing of what a message means.

The socket lies in the private directory of the replica; who connects must be of the same user.  To
workers of other hosts their agents carry what is said (``agent.tunnels``).  The
end of a connection is the end of a process, hence of the replica: the agent ends whoever is left.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pliant.core.errors import PermanentError
from pliant.engine.member.inner_messages import (
    InnerMessage,
    pack_message,
    unpack_message,
)
from pliant.machine.sockets import peer_of
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
