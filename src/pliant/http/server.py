"""Serves an app on one socket, inside a running event loop.

Owns the socket, the life of the HTTP server, and the record by which others find it.  Knows nothing
of what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from pliant.core.errors import ConfigError
from pliant.http.connections import ACCEPTED_AT_ONCE, LimitedProtocol, TlsFront, Waiting
from pliant.http.direct_socket import DirectSocket
from pliant.machine.interfaces import send_again_soon
from pliant.machine.registry import RuntimeFiles
from pliant.machine.tls import ServedTls
from pliant.wire.codec import MAX_MESSAGE_BYTES

WAITING = 1024
"""Connections that wait in the kernel to be accepted."""

STOP_S = 2
"""Longest wait for open requests when the server stops, in seconds."""


class PortInUseError(ConfigError):
    """Another process listens there."""


def open_socket(address: str, port: int) -> socket.socket:
    """Bind a listening socket; port 0 takes any that is free.

    Raises:
        PortInUseError: another process listens there.
        ConfigError: the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio sets TCP_NODELAY only where it reads that this is TCP; without it an order to an agent
    # that has not acknowledged the one before waits for up to 40 ms
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        send_again_soon(sock)
        sock.bind((address, port))
        sock.listen(WAITING)
    except (OSError, OverflowError) as error:
        sock.close()
        if isinstance(error, OverflowError):
            raise ConfigError(f"port {port} is not between 0 and 65535") from error
        if error.errno == errno.EADDRINUSE:
            sentence = f"port {port} of {address} is in use; choose another with --port"
            raise PortInUseError(sentence) from error
        sentence = f"cannot listen on {address} port {port}: {error.strerror}"
        raise ConfigError(sentence) from error
    return sock


def url_of(sock: socket.socket, tls: ServedTls | None = None) -> str:
    """Return the base URL under which a bound socket is reached; with TLS by the host's name."""
    if sock.family == socket.AF_UNIX:
        return "http://pool"
    address, port = sock.getsockname()[:2]
    scheme, host = ("http", address) if tls is None else ("https", tls.name)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class _Server(uvicorn.Server):
    """Leaves signals alone: they belong to the process, which has an agent to end as well."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """One HTTP server; ``start`` and ``stop``, each once."""

    def __init__(
        self,
        app: FastAPI,
        sock: socket.socket,
        tls: ServedTls | None = None,
        also: Sequence[socket.socket] = (),
    ) -> None:
        """``also``: on these, too."""
        self._waiting: Waiting = {}
        protocol: Any = LimitedProtocol if tls is None else partial(_front, tls, self._waiting)
        config = uvicorn.Config(
            app,
            http=protocol,
            backlog=ACCEPTED_AT_ONCE,
            log_config=None,
            log_level="error",  # strangers cause warnings; debug has frames, and secrets
            access_log=False,
            lifespan="off",
            ws=DirectSocket,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_ping_interval=None,  # agents say Alive
            ws_per_message_deflate=False,  # each would be packed for each member; see ``wire``
            timeout_graceful_shutdown=STOP_S,
        )
        self._server = _Server(config)
        self._sockets = [sock, *also]
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return once requests are answered."""
        self._task = asyncio.create_task(self._server.serve(sockets=self._sockets))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task.done():
            self._task.result()
        else:
            for sock in self._sockets:
                sock.listen(WAITING)  # asyncio accepts as many at once as it lets wait

    async def stop(self) -> None:
        """Close the socket and every connection."""
        self._server.should_exit = True
        for front in tuple(self._waiting):
            front.hang_up()
        if self._task is not None:
            await self._task
        for sock in self._sockets:
            sock.close()


def _front(tls: ServedTls, waiting: Waiting, **served: Any) -> TlsFront:
    """Return what takes a connection, and hands it on once it is encrypted."""
    return TlsFront(partial(LimitedProtocol, **served), tls, waiting)


@contextlib.asynccontextmanager
async def answering(
    app: FastAPI,
    sock: socket.socket,
    tls: ServedTls | None = None,
    also: Sequence[socket.socket] = (),
) -> AsyncIterator[None]:
    """Serve an app meanwhile."""
    server = Server(app, sock, tls, also)
    try:
        await server.start()
        yield
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def serving(
    app: FastAPI,
    sock: socket.socket,
    files: RuntimeFiles,
    *,
    token: str,
    out: Path,
    tls: ServedTls | None = None,
    is_alone: bool = False,
    also: Sequence[socket.socket] = (),
) -> AsyncIterator[None]:
    """Serve an app, and let others on this machine find it meanwhile; see ``RuntimeFiles``."""
    own = None if tls is None else tls.files
    try:
        async with answering(app, sock, tls, also):
            url = url_of(sock, tls)
            files.write(url=url, token=token, out=out, tls=own, is_alone=is_alone)
            yield
    finally:
        files.remove()
