"""How hosts of a host group come together: where one of them listens, and how others get there.

Owns that nobody else comes in: both ends prove that they know the secret that their coordinator
gave them, and neither says it; that nobody listens for longer than parts are awaited; and that
strangers who connect use up nothing.  Knows nothing of what is said later.

    alone      a port that is taken and closed: whoever connects is refused by the kernel
    JoinHosts  open; a part says who it is and proves it; the answer proves that this is the head
    all there  closed

With the files of the job's TLS, each end shows a certificate that its CA has signed, too.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import WebSocketException
from websockets.http11 import Request, Response
from websockets.protocol import State

from pliant.agent.hosts.link import HostLink
from pliant.agent.node_facts import AgentConfig
from pliant.core.values import NodeId, TlsFiles
from pliant.machine.descriptors import check_free, shortage_of
from pliant.machine.tls import TlsContexts
from pliant.wire.bounds import MOST_DEVICES
from pliant.wire.host_records import MAX_FRAME_BYTES, proof
from pliant.wire.messages import JoinHosts

JOIN_S = 10.0
"""How long a head awaits its parts, and a part tries to reach it, in seconds."""

OPEN_S = 5.0
"""Longest time that whoever has connected takes to say who it is, in seconds."""

RETRY_S = 0.1
"""Between two tries of a part, whose head may not have heard of it yet, in seconds."""

NEEDED = 16
"""Descriptors that must be free, of a host that is to be one with others: a connection, and what a
worker needs."""

AT_ONCE = 1
"""Connections taken in one turn of the event loop.  Where there are no descriptors asyncio fails as
often, with a traceback each, and tries all of them again in a second, as often each: of 100 came
20,000 in ten seconds."""

WAITING = 100
"""Connections that wait in the kernel to be taken."""

MOST_STRANGERS = 16
"""Connections that have proved nothing; beyond that the oldest goes."""

_PART, _DEVICES, _NONCE, _PROOF = (
    "Pliant-Part",
    "Pliant-Devices",
    "Pliant-Nonce",
    "Pliant-Proof",
)

_NONCE_FORM = re.compile(r"[0-9a-f]{32}")

_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)  # below it, what is sent is written down, proofs too

Shown = tuple[NodeId, int, str]
"""Which part it is, how many devices it has, and its nonce."""
LetIn = Callable[[ServerConnection], Awaitable[None]]
LookAt = Callable[[ServerConnection, Request], Response | None]
Prove = Callable[[ServerConnection, Request, Response], None]


class HeadListener:
    """The port at which one host can be reached by others once; ``close`` at the end."""

    def __init__(self, address: str, tls: TlsFiles | None) -> None:
        """Take a port of this address.

        Raises:
            OSError: there is none, or there are no descriptors for who comes to it.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        try:
            check_free(NEEDED)
            self._sock.bind((address, 0))
        except OSError:
            self._sock.close()
            raise
        host = f"[{address}]" if ":" in address else address
        self.endpoint = f"{host}:{self._sock.getsockname()[1]}"
        self._tls = tls
        self._server: Server | None = None
        self._strangers: list[ServerConnection] = []

    async def awaited(
        self, told: JoinHosts, on_link: Callable[[HostLink], None]
    ) -> dict[NodeId, HostLink]:
        """Listen until each part is there, but not for ever; return those who are.

        ``on_link`` is called with each before anything is heard of it.

        Raises:
            ConfigError: the files of TLS cannot be used.
            OSError: nobody can be let in.
        """
        came: dict[NodeId, HostLink] = {}
        shown: dict[ServerConnection, Shown] = {}
        are_there = asyncio.Event()

        def look_at(connection: ServerConnection, request: Request) -> Response | None:
            known = _shown(request, told)
            taken = {name for one, (name, *_) in shown.items() if one.state is not State.CLOSED}
            if known is None or known[0] in taken:
                return connection.respond(HTTPStatus.FORBIDDEN, "")
            shown[connection] = known
            return None

        def prove(connection: ServerConnection, request: Request, response: Response) -> None:
            if connection in shown:
                said = proof(told.secret, "head", told.head, *shown[connection])
                response.headers[_PROOF] = said

        async def let_in(connection: ServerConnection) -> None:
            with suppress(ValueError):
                self._strangers.remove(connection)
            part, devices, _ = shown[connection]
            link = HostLink(connection, part, devices=devices)
            came[part] = link
            on_link(link)
            if len(came) == len(told.parts):
                are_there.set()
            await link.run()
            if came.get(part) is link:
                del came[part]

        await self._serve(let_in, look_at, prove)
        try:
            async with asyncio.timeout(JOIN_S):
                await are_there.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            for link in came.values():
                link.cut()
            raise
        self.close()
        return dict(came)

    async def _serve(self, let_in: LetIn, look_at: LookAt, prove: Prove) -> None:
        check_free(NEEDED)
        self._server = await serve(
            let_in,
            sock=self._sock,
            backlog=AT_ONCE,
            ssl=None if self._tls is None else TlsContexts.of(self._tls).server,
            process_request=look_at,
            process_response=prove,
            create_connection=partial(_Stranger, self._strangers),  # type: ignore[arg-type]  # makes one
            server_header=None,
            compression=None,
            open_timeout=OPEN_S,
            ping_interval=None,
            max_size=MAX_FRAME_BYTES,
            logger=_log,
        )
        self._sock.listen(WAITING)  # asyncio lets as many wait as it takes at once

    def close(self) -> None:
        """Let nobody in any more; a second call does nothing."""
        if self._server is None:
            self._sock.close()
        else:
            self._server.close(close_connections=False)
        for one in tuple(self._strangers):
            one.transport.abort()


