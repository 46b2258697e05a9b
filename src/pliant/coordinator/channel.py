"""One agent's connection, from the coordinator's side.

Owns the WebSocket of one agent: who may open it, what may be said on it, the queue of commands
that go down.  Knows nothing of what is said: messages go to the driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable

from fastapi import WebSocket, status
from starlette.websockets import WebSocketDisconnect, WebSocketState

from pliant.coordinator.driver import JobDriver
from pliant.core.agreement import NodeFacts
from pliant.core.commands import Command
from pliant.core.events import Exited, NodeJoined, Running
from pliant.core.values import Incarnation
from pliant.machine.event_loop import within
from pliant.wire.codec import AGENT_NOTES, WORKER_EVENTS, WORKER_NOTES, Refusal, decode, encode
from pliant.wire.messages import Alive, CoordinatorNote, Heard, Unfit, Work

HELLO_S = 10.0
"""Longest wait for an agent to say who it is, in seconds."""

MAX_QUEUED = 10_000
"""Commands that may wait for a slow agent; with more it is cut off, and comes back or is lost."""

HEARD_EVERY = 100
"""Messages after which an agent is told that they were read, if it does not ask with Alive."""

UNREADABLE = (
    "the coordinator cannot read what this agent says of itself ({}); a job needs the same pliant "
    "on every node"
)

_log = logging.getLogger(__name__)

_MAY_SAY = WORKER_EVENTS | WORKER_NOTES | AGENT_NOTES - {NodeFacts} | {Exited, NodeJoined, Running}


class AgentChannel:
    """Commands to one agent, in order."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._hung_up = asyncio.Event()

    def send(self, command: Command | CoordinatorNote, incarnation: Incarnation) -> None:
        """Queue a command, or what goes with them; never blocks."""
        self.send_text(encode(command, incarnation).decode())

    def send_text(self, text: str) -> None:
        """Queue what is encoded already: it goes to many agents."""
        self._queue.put_nowait(text)

    def hang_up(self) -> None:
        """End the connection, whatever the agent does."""
        self._hung_up.set()

    async def until_hung_up(self, listening: Awaitable[None]) -> None:
        """Listen until the connection ends, or is ended from this side."""
        tasks = [asyncio.ensure_future(one) for one in (listening, self._hung_up.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def write(self) -> None:
        """Write what is queued until cancelled or cut off."""
        while self._queue.qsize() < MAX_QUEUED:
            await self._socket.send_text(await self._queue.get())
        await self._socket.close(status.WS_1013_TRY_AGAIN_LATER)


async def serve_agent(socket: WebSocket, driver: JobDriver, work: Work) -> None:
    """Serve one agent whose token was checked, until its connection ends.

    It is told what the job runs before anything else.
    """
    await socket.accept()
    facts, joined = await _hello(socket, driver)
    if joined is None:
        await _close(socket)
        return
    channel = AgentChannel(socket)
    why = await driver.taken_by(joined)
    differs = driver.nodes.disagreement(joined.node, facts)
    if differs is not None and joined.replicas:  # it was taken before who is here: never drop those
        driver.log.write("note", text=f"node {joined.node} runs replicas, and stays: {differs}")
    else:
        why = why or differs
    if why is not None:
        driver.log.write("note", text=f"node {joined.node} is not taken: {why}")
        await _turn_away(socket, driver, why)
        await _close(socket)
        return
    channel.send(work, driver.incarnation)
    driver.attach(joined, channel)
    driver.nodes.learn(joined.node, facts)
    writer = asyncio.create_task(channel.write())
    try:
        await channel.until_hung_up(_listen(socket, joined, channel, driver))
    finally:
        driver.detach(joined.node, channel)
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        await _close(socket)


async def _listen(
    socket: WebSocket, joined: NodeJoined, channel: AgentChannel, driver: JobDriver
) -> None:
    """Hand on what one agent says of itself and its replicas, and tell it how much was read."""
    count = 0
    while (data := await _receive(socket)) is not None:
        received = decode(data, _MAY_SAY)
        is_sign = False
        if isinstance(received, Refusal):
            driver.refuse("agent", received.reason)
        elif not driver.nodes.is_current(joined.node, channel):
            return  # it says so again on its new connection
        elif not driver.nodes.may_say(joined.node, received.message):
            driver.refuse("agent", f"{joined.node} speaks of what runs on another node")
        else:
            try:
                driver.receive(received.message)
            except Exception:  # a boundary: this agent is cut off, the job goes on
                _log.exception("a message of %s could not be taken", joined.node)
                return
            driver.nodes.note_speech(joined.node)
            is_sign = isinstance(received.message, Alive)
        count += 1
        if is_sign or count % HEARD_EVERY == 0:
            channel.send(Heard(count=count), driver.incarnation)


async def _hello(socket: WebSocket, driver: JobDriver) -> tuple[NodeFacts, NodeJoined | None]:
    """Return what the first messages say: what the node is like, and who speaks."""
    facts = NodeFacts()
    for allowed in ({NodeFacts, NodeJoined}, {NodeJoined}):
        data = await within(_receive(socket), HELLO_S)
        if data is None:
            break
        received = decode(data, allowed)
        if isinstance(received, Refusal):
            driver.refuse("agent", received.reason)
            await _turn_away(socket, driver, UNREADABLE.format(received.reason))
            break
        if isinstance(received.message, NodeJoined):
            return facts, received.message
        if isinstance(received.message, NodeFacts):
            facts = received.message
    return facts, None


async def _turn_away(socket: WebSocket, driver: JobDriver, why: str) -> None:
    await socket.send_text(encode(Unfit(reason=why), driver.incarnation).decode())


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
            await socket.close(status.WS_1008_POLICY_VIOLATION)
