"""One agent's connection, from the coordinator's side.

Owns the WebSocket of one agent: who may open it, what may be said on it, that what was read is
acknowledged, and that one that does not read is cut off.  Knows nothing of what is said: messages
go to the driver.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from fastapi import WebSocket, status
from starlette.websockets import WebSocketDisconnect, WebSocketState

from pliant.coordinator.driver import JobDriver
from pliant.core.agreement import NodeFacts, misnamed
from pliant.core.commands import Command
from pliant.core.events import Exited, NodeJoined, NodeLeaving, Running
from pliant.core.values import Incarnation, NodeId
from pliant.http.direct_socket import DirectSocket, direct, frame_of
from pliant.machine.event_loop import within
from pliant.wire.codec import (
    AGENT_NOTES,
    WORKER_EVENTS,
    WORKER_NOTES,
    Message,
    Refusal,
    SameWords,
    decode,
    encode,
)
from pliant.wire.framing import packed
from pliant.wire.messages import Alive, CoordinatorNote, Heard, Unfit, Work

HELLO_S = 10.0
"""Longest wait for an agent to say who it is, in seconds."""

MOST_UNSENT_BYTES = 4 << 20
"""What may wait for a slow agent, 300 orders of 1,000 members; with more it is cut off, and comes
back or is lost."""

HEARD_EVERY = 100
"""Messages after which an agent is told that they were read, if it does not ask with Alive."""

UNREADABLE = (
    "the coordinator cannot read what this agent says of itself ({}); a job needs the same pliant "
    "on every node"
)

_log = logging.getLogger(__name__)

_SAID_BY_AGENTS = {Exited, NodeJoined, NodeLeaving, Running}

_MAY_SAY = WORKER_EVENTS | WORKER_NOTES | AGENT_NOTES - {NodeFacts} | _SAID_BY_AGENTS

_answers = SameWords(_MAY_SAY)
"""What many say of one order is read once."""

_SIGNS = (Alive, Running)
"""What comes again and again in the same words of one agent."""

_KEPT_SIGNS = 8
"""How many of one agent's are known by their bytes."""


@lru_cache(maxsize=4)
def _frame_of(message: bytes) -> bytes:
    """Return the frame of a message; a command to many is the same frame for all."""
    small = packed(message)
    return frame_of(message) if small is None else frame_of(small, is_text=False)


class AgentChannel:
    """Both ways of one connection: commands in order, and what one agent says of itself and its
    replicas, which is told how much of it was read.
    """

    def __init__(self, socket: DirectSocket, node: NodeId, driver: JobDriver) -> None:
        self._socket = socket
        self._node = node
        self._driver = driver
        self._count = 0
        self._signs: dict[bytes, Message] = {}

    def send(self, command: Command | CoordinatorNote, incarnation: Incarnation) -> None:
        """Send a command, or what goes with them; never blocks."""
        self.send_encoded(encode(command, incarnation))

    def send_encoded(self, message: bytes) -> None:
        """Send what is encoded already: it goes to many agents."""
        self._socket.send_frame(_frame_of(message))
        if self._socket.num_unsent > MOST_UNSENT_BYTES:
            self._socket.cut_off()

    def hang_up(self) -> None:
        """End the connection, whatever the agent does."""
        self._socket.hang_up()

    def take_message(self, data: bytes) -> None:
        """Take one message."""
        driver, is_sign = self._driver, False
        message = self._message_of(data)
        if message is None:
            pass
        elif not driver.nodes.is_current(self._node, self):
            self.hang_up()  # it says so again on its new connection
            return
        elif not driver.nodes.may_say(self._node, message):
            driver.refuse("agent", f"{self._node} speaks of what runs on another node")
        else:
            try:
                driver.receive(message)
            except Exception:  # a boundary: this agent is cut off, the job goes on
                _log.exception("a message of %s could not be taken", self._node)
                self.hang_up()
                return
            driver.nodes.note_speech(self._node)
            is_sign = isinstance(message, Alive)
        self._count += 1
        if is_sign or self._count % HEARD_EVERY == 0:
            heard = Heard(count=self._count, signs_every_s=driver.core.signs_every_s)
            self.send(heard, driver.incarnation)

    def _message_of(self, data: bytes) -> Message | None:
        """Read a message; a sign of life in the same bytes as before says the same."""
        if data in self._signs:
            return self._signs[data]
        message = _answers.read(data)
        if isinstance(message, Refusal):
            self._driver.refuse("agent", message.reason)
            return None
        if isinstance(message, _SIGNS):
            if len(self._signs) == _KEPT_SIGNS:
                self._signs.clear()
            self._signs[data] = message
        return message


async def serve_agent(
    socket: WebSocket, driver: JobDriver, work: Work, *, certified: Collection[str] | None = None
) -> None:
    """Serve one agent whose token was checked, until its connection ends.

    It is told what the job runs before anything else.  ``certified``: which names its node may
    have; None: any.
    """
    await socket.accept()
    facts, joined = await _hello(socket, driver)
    if joined is None:
        await _close(socket)
        return
    if work.hosts_per_replica > 1 and facts.head != joined.node:
        joined = replace(joined, devices=0)  # it has said so before it knew what the job runs
    await driver.nodes.may_come(joined)
    why = None if certified is None else misnamed(joined.node, certified)
    why = why or await driver.nodes.taken_by(joined)
    differs = driver.nodes.disagreement(joined.node, facts)
    if differs is not None and joined.replicas:  # it was taken before who is here: never drop those
        driver.log.write("note", text=f"node {joined.node} runs replicas, and stays: {differs}")
    else:
        why = why or differs
    if why is not None:
        driver.log.write("node_refused", node=joined.node, reason=why)
        await _turn_away(socket, driver, why)
        await _close(socket)
        return
    connection = direct(socket)
    channel = AgentChannel(connection, joined.node, driver)
    channel.send(work, driver.incarnation)
    driver.attach(joined, channel)
    driver.learn(joined, facts)
    try:
        await connection.hand_over(channel.take_message)
    finally:
        driver.detach(joined.node, channel)
        await _close(socket)


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