class _Stranger(ServerConnection):
    """A connection that has proved nothing so far; one too many ends the oldest."""

    def __init__(self, others: list[ServerConnection], *args: Any, **options: Any) -> None:
        """``others``: all that there are."""
        super().__init__(*args, **options)
        self._others = others

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place among them."""
        super().connection_made(transport)
        self._others.append(self)
        if len(self._others) > MOST_STRANGERS:
            self._others.pop(0).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up the place."""
        with suppress(ValueError):
            self._others.remove(self)
        super().connection_lost(exc)


async def reached(told: JoinHosts, own: AgentConfig, tls: TlsFiles | None) -> HostLink | None:
    """Connect this part, from its own address, to its head; None: it could not be reached in time.

    Raises:
        ConfigError: the files of TLS cannot be used.
    """
    trust = None if tls is None else TlsContexts.of(tls).client
    why = "it does not answer"
    with suppress(TimeoutError):
        async with asyncio.timeout(JOIN_S):
            while True:
                try:
                    link = await _connect(told, own, trust)
                except OSError as error:
                    why = shortage_of(error)
                except WebSocketException as error:
                    why = str(error)
                else:
                    if link is not None:
                        return link
                    why = "who answers there does not prove that it is this one"
                await asyncio.sleep(RETRY_S)
    _log.warning("%s was not reached at %s for %g s: %s", told.head, told.endpoint, JOIN_S, why)
    return None


async def _connect(
    told: JoinHosts, own: AgentConfig, trust: ssl.SSLContext | None
) -> HostLink | None:
    nonce = secrets.token_hex(16)
    shown = (own.node, own.devices, nonce)
    connection = await connect(
        f"{'ws' if trust is None else 'wss'}://{told.endpoint}",
        ssl=trust,
        local_addr=(own.address, 0),
        additional_headers={
            _PART: own.node,
            _DEVICES: str(own.devices),
            _NONCE: nonce,
            _PROOF: proof(told.secret, "part", told.head, *shown),
        },
        user_agent_header=None,
        compression=None,
        open_timeout=OPEN_S,
        ping_interval=None,
        max_size=MAX_FRAME_BYTES,
        proxy=None,
        logger=_log,
    )
    response = connection.response
    said = "" if response is None else response.headers.get(_PROOF, "")
    if not hmac.compare_digest(said, proof(told.secret, "head", told.head, *shown)):
        connection.transport.abort()
        return None
    return HostLink(connection, told.head)


def _shown(request: Request, told: JoinHosts) -> Shown | None:
    """Return what a part shows of itself; None: it is none."""
    names = (_PART, _DEVICES, _NONCE, _PROOF)
    said = [request.headers.get_all(name) for name in names]
    if any(len(one) != 1 or not one[0].isascii() for one in said):
        return None
    part, devices, nonce, shown = (one[0] for one in said)
    if part not in told.parts or not _NONCE_FORM.fullmatch(nonce):
        return None
    if not devices.isdigit() or len(devices) > 9 or int(devices) > MOST_DEVICES:
        return None
    known = (NodeId(part), int(devices), nonce)
    if not hmac.compare_digest(shown, proof(told.secret, "part", told.head, *known)):
        return None
    return known
