"""One agent's connection, from the coordinator's side.

Owns the WebSocket of one agent: who may open it, what may be said on it, the queue of commands
that go down.  Knows nothing of what is said: messages go to the driver.
"""

from __future__ import annotations

import asyncio
import contextlib

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from pliant.coordinator.driver import Driver
from pliant.core.vocabulary import Command, Exited, Incarnation, NodeJoined
from pliant.wire.codec import AGENT_NOTES, WORKER_EVENTS, WORKER_NOTES, Refusal, decode, encode

HELLO_S = 10.0
"""Longest wait for an agent to say who it is, in seconds."""

MAX_QUEUED = 10_000
"""Commands that may wait for a slow agent; with more it is cut off, and comes back or is lost."""

_MAY_SAY = WORKER_EVENTS | WORKER_NOTES | AGENT_NOTES | {Exited, NodeJoined}

_POLICY_VIOLATION = 1008
_TRY_AGAIN_LATER = 1013


class AgentChannel:
    """Commands to one agent, in order."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    def send(self, command: Command, incarnation: Incarnation) -> None:
        """Queue a command; never blocks."""
        self._queue.put_nowait(encode(command, incarnation).decode())

    async def write(self) -> None:
        """Write what is queued until cancelled or cut off."""
        while self._queue.qsize() < MAX_QUEUED:
            await self._socket.send_text(await self._queue.get())
        await self._socket.close(_TRY_AGAIN_LATER)


async def serve_agent(socket: WebSocket, driver: Driver) -> None:
    """Serve one agent whose token was checked, until its connection ends."""
    await socket.accept()
    joined = await _hello(socket, driver)
    if joined is None:
        await _close(socket)
        return
    channel = AgentChannel(socket)
    driver.attach(joined, channel)
    writer = asyncio.create_task(channel.write())
    try:
        while (data := await _receive(socket)) is not None:
            received = decode(data, _MAY_SAY)
            if isinstance(received, Refusal):
                driver.refuse("agent", received.reason)
            else:
                driver.hear(received.message, joined.node)
    finally:
        driver.detach(joined.node, channel)
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        await _close(socket)


async def _hello(socket: WebSocket, driver: Driver) -> NodeJoined | None:
    """Return the first message if it says who speaks."""
    data = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HELLO_S):
            data = await _receive(socket)
    if data is None:
        return None
    received = decode(data, {NodeJoined})
    if isinstance(received, Refusal):
        driver.refuse("agent", received.reason)
        return None
    return received.message if isinstance(received.message, NodeJoined) else None


async def _receive(socket: WebSocket) -> str | bytes | None:
    """Return the next frame; ``None`` when there is none any more."""
    try:
        frame = await socket.receive()
    except (WebSocketDisconnect, RuntimeError):
        return None
    if frame["type"] != "websocket.receive":
        return None
    data: str | bytes | None = frame.get("text")
    return data if data is not None else frame.get("bytes")


async def _close(socket: WebSocket) -> None:
    if socket.application_state is WebSocketState.CONNECTED:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):
            await socket.close(_POLICY_VIOLATION)
