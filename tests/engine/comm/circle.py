"""Circles: communicators of one generation in one process, each used by a thread of its own.

An implementation is added by one line in ``WAYS``.  Windows are none: they move nothing themselves,
and meet by one of these (``tests/processes/test_exchange.py`` reduces through both).
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.certificates import Authority

from pliant.engine.comm.communicator import (
    Communicator,
    GroupBroken,
    Piece,
    SingleCommunicator,
)
from pliant.engine.comm.device_communicator import DeviceCommunicator, DeviceGroup, Library
from pliant.engine.comm.sockets import SocketCommunicator
from pliant.machine.tls import TlsContexts

GENERATION = 7
BOUND_S = 8.0
"""What ends, ends within this on a loaded machine; what hangs, hangs for longer."""

Cable = Callable[[int, int], tuple[socket.socket, socket.socket]]
"""Connects a rank to a higher one."""


def tcp_pair(low: int = 0, high: int = 0) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = socket.create_connection(listener.getsockname())
        second, _ = listener.accept()
    return first, second


def over_sockets(size: int, collective_s: float, cable: Cable = tcp_pair) -> list[Communicator]:
    if size == 1:
        return [SingleCommunicator(GENERATION)]
    socks: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for low in range(size):
        for high in range(low + 1, size):
            socks[low][high], socks[high][low] = cable(low, high)
    return [
        SocketCommunicator(GENERATION, rank=rank, socks=socks[rank], collective_s=collective_s)
        for rank in range(size)
    ]


def over_tls(size: int, collective_s: float, cable: Cable = tcp_pair) -> list[Communicator]:
    def encrypted(low: int, high: int) -> tuple[socket.socket, socket.socket]:
        return encrypt(*cable(low, high))

    return over_sockets(size, collective_s, encrypted)


class Idle(Library, DeviceGroup):
    """A library, and a group of it, that has nothing to do."""

    name = "idle"

    def unique_id(self) -> bytes:
        return b"idle"

    def connect(
        self, unique_id: bytes, *, rank: int, size: int, where: torch.device
    ) -> DeviceGroup:
        return self

    def is_ready(self) -> bool:
        return True

    def exchange(self, sends: Sequence[Piece], receives: Sequence[Piece]) -> None:
        raise AssertionError("all is in host memory")

    def revoke(self) -> None:
        pass

    def abort(self) -> None:
        pass


def beside_a_library(size: int, collective_s: float, cable: Cable = tcp_pair) -> list[Communicator]:
    return [
        DeviceCommunicator(
            one, library := Idle(), library, where=torch.device("cpu"), collective_s=collective_s
        )
        if isinstance(one, SocketCommunicator)
        else one
        for one in over_sockets(size, collective_s, cable)
    ]


WAYS: dict[str, Callable[..., list[Communicator]]] = {
    "sockets": over_sockets,
    "tls": over_tls,
    "library": beside_a_library,
}
"""Every implementation: a function of size and ``collective_s``; these take a ``Cable``, too."""


def encrypt(server: socket.socket, client: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Wrap both ends of a connection."""
    contexts, ends = tls_contexts(), list[socket.socket]()
    for sock in (server, client):
        sock.settimeout(BOUND_S)
    shaking = threading.Thread(
        target=lambda: ends.append(contexts.server.wrap_socket(server, server_side=True))
    )
    shaking.start()
    other = contexts.client.wrap_socket(client)
    shaking.join(BOUND_S)
    return ends[0], other


@cache
def tls_contexts() -> TlsContexts:
    """Return both ends of a node."""
    with TemporaryDirectory() as directory:
        return TlsContexts.of(Authority(Path(directory)).files())


class Running:
    """Something under way on a thread."""

    def __init__(self, act: Callable[[], Any], name: str = "") -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(act,), name=name, daemon=True)
        self._thread.start()

    def _run(self, act: Callable[[], Any]) -> None:
        try:
            self._value = act()
        except BaseException as error:
            self._error = error

    def ends_within(self, bound_s: float) -> bool:
        self._thread.join(bound_s)
        return not self._thread.is_alive()

    def result(self, bound_s: float = BOUND_S) -> Any:
        """Return or raise what came of it; a GroupBroken is returned."""
        if not self.ends_within(bound_s):
            frame = sys._current_frames().get(self._thread.ident or 0)
            where = "".join(traceback.format_stack(frame)[-4:]) if frame else "?"
            raise AssertionError(f"{self._thread.name} hangs in\n{where}")
        if self._error is not None and not isinstance(self._error, GroupBroken):
            raise self._error
        return self._value if self._error is None else self._error


class Circle:
    """All members of a generation."""

    def __init__(self, members: Sequence[Communicator]) -> None:
        self.members = members

    def start(self, function: Callable[[Communicator], Any]) -> list[Running]:
        return [
            Running(lambda comm=comm: function(comm), f"rank {comm.rank}")  # type: ignore[misc]
            for comm in self.members
        ]

    def run(self, function: Callable[[Communicator], Any], bound_s: float = BOUND_S) -> list[Any]:
        """Let all members run a function; return what came of it, in rank order."""
        running = self.start(function)
        try:
            return [each.result(bound_s) for each in running]
        except BaseException:
            self.abandon("the test has failed")
            raise

    def abandon(self, reason: str) -> None:
        for comm in self.members:
            comm.abandon(reason)

    def close(self) -> None:
        for comm in self.members:
            comm.close()


@contextlib.contextmanager
def circle(
    size: int, way: str = "sockets", *, collective_s: float = 60.0, **more: Any
) -> Iterator[Circle]:
    it = Circle(WAYS[way](size, collective_s, **more))
    try:
        yield it
    finally:
        it.close()


def passing_on(function: Callable[[Communicator], Any]) -> Callable[[Communicator], Any]:
    """Abandon what has broken, as a group does: so the others hear of it."""

    def run(comm: Communicator) -> Any:
        try:
            return function(comm)
        except GroupBroken as broken:
            comm.abandon(broken.reason)
            return broken

    return run


def wait_until(is_true: Callable[[], bool], what: str = "", bound_s: float = BOUND_S) -> None:
    deadline_at = time.monotonic() + bound_s
    while not is_true():
        assert time.monotonic() < deadline_at, what or "it does not come"
        time.sleep(0.002)
