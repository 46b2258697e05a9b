"""Port: where the members of a generation reach this worker, while they meet and only then.

Owns one number that is this worker's for its life, and the listening on it.  Must not know who
connects, or why.

The port is reserved by a socket that is bound and does not listen, so nobody else on the machine
can take it, and nobody can connect.  Sockets of the same user may share it (``SO_REUSEPORT``, Linux
3.9): the one that listens for a while.  ``SO_REUSEADDR`` must not be set: with it any user may
bind what does not listen, and listen there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref

_SILENT_S = 3
"""For so long the kernel keeps a connection to itself that says nothing (tcp(7))."""

_BACKLOG = 4096
"""The system allows less; connections that wait are strangers' but for a few."""


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
