"""The link between the head of a host group and one of its parts, once it is there.

Owns one connection: in which order records and bytes of tunnels go, that the other end lives, and
that what it says can be read.  Knows nothing of what a record means, nor how the connection was
made (``host_listener``).

    text     a record (``wire.host_records``)
    binary   bytes of a tunnel, with their stream before them

An end that says nothing for ``SILENT_LOOKS`` is gone: each says every second that it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from pliant.agent.hosts.tunnels import Tunnels
from pliant.core.values import NodeId
from pliant.machine.event_loop import cancelled
from pliant.machine.interfaces import send_again_soon
from pliant.wire.host_records import RECORDS, HostAlive, LinkRecord, TunnelOpened, TunnelRead

LOOK_S = 1.0
"""Between two signs of life, and two looks for one of the other end, in seconds."""

SILENT_LOOKS = 5
"""Looks in a row that find nothing, after which the other end is gone.  Looks, not seconds: while
this process is stopped none is made."""

MOST_WAITING_BYTES = 1 << 20
"""Of tunnels, on their way to the connection; what a socket brings waits in it meanwhile."""

MOST_RECORDS = 100
"""Waiting, with which a link has no room for what can wait."""

_log = logging.getLogger(__name__)


class HostLink:
    """One end of it; ``run`` until it ends, once."""

    def __init__(self, connection: Connection, other: NodeId, *, devices: int = 0) -> None:
        """``devices``: those of the other end, if it is a part."""
        self.other = other
        self.devices = devices
        self.tunnels = Tunnels(say=self.say, write=self._write)
        self._on_record: Callable[[LinkRecord], None] = lambda record: None
        self._connection = connection
        self._outbox: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._waiting = 0
        self._has_drained = asyncio.Event()
        self._silence = 0
        self.why = "it has ended the connection"
        """Why the link has ended, of the other end."""

        self.is_silent = False
        """It has ended as nothing was heard for too long."""

        self.ended = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Whether what is said is soon there."""
        return self._outbox.qsize() < MOST_RECORDS

    def attach(self, on_record: Callable[[LinkRecord], None]) -> None:
        """Say who takes what the other end says, but for what is of the link; before ``run``."""
        self._on_record = on_record

    def say(self, record: LinkRecord) -> None:
        """Say something; never blocks, and to an end that is gone it is lost."""
        self._outbox.put_nowait(RECORDS.dump_json(record).decode())

    async def run(self) -> None:
        """Carry until the link ends."""
        tasks = [asyncio.create_task(one) for one in (self._send_all(), self._watch())]
        try:
            if (sock := self._connection.transport.get_extra_info("socket")) is not None:
                send_again_soon(sock)  # none: TLS that has ended knows of no socket
            with suppress(ConnectionClosed):
                async for data in self._connection:
                    self._silence = 0
                    self._take_frame(data)
        except ValueError as error:
            self.why = f"it has said what cannot be read: {str(error).splitlines()[0]:.200}"
        except Exception:  # a boundary: what it says may be whatever its host makes of it
            _log.exception("what %s has said could not be taken", self.other)
            self.why = "it has said what could not be taken"
        finally:
            await cancelled(*tasks)
            self.cut()
            await self.tunnels.close()
            self.ended.set()

    def cut(self) -> None:
        """End the link at once; a second call does nothing."""
        self._connection.transport.abort()

    def _take_frame(self, data: str | bytes) -> None:
        if isinstance(data, bytes):
            self.tunnels.take_frame(data)
            return
        match RECORDS.validate_json(data):
            case HostAlive():
                pass
            case TunnelOpened() as opened:
                self.tunnels.opened(opened)
            case TunnelRead() as read:
                self.tunnels.read(read)
            case record:
                self._on_record(record)

    async def _write(self, frame: bytes) -> None:
        while self._waiting > MOST_WAITING_BYTES:
            self._has_drained.clear()
            await self._has_drained.wait()
        self._waiting += len(frame)
        self._outbox.put_nowait(frame)

    async def _send_all(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                data = await self._outbox.get()
                await self._connection.send(data)
                if isinstance(data, bytes):
                    self._waiting -= len(data)
                    self._has_drained.set()

    async def _watch(self) -> None:
        while self._silence < SILENT_LOOKS:
            self._silence += 1
            self.say(HostAlive())
            await asyncio.sleep(LOOK_S)
        self.is_silent = True
        self.why = f"nothing was heard of it for {SILENT_LOOKS * LOOK_S:g} s"
        self.cut()
