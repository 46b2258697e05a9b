"""One agent with real worker processes, and a coordinator that says what a test tells it to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from pliant.agent.agent import Agent
from pliant.agent.launcher import start_server
from pliant.agent.node_facts import AgentConfig
from pliant.core.commands import EndReplica, StartReplica
from pliant.core.values import Incarnation, NodeId, ReplicaId
from pliant.wire.codec import Envelope, Message, decode, encode
from pliant.wire.messages import Work

NODE = NodeId("here")
DEADLINE_S = 60.0
"""A fork server that starts takes a second of a core, which it may have a twentieth of."""

COLD_SERVER = Path(__file__).parents[1] / "processes" / "cold_server.py"

WAITS = """
import threading
print("waiting", flush=True)
threading.Event().wait()
"""


def start(name: str) -> StartReplica:
    return StartReplica(replica=ReplicaId(name), node=NODE)


def end(name: str) -> EndReplica:
    return EndReplica(replica=ReplicaId(name), reason="test")


@dataclass
class World:
    """One agent, and a coordinator that says what the test tells it to."""

    agent: Agent
    heard: list[Message] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    used: list[dict[int, ReplicaId]] = field(default_factory=list)
    """Who was on which device, each time that the agent said that it has changed."""

    connection: ServerConnection | None = None
    num_connections: int = 0
    serving: asyncio.Task[None] | None = None
    others: frozenset[psutil.Process] = field(
        default_factory=lambda: frozenset(psutil.Process().children())
    )
    """Children of this process that earlier tests keep, multiprocessing's servers among them."""

    def children(self) -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if child not in self.others]

    async def take(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.num_connections += 1
        with suppress(ConnectionClosed):
            async for data in connection:
                envelope = decode(data)
                assert isinstance(envelope, Envelope)
                self.heard.append(envelope.message)

    async def say(self, command: Message, incarnation: int = 1) -> None:
        await self.until(lambda: self.connection)
        assert self.connection is not None
        await self.connection.send(encode(command, Incarnation(incarnation)).decode())

    def all(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def hear(self, kind: type[Message], count: int = 1) -> list[Any]:
        await self.until(lambda: len(self.all(kind)) >= count)
        return self.all(kind)

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not what():
                await asyncio.sleep(0.01)


Scene = Callable[[World], Awaitable[None]]
Play = Callable[..., World]


def played(
    directory: Path,
    scene: Scene,
    script: str = WAITS,
    devices: int = 2,
    give_up_s: float = DEADLINE_S,
    knows: bool = True,
    pooled: bool = False,
    workers: int = 1,
    names: tuple[str, ...] = (),
    server: tuple[str, ...] = (str(COLD_SERVER),),
) -> World:
    """Play a scene, with replicas of so many workers; nothing that it has started is left.

    ``names``: of the devices.
    """
    path = directory / "script.py"
    path.write_text(script)
    work = Work(
        job="j",
        command=(str(path),),
        cwd=str(directory),
        out=str(directory),
        workers_per_replica=workers,
    )
    config = AgentConfig(
        node=NODE,
        devices=devices,
        environment=dict(os.environ),
        work=work if knows else None,
        give_up_s=give_up_s,
        locks=directory if pooled else None,
        device_name=lambda device: names[device] if names else "",
        start_server=partial(start_server, arguments=server),
    )
    return asyncio.run(_main(config, scene))


async def _main(config: AgentConfig, scene: Scene) -> World:
    lines: list[tuple[str, str]] = []
    used: list[dict[int, ReplicaId]] = []
    agent = Agent(
        config,
        listener=lambda replica, line: lines.append((replica, line)),
        on_devices=lambda: used.append(dict(agent.used)),
    )
    world = World(agent, lines=lines, used=used)
    async with serve(world.take, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        world.agent.open()
        places = (f"ws://127.0.0.1:{port}",)
        serving = asyncio.create_task(world.agent.serve(lambda: places, "token"))
        world.serving = serving
        try:
            await scene(world)
        finally:
            await world.agent.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
    assert world.children() == []
    return world
