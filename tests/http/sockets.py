"""Plain connections to a server, as strangers make them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

DEADLINE_S = 15.0


class Strangers:
    """Connects to one listening socket; every connection is closed with the stack."""

    def __init__(self, stack: ExitStack, sock: socket.socket) -> None:
        self.sock = sock
        self._stack = stack

    async def connect(self, said: bytes = b"") -> socket.socket:
        sock = self._stack.enter_context(socket.socket())
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, self.sock.getsockname())
        await loop.sock_sendall(sock, said)
        return sock

    async def closed(self, sock: socket.socket) -> bytes:
        """Wait until the server has closed a connection; return what it said."""
        said, loop = b"", asyncio.get_running_loop()
        async with asyncio.timeout(DEADLINE_S):
            try:
                while data := await loop.sock_recv(sock, 1000):
                    said += data
            except ConnectionError:
                pass
        return said
