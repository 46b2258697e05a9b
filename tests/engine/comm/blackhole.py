"""Two ends of a connection in two network namespaces, and a cable between them that can be cut.

Packets still leave after the cut and reach nobody, as behind a switch that has lost its way: no
error tells of it.  The namespaces are gone with ``close``.  Needs root, ``ip`` and ``nsenter``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

CLONE_NEWNET = 0x40000000
ADDRESSES = ("10.99.0.1", "10.99.0.2")

T = TypeVar("T")


def obstacle() -> str:
    """Return why there can be none here; nothing if there can."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    return f"needs the command {missing[0]}" if missing else ""


class Blackhole:
    """See the module's text."""

    def __init__(self) -> None:
        self._hosts = [
            subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 600"], stdout=-1)
            for _ in ADDRESSES
        ]
        for host in self._hosts:
            assert host.stdout is not None
            host.stdout.readline()  # it has its namespace
        self._ip(0, f"link add cable type veth peer name cable netns {self._hosts[1].pid}")
        for number, address in enumerate(ADDRESSES):
            self._ip(number, f"address add {address}/24 dev cable")
            self._ip(number, "link set cable up")

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a connection between them."""
        listener = self._within(0, lambda: socket.create_server((ADDRESSES[0], 0)))
        with listener:
            place = listener.getsockname()
            first = self._within(1, lambda: socket.create_connection(place, timeout=10))
            second, _ = listener.accept()
        return first, second

    def cut(self) -> None:
        """From now on nothing arrives at the other side."""
        for number in range(2):
            other = ADDRESSES[1 - number]
            nobody = f"neighbour replace {other} lladdr 02:00:00:00:00:99 dev cable nud permanent"
            self._ip(number, nobody)

    def close(self) -> None:
        """Give the namespaces back."""
        for host in self._hosts:
            host.kill()
            host.communicate()

    def _ip(self, number: int, words: str) -> None:
        namespace = f"--net=/proc/{self._hosts[number].pid}/ns/net"
        subprocess.run(["nsenter", namespace, "ip", *words.split()], check=True)

    def _within(self, number: int, make: Callable[[], T]) -> T:
        """Call on a thread of its own, which has the namespace until it ends."""

        def run() -> T:
            with Path(f"/proc/{self._hosts[number].pid}/ns/net").open() as namespace:
                assert not ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET)
            return make()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(run).result()
