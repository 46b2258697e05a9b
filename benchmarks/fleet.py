"""Simulated agents for ``benchmarks.load``: real connections, one simulated worker each.

Owns what an agent and its worker would say, and as little time as possible for it: a worker is
ready at once, builds any group at once, and commits steps by the clock of its fleet.  Must not know
what is measured; it writes down which commands came when.

A WebSocket of a few lines (a client may mask with zeros, which leaves the text as it is).  Agents
in one process read one after the other, which a thousand hosts do not, so a command has come when
the kernel says that it has: on loopback that is when the coordinator has handed it over.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from pliant.core.agreement import NodeFacts
from pliant.core.events import (
    Exited,
    ExitKind,
    NodeJoined,
    Prepared,
    Progressed,
    Running,
    Spare,
    Switched,
)
from pliant.core.heartbeats import HEARTBEAT_S
from pliant.core.values import (
    NO_GENERATION,
    AgentLife,
    Generation,
    Incarnation,
    NodeId,
    ReplicaId,
)
from pliant.wire.codec import Message, encode
from pliant.wire.framing import unpacked
from pliant.wire.messages import Alive, Committed, Started

ALIVE_S = 1.0
"""Of an agent, in seconds, unless its coordinator wants fewer signs of life."""

LINGER_S = 0.1
"""How long a worker lets what is not urgent wait for company, in seconds."""

LOOK_S = 0.05
"""Between two looks whose signs of life are due, in seconds."""

_HEAD = (
    "GET /v1/agents HTTP/1.1\r\nHost: fleet\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Authorization: Bearer {token}\r\n\r\n"
)
_TEXT, _BINARY = 0x81, 0x82
_MASKED = 0x80
_NO_MASK = bytes(4)

_STAMP = struct.Struct("@ll")
_STAMPED = 35
"""``SO_TIMESTAMPNS`` of Linux, which Python does not name: messages come with when they came."""

_READ_BYTES = 1 << 17
_NO_LINGER = struct.pack("ii", 1, 0)
"""Closing resets the connection."""

_GENERATION = re.compile(rb'"generation":(\d+)')
_TYPE = re.compile(rb'"type":"(\w+)"')


@dataclass(slots=True)
class Frame:
    """A command that has arrived."""

    at_s: float
    kind: str
    node: int
    generation: int


class Agent:
    """One agent of a fleet, and its worker if it has one."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet = fleet
        self.number = number
        self.node = NodeId(f"n{number}")
        self.replica: ReplicaId | None = None
        self.generation = 0
        self.is_gone = False
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._read = bytearray()
        self._unsent = bytearray()
        self._is_open = False
        spread_s = number * 17 % 100 / 100
        self._next_alive_s = self._next_beat_s = time.monotonic() + spread_s
        self._num_alive = 0

    async def connect(self) -> None:
        """Ask for a WebSocket."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, _STAMPED, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await self._loop.sock_connect(sock, self.fleet.address)
        self._socket = sock
        self._loop.add_reader(sock, self._on_readable)
        self._write(_HEAD.format(token=self.fleet.token).encode())

    def say(self, *messages: Message) -> None:
        """Send messages, in one write."""
        self.fleet.note_said(messages)
        self._write(b"".join(map(_frame, messages)))

    def die(self) -> None:
        """Let the worker be killed; its agent says so."""
        self._exit(ExitKind.SIGNAL, "SIGKILL")

    def vanish(self) -> None:
        """Let the node be gone: its connection is reset."""
        self.is_gone = True
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._close()

    def cut_off(self) -> None:
        """Let nothing of the node come any more, though its connection stays."""
        self.is_gone = True
        if self._socket is not None:
            self._loop.remove_reader(self._socket)

    def give_signs(self, now_s: float) -> None:
        """Say what is due: as an agent and a worker do that know how often it is wanted."""
        if not self._is_open:
            return
        said: list[Message] = []
        if now_s >= self._next_alive_s:
            self._next_alive_s += max(ALIVE_S, self.fleet.signs_every_s)
            said.append(Alive(node=self.node, refused=0))
            if self._num_alive % 5 == 0:
                replicas = () if self.replica is None else (self.replica,)
                said.append(Running(node=self.node, replicas=replicas))
            self._num_alive += 1
        if now_s >= self._next_beat_s and self.replica is not None:
            self._next_beat_s += max(HEARTBEAT_S, self.fleet.signs_every_s)
            said.append(self._beat(self.replica))
        if said:
            self.say(*said)

    def commit(self, step: int, step_s: float) -> None:
        """Say that a step is committed."""
        if self.replica is not None:
            self.say(
                Committed(
                    replica=self.replica,
                    generation=Generation(self.generation),
                    step=step,
                    mono_s=time.monotonic(),
                    loss=1.0,
                    grad_norm=None,
                    samples=self.fleet.num_slots,
                    step_s=step_s,
                )
            )

    # --- its connection --------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        if self._socket is None:
            return
        had_unsent = bool(self._unsent)
        self._unsent += data
        if not had_unsent:
            self._send_rest()
            if self._unsent and self._socket is not None:
                self._loop.add_writer(self._socket, self._on_writable)

    def _on_writable(self) -> None:
        self._send_rest()
        if not self._unsent and self._socket is not None:
            self._loop.remove_writer(self._socket)

    def _send_rest(self) -> None:
        assert self._socket is not None
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._close()

    def _on_readable(self) -> None:
        """Obey what has come whole."""
        if self._socket is None:
            return
        try:
            data, notes, _, _ = self._socket.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_STAMP.size))
        except BlockingIOError:
            return
        except OSError:
            data, notes = b"", []
        if not data:
            self._close()
            return
        self._read += data
        if not self._is_open and not self._has_opened():
            return
        at_s = _moment_of(notes)
        while (message := self._next_message()) is not None:
            self._obey(message, at_s)

    def _close(self) -> None:
        """Note that the connection has ended."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
        self._socket, self._is_open = None, False
        if not self.is_gone:
            self.fleet.lost.append(self.number)

    def _has_opened(self) -> bool:
        end = self._read.find(b"\r\n\r\n")
        if end < 0:
            return False
        assert self._read.startswith(b"HTTP/1.1 101"), bytes(self._read)
        del self._read[: end + 4]
        self._is_open = True
        life = AgentLife(boot=self.number + 1, uptime=1, at=1)
        self.say(NodeFacts(boot=self.number + 1), NodeJoined(node=self.node, devices=1, life=life))
        return True

    def _next_message(self) -> bytes | None:
        read = self._read
        if len(read) < 2:
            return None
        size, begin = read[1], 2
        if size > 125:
            begin = 4 if size == 126 else 10
            if len(read) < begin:
                return None
            size = int.from_bytes(read[2:begin], "big")
        if len(read) < begin + size:
            return None
        message, opcode = bytes(read[begin : begin + size]), read[0]
        del read[: begin + size]
        if opcode == _BINARY:
            return _unpacked(message)
        return message if opcode == _TEXT else b'{"type":"close"}'

    # --- what an agent and its worker do --------------------------------------------------

    def _obey(self, message: bytes, at_s: float) -> None:
        kind = _found(_TYPE, message).decode()
        if kind == "heard":
            self.fleet.signs_every_s = json.loads(message)["signs_every_s"]
            return
        generation = 0
        if kind in ("prepare", "switch", "reform"):
            generation = int(_found(_GENERATION, message))
        self.fleet.frames.append(Frame(at_s, kind, self.number, generation))
        match kind:
            case "start_replica":
                self._start(ReplicaId(json.loads(message)["replica"]))
            case "prepare" if self.replica is not None:
                self.say(Prepared(replica=self.replica, generation=Generation(generation)))
            case "switch" | "reform":
                self._enter(generation, message)
            case "end_replica":
                self.die()
            case "release" | "dismiss":
                self._exit(ExitKind.LEFT, "")
            case _:
                self.fleet.others[kind] += 1

    def _start(self, replica: ReplicaId) -> None:
        self.replica = replica
        port = 32768 + self.number * 7919 % 28000
        place = f"10.0.{self.number // 250}.{self.number % 250}:{port}"
        self.say(
            Started(replica=replica, node=self.node, pid=self.number + 1),
            Spare(
                replica=replica,
                calls=0,
                num_slots=self.fleet.num_slots,
                layout="layout",
                endpoint=place,
            ),
        )

    def _enter(self, generation: int, order: bytes) -> None:
        if self.replica is None or self.replica not in self.fleet.members_of(generation, order):
            return
        self.generation = generation
        committed = self.fleet.committed
        entered = Switched(replica=self.replica, generation=Generation(generation), step=committed)
        self.say(entered)

    def _exit(self, kind: ExitKind, detail: str) -> None:
        if self.replica is not None:
            replica, self.replica, self.generation = self.replica, None, 0
            self.say(Exited(replica=replica, kind=kind, detail=detail))

    def _beat(self, replica: ReplicaId) -> Progressed:
        return Progressed(
            replica=replica,
            generation=Generation(self.generation),
            committed=self.fleet.committed if self.generation else 0,
            calls=0,
        )


