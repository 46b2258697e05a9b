"""Tunnels: what workers of one replica say to each other between hosts, carried by their agents.

Owns the connections of Unix sockets that are carried, and that neither side is sent more than it
has room for.  Knows nothing of what is said, nor of the link.

    worker 1 --> socket in the directory of its host --> agent ==link==> agent --> worker 0's socket

Each connection is one stream.  A worker 0 that does not listen so far is waited for, as on one
host, where others try again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from pliant.core.values import ReplicaId
from pliant.machine.event_loop import cancelled
from pliant.machine.interfaces import peer_of
from pliant.wire.host_records import STREAM_BYTES, TunnelOpened, TunnelRead, TunnelRecord
from pliant.wire.launch import CHANNEL_SOCKET, STORE_SOCKET

WINDOW_BYTES = 1 << 20
"""Of a stream that are on their way at one time."""

MOST_STREAMS = 4096
"""Of one link: each is a descriptor of the head and a thread of a worker 0."""

PIECE_BYTES = 1 << 16

RETRY_S = 0.05
"""Between two looks whether worker 0 listens, in seconds."""


@dataclass(slots=True)
class _Stream:
    inbox: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    waiting: int = 0
    """Bytes in it."""

    room: int = WINDOW_BYTES
    has_room: asyncio.Event = field(default_factory=asyncio.Event)

    def take_data(self, data: bytes) -> None:
        """Keep what has come.

        Raises:
            ValueError: it is more than the other end may send.
        """
        self.waiting += len(data)
        if self.waiting > WINDOW_BYTES:
            raise ValueError("a tunnel brings more than was asked for")
        self.inbox.put_nowait(data)

    def arrived(self, count: int) -> None:
        """Take note that so many bytes of them were passed on there."""
        self.room += count
        self.has_room.set()


class Tunnels:
    """Those of one link, at one of its ends; ``close`` once, at its end."""

    def __init__(
        self,
        *,
        say: Callable[[TunnelRecord], None],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """``say``: in order with what is written."""
        self.directory_of: Callable[[ReplicaId], Path | None] = lambda replica: None
        """Returns the directory in which a replica meets here, if it does."""

        self._say = say
        self._write = write
        self._streams: dict[int, _Stream] = {}
        self._servers: dict[ReplicaId, list[asyncio.Server]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._newest = 0

    async def listen(self, replica: ReplicaId, directory: Path) -> None:
        """Be worker 0, for the workers that meet in this directory.

        Raises:
            OSError: there is no room for it.
        """
        servers = self._servers[replica] = []
        for name in (CHANNEL_SOCKET, STORE_SOCKET):
            accept = partial(self._accept, replica, name)
            servers.append(await asyncio.start_unix_server(accept, directory / name))

    def forget(self, replica: ReplicaId) -> None:
        """Be worker 0 no longer; a second call does nothing."""
        for server in self._servers.pop(replica, ()):
            server.close()

    def opened(self, record: TunnelOpened) -> None:
        """Lead a connection of another host to worker 0.

        Raises:
            ValueError: there are too many, or it has no number of its own.
        """
        if not 0 < record.stream < 1 << 8 * STREAM_BYTES or record.stream in self._streams:
            raise ValueError(f"a tunnel cannot have the number {record.stream}")
        if len(self._streams) >= MOST_STREAMS:
            raise ValueError(f"more than {MOST_STREAMS} tunnels")
        stream = self._streams[record.stream] = _Stream()
        self._spawn(self._lead(record, stream))

    def take_frame(self, frame: bytes) -> None:
        """Take bytes of a stream; one that is over here has no use for them.

        Raises:
            ValueError: they are more than the other end may send.
        """
        stream = self._streams.get(int.from_bytes(frame[:STREAM_BYTES], "big"))
        if stream is None:
            return
        stream.take_data(frame[STREAM_BYTES:])

    def read(self, record: TunnelRead) -> None:
        """Let more of a stream follow."""
        if (stream := self._streams.get(record.stream)) is not None:
            stream.arrived(record.count)

    async def close(self) -> None:
        """End all of them."""
        for replica in tuple(self._servers):
            self.forget(replica)
        await cancelled(*self._tasks)

    def _accept(
        self,
        replica: ReplicaId,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        peer = peer_of(writer.get_extra_info("socket"))
        if peer is None or peer.uid != os.getuid():
            writer.close()
            return
        self._newest += 1
        number, stream = self._newest, _Stream()
        self._streams[number] = stream
        self._say(TunnelOpened(stream=number, replica=replica, socket=cast(Any, name)))
        self._spawn(self._carry(number, stream, reader, writer))

    async def _lead(self, record: TunnelOpened, stream: _Stream) -> None:
        while (directory := self.directory_of(record.replica)) is not None:
            with suppress(OSError):
                reader, writer = await asyncio.open_unix_connection(directory / record.socket)
                await self._carry(record.stream, stream, reader, writer)
                return
            await asyncio.sleep(RETRY_S)
        await self._end(record.stream)

    async def _carry(
        self,
        number: int,
        stream: _Stream,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        ways = [
            asyncio.create_task(self._outward(number, stream, reader)),
            asyncio.create_task(self._inward(number, stream, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(*ways)
            writer.close()
        await self._end(number)

    async def _end(self, number: int) -> None:
        self._streams.pop(number, None)
        await self._write(number.to_bytes(STREAM_BYTES, "big"))

    async def _outward(self, number: int, stream: _Stream, reader: asyncio.StreamReader) -> None:
        while True:
            while stream.room <= 0:
                stream.has_room.clear()
                await stream.has_room.wait()
            data = await reader.read(min(PIECE_BYTES, stream.room))
            if not data:
                return
            stream.room -= len(data)
            await self._write(number.to_bytes(STREAM_BYTES, "big") + data)

    async def _inward(self, number: int, stream: _Stream, writer: asyncio.StreamWriter) -> None:
        while data := await stream.inbox.get():
            writer.write(data)
            await writer.drain()
            stream.waiting -= len(data)
            self._say(TunnelRead(stream=number, count=len(data)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
