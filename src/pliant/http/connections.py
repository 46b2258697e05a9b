"""The connections of a server: how many there are at once, and how long one may take to ask.

Owns that strangers use up neither descriptors nor places: beyond the limit the oldest connection
goes on which nothing is being answered, and one that does not say what it wants goes by itself.
On a Unix socket it is one of the user who has most of them, and requests carry who asks, by the
kernel's word (``scope["state"]["peer"]``); with TLS they carry which names the certificate of the
other side has (``certified``; None: it has shown none).
Connections of agents (WebSockets) have shown the token and do not count.

With TLS the same holds until the handshake is over (``TlsFront``); who speaks plain HTTP, or shows
no certificate where one is wanted, is told so and nothing else.  Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from pliant.machine.interfaces import Credentials, peer_of
from pliant.machine.tls import NEEDS_TLS, ServedTls, names_in

MOST_CONNECTIONS = 256
"""At once; fewer where the process may not have four times as many descriptors."""

ACCEPTED_AT_ONCE = 8
"""Connections taken in one turn of the event loop: a request is read two turns after its connection
is taken, and must not have lost its place to a flood by then."""

REQUEST_S = 10.0
"""From the beginning of a connection, or from its last answer, to the end of a request."""

ANSWER_S = 60.0
"""Until the other side has read the answer; all of them are small."""


def most_connections() -> int:
    """Return how many connections this process can have beside its files."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_CONNECTIONS, max(descriptors // 4, 8))


class LimitedProtocol(H11Protocol):
    """One connection of a server that has no place for all who come."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.since_s = self.loop.time()
        self._waiting_since_s = self.since_s
        self._check: asyncio.TimerHandle | None = None
        self.peer: Credentials | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place; the oldest connection gives up its own if there is none."""
        super().connection_made(transport)
        self.peer = peer_of(transport.get_extra_info("socket"))
        shown = transport.get_extra_info("peercert")  # an empty one: the other side has none
        certified = names_in(shown) if shown else None
        self.app_state = {**self.app_state, "peer": self.peer, "certified": certified}
        others = [one for one in self.connections if isinstance(one, LimitedProtocol)]
        if len(others) > most_connections():
            counts = Counter(one.uid for one in others)
            most = max(counts.values())
            crowd = [one for one in others if counts[one.uid] == most]
            min(crowd, key=lambda one: (one.is_answering, one.since_s)).hang_up()
        self._end_if_late()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up the place."""
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand the connection on to who decides whether it is an agent's."""
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._waiting_since_s = self.loop.time()
        super().on_response_complete()

    @property
    def uid(self) -> int | None:
        """Whose connection it is; None: the kernel does not say."""
        return None if self.peer is None else self.peer.uid

    @property
    def is_answering(self) -> bool:
        """Whether a request was read and its answer is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def hang_up(self) -> None:
        """Close the connection, whatever was asked on it."""
        self.connections.discard(self)
        self.transport.abort()

    def _end_if_late(self) -> None:
        """Close the connection if it is late, and look again when it would be."""
        is_whole = self.is_answering and not self.cycle.more_body
        if is_whole and not self.cycle.response_started:  # what answers has a limit of its own
            self._waiting_since_s = self.loop.time()
        patience_s = ANSWER_S if is_whole else REQUEST_S
        left_s = self._waiting_since_s + patience_s - self.loop.time()
        if left_s <= 0:
            self.hang_up()
        else:
            self._check = self.loop.call_later(min(left_s, REQUEST_S), self._end_if_late)

    def _stop_waiting(self) -> None:
        if self._check is not None:
            self._check.cancel()


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
