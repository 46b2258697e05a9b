"""A proxy between two members: it passes on what it gets, until it is to do something else.

It can be put wherever a member's endpoint is expected, or used as the cable of a circle.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Self

from pliant.engine.comm.mesh import parse_endpoint


class Trouble(Enum):
    """What befalls a connection, in one of its directions."""

    CLOSE = "both ends are closed"
    RESET = "both ends are reset"
    HALF = "the receiver sees the end, the sender goes on"
    SWALLOW = "the rest is taken and never arrives"
    STALL = "nothing is taken any more"


@dataclass(frozen=True)
class Fate:
    """Of one connection."""

    trouble: Trouble | None = None
    after_bytes: int = 0
    forward: bool = True
    """In the direction from who connects to who accepts; else the other one."""

    flip_at: int | None = None
    """The byte of the forward or backward direction that is changed."""

    slow_bytes: int = 0
    """So many of the first ones are passed on one by one."""

    delay_s: float = 0.0
    """Of each portion that is passed on together."""


FINE = Fate()


class Proxy:
    """Passes connections on to ``target``; ``fate_of`` says what befalls the n-th of them."""

    def __init__(self, target: str, fate_of: Callable[[int], Fate] = lambda number: FINE) -> None:
        self._target = target
        self._fate_of = fate_of
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.recorded: list[tuple[bytearray, bytearray]] = []
        """Per connection, what went forward and what came back."""
        self._socks: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[:1]:
            thread.join(5)
        self._listener.close()
        for sock in self._socks:
            _close(sock)
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            outer = socket.socket()
            self._socks += [inner, outer]
            try:
                outer.connect(parse_endpoint(self._target))
            except OSError:  # refused there, so refused here
                _reset(inner)
                outer.close()
                continue
            for sock in (inner, outer):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            fate = self._fate_of(len(self.recorded))
            record = bytearray(), bytearray()
            self.recorded.append(record)
            for is_forward, source, target in ((True, inner, outer), (False, outer, inner)):
                own = fate if fate.forward is is_forward else FINE
                seen = record[0] if is_forward else record[1]
                thread = threading.Thread(
                    target=_pump, args=(source, target, own, seen), daemon=True
                )
                self._threads.append(thread)
                thread.start()


def _pump(source: socket.socket, target: socket.socket, fate: Fate, seen: bytearray) -> None:
    left, slow = fate.after_bytes, fate.slow_bytes
    with contextlib.suppress(OSError):
        while fate.trouble is None or left:
            portion = 1 if slow else 1 << 16
            data = source.recv(portion if fate.trouble is None else min(portion, left))
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            if fate.flip_at is not None and 0 <= fate.flip_at - len(seen) < len(data):
                index = fate.flip_at - len(seen)
                data = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
            left -= len(data)
            slow = max(0, slow - len(data))
            seen += data
            if fate.delay_s:
                time.sleep(fate.delay_s)
            target.sendall(data)
        _befall(fate.trouble, source, target)
        return
    for sock in (source, target):  # an error at one end is passed on to the other
        _reset(sock)


def _befall(trouble: Trouble, source: socket.socket, target: socket.socket) -> None:
    if trouble is Trouble.STALL:
        return
    if trouble is Trouble.RESET:
        _reset(source)
        _reset(target)
    elif trouble is Trouble.CLOSE:
        _close(source)
        _close(target)
    else:
        if trouble is Trouble.HALF:
            target.shutdown(socket.SHUT_WR)
        while source.recv(1 << 16):
            pass


def _reset(sock: socket.socket) -> None:
    """Close with a reset; whoever waits in another thread is woken first."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RD)
    sock.close()


def _close(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
