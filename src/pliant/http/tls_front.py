"""Connections of a server with TLS, until their handshake is over.

Owns that strangers who do not finish it, or never begin, use up neither descriptors nor places:
beyond the limit the oldest of them goes, and each by itself after a while.  Who speaks plain HTTP,
or shows no certificate where one is wanted, is told so and nothing else.  Knows nothing of what is
asked afterwards, nor of the connections that are made then (``http.connections``).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from pliant.http.connections import REQUEST_S, most_connections
from pliant.machine.control_tls import NEEDS_TLS, ServedTls

SPEAKS_PLAIN = "HTTP_REQUEST"
"""What OpenSSL calls a request that is not encrypted."""


def _answer(sentence: bytes) -> bytes:
    said = b'{"detail":"%s"}' % sentence
    return (
        b"HTTP/1.1 %d Upgrade Required\r\nUpgrade: TLS/1.3\r\nConnection: Upgrade, close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (NEEDS_TLS, len(said), said)
    )


TELLS_TLS = _answer(
    b"it speaks TLS: give --tls-ca, and --tls-certificate and --tls-key if it wants a certificate"
)
WANTS_CERTIFICATE = _answer(b"it wants a certificate: give --tls-certificate and --tls-key")

Waiting = dict["TlsFront", None]
"""Connections whose handshake is not over, oldest first."""


class TlsFront(asyncio.Protocol):
    """One connection until both ends have shaken hands; then ``make_protocol`` makes who serves it.

    What arrives with the end of the handshake is kept until it is there.
    """

    def __init__(
        self, make_protocol: Callable[[], asyncio.Protocol], tls: ServedTls, waiting: Waiting
    ) -> None:
        self._make_protocol = make_protocol
        self._tls = tls
        self._waiting = waiting
        self._kept: list[bytes] = []
        self._raw: asyncio.Transport | None = None
        self._plain: socket.socket | None = None
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place among those who wait, and begin."""
        self._raw = raw = cast(asyncio.Transport, transport)
        self._waiting[self] = None
        if len(self._waiting) > max(most_connections() // 2, 1):  # each has two descriptors
            next(iter(self._waiting)).hang_up()
        self._shaking = asyncio.get_running_loop().create_task(self._shake(raw))

    def data_received(self, data: bytes) -> None:
        """Keep what was said before anybody was there to hear it."""
        self._kept.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up the place."""
        self._waiting.pop(self, None)

    def hang_up(self) -> None:
        """Close the connection."""
        self._waiting.pop(self, None)
        if self._raw is not None:
            self._raw.abort()

    async def _shake(self, raw: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            self._plain = socket.socket(fileno=os.dup(raw.get_extra_info("socket").fileno()))
        try:
            encrypted = await loop.start_tls(
                raw,
                self,
                self._tls.context(),
                server_side=True,
                ssl_handshake_timeout=REQUEST_S,
                ssl_shutdown_timeout=REQUEST_S,
            )
        except (OSError, RuntimeError) as error:  # the latter: it was closed meanwhile
            if isinstance(error, ssl.SSLError) and error.reason == SPEAKS_PLAIN and self._plain:
                with suppress(OSError):
                    self._plain.send(TELLS_TLS)
            self.hang_up()
            return
        finally:
            if self._plain is not None:
                self._plain.close()
        if encrypted is None or encrypted.is_closing():
            return
        if self._tls.files.ca and not encrypted.get_extra_info("peercert"):
            encrypted.write(WANTS_CERTIFICATE)
            encrypted.close()
            return
        self._waiting.pop(self, None)
        protocol = self._make_protocol()
        encrypted.set_protocol(protocol)
        protocol.connection_made(encrypted)
        for data in self._kept:
            protocol.data_received(data)