@dataclass(eq=False)
class Fleet:
    """Agents of one process."""

    address: tuple[str, int]
    token: str
    num_slots: int
    agents: list[Agent] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    """Commands that nobody here obeys."""

    lost: list[int] = field(default_factory=list)
    """Whose connection the coordinator has ended."""

    said_s: dict[tuple[type, Generation], float] = field(default_factory=dict)
    """When something was said last, by its kind and the generation that it is about, if any."""

    committed: int = 0
    signs_every_s: float = 0.0
    _orders: dict[int, frozenset[str]] = field(default_factory=dict)

    async def join(self, count: int) -> None:
        """Connect so many agents."""
        for number in range(len(self.agents), len(self.agents) + count):
            agent = Agent(self, number)
            self.agents.append(agent)
            await agent.connect()

    def note_said(self, messages: tuple[Message, ...]) -> None:
        """Note when something is said that a command may follow from."""
        for message in messages:
            if isinstance(message, Prepared | Switched):
                self.said_s[type(message), message.generation] = time.monotonic()
            elif isinstance(message, Spare):
                self.said_s[Spare, NO_GENERATION] = time.monotonic()

    async def live(self, step_s: float) -> None:
        """Give signs of life, and commit a step now and then, of which every member tells."""
        next_step_s = time.monotonic() + step_s
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            for agent in self.agents:
                if not agent.is_gone:
                    agent.give_signs(now_s)
            if now_s >= next_step_s:
                next_step_s = now_s + step_s
                self._commit(step_s)

    def members_of(self, generation: int, order: bytes) -> frozenset[str]:
        """Return the members of an order: the same for all who hear it."""
        if generation not in self._orders:
            seats = json.loads(order)["order"]["members"]
            self._orders[generation] = frozenset(seat["replica"] for seat in seats)
        return self._orders[generation]

    @property
    def present(self) -> list[Agent]:
        """The agents that are not gone."""
        return [agent for agent in self.agents if not agent.is_gone]

    @property
    def generation(self) -> int:
        """The generation that everybody who is here is in; 0: there is none."""
        found = {agent.generation for agent in self.present}
        return found.pop() if len(found) == 1 else 0

    def arrivals(self, *kinds: str) -> list[Frame]:
        """Return the commands of these kinds that have come."""
        return [frame for frame in self.frames if frame.kind in kinds]

    def _commit(self, step_s: float) -> None:
        newest = max((agent.generation for agent in self.agents), default=0)
        members = [agent for agent in self.present if agent.generation == newest != 0]
        if members and len(members) == len(self._orders[newest]):
            step, self.committed = self.committed, self.committed + 1
            loop = asyncio.get_running_loop()
            for agent in members:  # as a worker sends what is not urgent
                loop.call_later(agent.number % 50 * LINGER_S / 50, agent.commit, step, step_s)


def _frame(message: Message) -> bytes:
    data = encode(message, Incarnation(1))
    size = len(data)
    if size < 126:
        head = bytes((_TEXT, _MASKED | size))
    else:
        head = bytes((_TEXT, _MASKED | 126)) + size.to_bytes(2, "big")
    return head + _NO_MASK + data


@lru_cache(maxsize=4)
def _unpacked(data: bytes) -> bytes:
    """Return an order, which is the same for all: each of a thousand hosts unpacks its own."""
    message = unpacked(data)
    assert isinstance(message, bytes), message
    return message


def _moment_of(notes: list[tuple[int, int, bytes]]) -> float:
    """Return when the last byte came that was read, by the monotonic clock."""
    for level, kind, stamp in notes:
        if (level, kind) == (socket.SOL_SOCKET, _STAMPED):
            seconds, nanoseconds = _STAMP.unpack(stamp)
            ago_s: float = time.time() - (seconds + nanoseconds / 1e9)
            return time.monotonic() - max(ago_s, 0.0)
    return time.monotonic()


def _found(pattern: re.Pattern[bytes], message: bytes) -> bytes:
    found = pattern.search(message)
    return found[1] if found else b"0"
