"""The agent's WebSocket to the coordinator: everything up, commands down, again if it breaks.

Owns one connection at a time.  Knows nothing of what is said.  What is said while it is down is
kept, in order, up to a bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, WebSocketException

from pliant.core.errors import PermanentError
from pliant.core.vocabulary import Command, Incarnation
from pliant.wire.codec import COMMANDS, MAX_MESSAGE_BYTES, Message, Refusal, decode, encode

RECONNECT_S = 10.0
"""How long a lost coordinator is looked for, in seconds, before the agent gives up."""

RETRY_S = 0.2
"""Between two attempts to connect, in seconds."""

MAX_KEPT = 10_000
"""Messages kept while there is no connection; the oldest go first."""

_log = logging.getLogger(__name__)

OnCommand = Callable[[Command, Incarnation], None]


class Uplink:
    """A connection that is made again when it breaks."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        greeting: Callable[[], list[Message]],
        on_command: OnCommand,
    ) -> None:
        """``greeting`` words what is said first on every new connection."""
        self.refused = 0
        """Messages of the coordinator that could not be read."""
        self.stale = 0
        """Commands of an older incarnation (R3)."""
        self.incarnation = Incarnation(0)
        self._url = url
        self._token = token
        self._greeting = greeting
        self._on_command = on_command
        self._queue: deque[Message] = deque(maxlen=MAX_KEPT)
        self._something = asyncio.Event()

    def send(self, message: Message) -> None:
        """Queue a message; never blocks."""
        self._queue.append(message)
        self._something.set()

    async def run(self) -> None:
        """Connect and serve until cancelled.

        Raises:
            PermanentError: refused, or not reached for ``RECONNECT_S``.
        """
        loop = asyncio.get_running_loop()
        last_seen_s = loop.time()
        while True:
            try:
                async with connect(
                    self._url,
                    additional_headers={"Authorization": f"Bearer {self._token}"},
                    max_size=MAX_MESSAGE_BYTES,
                    ping_interval=None,  # Alive is the sign of life, and says more
                    proxy=None,
                ) as connection:
                    try:
                        await self._serve(connection)
                    finally:  # however it ended, until now there was a coordinator
                        last_seen_s = loop.time()
            except InvalidHandshake as error:
                raise PermanentError(f"the coordinator refused this agent: {error}") from error
            except (OSError, WebSocketException, TimeoutError) as error:
                if loop.time() - last_seen_s > RECONNECT_S:
                    raise PermanentError(f"no coordinator at {self._url}: {error}") from error
            await asyncio.sleep(RETRY_S)

    async def _serve(self, connection: ClientConnection) -> None:
        """Speak on one connection until it closes."""
        for message in self._greeting():
            await connection.send(encode(message, self.incarnation).decode())
        writer = asyncio.create_task(self._write(connection))
        try:
            async for data in connection:
                self._take(data)
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, connection: ClientConnection) -> None:
        while True:
            await self._something.wait()
            while self._queue:
                await connection.send(encode(self._queue[0], self.incarnation).decode())
                self._queue.popleft()
            self._something.clear()

    def _take(self, data: bytes | str) -> None:
        received = decode(data, COMMANDS)
        if isinstance(received, Refusal):
            self.refused += 1
            _log.warning("refused a message of the coordinator: %s", received.reason)
            return
        if received.incarnation < self.incarnation:
            self.stale += 1
            return
        self.incarnation = received.incarnation
        command: Command = received.message  # type: ignore[assignment]  # decode allows only these
        self._on_command(command, received.incarnation)
