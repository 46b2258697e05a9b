"""Meeting store: PyTorch's key-value store of a replica whose workers are on several hosts.

Owns the values, which worker 0 has, and how the others ask for them: over a Unix socket in the
private directory of the replica, whose bytes agents carry between hosts.  So nobody but workers of
the replica comes near it.  On one host a file does the same (``device_mesh``).

    worker 0   StoreServer: one thread per connection, all of one dictionary
    each       MeetingStore: one connection for each request at a time

A request is a list of byte strings, its name first; so is the answer.  What waits asks again every
second, so that no end waits for one that has gone.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from torch._C._distributed_c10d import Store

from pliant.engine.member.followers import wait_to_be_ended
from pliant.engine.member.inner_channel import InnerListener
from pliant.wire.launch import STORE_SOCKET

LOOK_S = 1.0
"""How long a server lets one wait for a value before it says that there is none, in seconds."""

RETRY_S = 0.05
"""Between two tries to connect to a worker 0 that has not come so far, in seconds."""

MOST_BYTES = 64 << 20
"""Of one request; PyTorch puts addresses there."""

_LENGTH = struct.Struct("!I")


class StoreServer:
    """The values, and the threads that hand them out, until this process ends."""

    def __init__(self, directory: Path) -> None:
        """Listen in the private directory of the replica."""
        self._values: dict[bytes, bytes] = {}
        self._changed = threading.Condition()
        self._listener = InnerListener(directory, self._welcome, name=STORE_SOCKET)

    def close(self) -> None:
        """Let nobody in any more."""
        self._listener.close()

    def answer(self, request: list[bytes]) -> list[bytes]:
        """Do what is asked; the first word of the answer says whether it could be done."""
        name, *rest = request
        with self._changed:
            match name, rest:
                case b"set", [key, value]:
                    self._put(key, value)
                    return [b"1"]
                case b"await", keys:
                    is_there = self._changed.wait_for(lambda: self._has(keys), LOOK_S)
                    return [b"1", *(self._values[key] for key in keys)] if is_there else [b""]
                case b"check", keys:
                    return [b"1" if self._has(keys) else b""]
                case b"add", [key, amount]:
                    self._put(key, b"%d" % (int(self._values.get(key, b"0")) + int(amount)))
                    return [b"1", self._values[key]]
                case b"compare_set", [key, expected, value]:
                    if self._values.get(key, b"") == expected:
                        self._put(key, value)
                    return [b"1", self._values.get(key, expected)]
                case b"append", [key, value]:
                    self._put(key, self._values.get(key, b"") + value)
                    return [b"1"]
                case b"delete", [key]:
                    return [b"" if self._values.pop(key, None) is None else b"1"]
                case b"count", []:
                    return [b"1", b"%d" % len(self._values)]
                case _:
                    raise ValueError(f"a store cannot be asked for {name!r:.40}")

    def _has(self, keys: list[bytes]) -> bool:
        return all(key in self._values for key in keys)

    def _put(self, key: bytes, value: bytes) -> None:
        self._values[key] = value
        self._changed.notify_all()

    def _welcome(self, sock: socket.socket) -> None:
        threading.Thread(
            target=self._serve, args=(sock,), name="meeting-store", daemon=True
        ).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            while (request := _receive(sock)) is not None:
                _send(sock, self.answer(request))


class MeetingStore(Store):
    """What PyTorch asks; from any thread.  Its methods are those of ``torch.distributed.Store``.

    Whoever gives it to PyTorch keeps it as well: of what is Python of it nobody else takes care.
    """

    def __init__(self, ask: Callable[[list[bytes]], list[bytes]]) -> None:
        """``ask``: a server of this process (``answer``), or one elsewhere (``RemoteStore``)."""
        super().__init__()
        self._ask = ask

    def set(self, key: str, value: bytes | str) -> None:
        """Have a value for a key."""
        self._ask([b"set", key.encode(), _bytes(value)])

    def get(self, key: str) -> bytes:
        """Return the value of a key, as soon as there is one."""
        return self._await([key], self._patience())[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values."""
        self._await(keys, timeout or self._patience())

    def check(self, keys: list[str]) -> bool:
        """Whether all keys have values."""
        return self._ask([b"check", *(key.encode() for key in keys)]) == [b"1"]

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and return what it is then."""
        return int(self._ask([b"add", key.encode(), b"%d" % amount])[1])

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Change a value if it is the one that is expected; return what it is then."""
        return self._ask([b"compare_set", key.encode(), _bytes(expected), _bytes(desired)])[1]

    def append(self, key: str, value: bytes | str) -> None:
        """Add to the end of a value."""
        self._ask([b"append", key.encode(), _bytes(value)])

    def delete_key(self, key: str) -> bool:
        """Forget a key; whether it was there."""
        return self._ask([b"delete", key.encode()]) == [b"1"]

    def num_keys(self) -> int:
        """Count the keys."""
        return int(self._ask([b"count"])[1])

    def has_extended_api(self) -> bool:
        """Whether several keys can be asked for at once."""
        return False

    def _patience(self) -> timedelta:
        own: Any = self  # what ``set_timeout`` has set; the stub does not know it
        return cast(timedelta, own.timeout)

    def _await(self, keys: list[str], timeout: timedelta) -> list[bytes]:
        until_s = time.monotonic() + timeout.total_seconds()
        while True:
            is_there, *values = self._ask([b"await", *(key.encode() for key in keys)])
            if is_there:
                return values
            if time.monotonic() > until_s:
                raise TimeoutError(f"no worker of this replica has said {keys[0]!r:.80}")


class RemoteStore:
    """Asks the server of worker 0; on as many connections as there are who ask at one time."""

    def __init__(self, directory: Path, within_s: float) -> None:
        self._path = str(directory / STORE_SOCKET)
        self._within_s = within_s
        self._idle: list[socket.socket] = []

    def ask(self, request: list[bytes]) -> list[bytes]:
        """Return the answer to a request; never, if worker 0 has gone: the agent ends this one."""
        answer = None
        with suppress(OSError):
            sock = self._taken()
            _send(sock, request)
            answer = _receive(sock)
            self._idle.append(sock)
        if answer is None:
            wait_to_be_ended("worker 0 of this replica has ended")
        return answer

    def close(self) -> None:
        """End the connections; nobody asks any more."""
        while self._idle:
            self._idle.pop().close()

    def _taken(self) -> socket.socket:
        with suppress(IndexError):  # two threads may find the last one
            return self._idle.pop()
        return self._connect()

    def _connect(self) -> socket.socket:
        until_s = time.monotonic() + self._within_s
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(self._path)
            except OSError:
                sock.close()
                if time.monotonic() > until_s:
                    raise
                threading.Event().wait(RETRY_S)
            else:
                return sock


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _send(sock: socket.socket, words: list[bytes]) -> None:
    body = b"".join(part for word in words for part in (_LENGTH.pack(len(word)), word))
    sock.sendall(_LENGTH.pack(len(body)) + body)


def _receive(sock: socket.socket) -> list[bytes] | None:
    """Return the next message; None: there is none any more."""
    if (header := _exactly(sock, _LENGTH.size)) is None:
        return None
    size = _LENGTH.unpack(header)[0]
    body = _exactly(sock, size) if size <= MOST_BYTES else None
    words: list[bytes] = []
    at = 0
    while body is not None and at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size + length
        words.append(body[at - length : at])
    return words or None


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(min(count - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)
