"""Several agents with real worker processes, each as a host of its own on loopback, and one test
that says to all of them what a coordinator would.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from tests.agent.world import COLD_SERVER, DEADLINE_S
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from pliant.agent.agent import Agent
from pliant.agent.launcher import start_server
from pliant.agent.node_facts import AgentConfig
from pliant.core.agreement import NodeFacts
from pliant.core.errors import PermanentError
from pliant.core.events import Exited, NodeJoined
from pliant.core.values import Incarnation, NodeId, ReplicaId, TlsFiles
from pliant.wire.codec import Envelope, Message, decode, encode
from pliant.wire.messages import AgentLeft, HostAlone, JoinHosts, Started, Work

R1 = ReplicaId("r1")


@dataclass
class Host:
    """One agent, and what its coordinator has heard of it."""

    name: NodeId
    agent: Agent
    lines: list[tuple[str, str]]
    heard: list[Message] = field(default_factory=list)
    connection: ServerConnection | None = None
    serving: asyncio.Task[None] | None = None

    def all(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def say(self, message: Message) -> None:
        await until(lambda: self.connection, f"{self.name} is connected")
        assert self.connection is not None
        await self.connection.send(encode(message, Incarnation(1)).decode())

    @property
    def joined(self) -> NodeJoined:
        """What it has said of itself last."""
        return self.all(NodeJoined)[-1]  # type: ignore[no-any-return]

    @property
    def facts(self) -> NodeFacts:
        return self.all(NodeFacts)[-1]  # type: ignore[no-any-return]

    async def alone(self, count: int = 1) -> HostAlone:
        """Wait until it says for the so manyth time that it is alone."""
        await until(lambda: len(self.all(HostAlone)) >= count, f"{self.name} is alone")
        return self.all(HostAlone)[count - 1]  # type: ignore[no-any-return]

    async def newest(self) -> HostAlone:
        """Return what it has said last of being alone."""
        await self.alone()
        return self.all(HostAlone)[-1]  # type: ignore[no-any-return]

    async def exits(self, count: int = 1) -> list[Exited]:
        await until(lambda: len(self.all(Exited)) >= count, f"{count} exits")
        return self.all(Exited)


@dataclass
class Joined:
    """The hosts, the first of which is to be the head."""

    hosts: list[Host]
    directory: Path

    @property
    def head(self) -> Host:
        return self.hosts[0]

    @property
    def parts(self) -> list[Host]:
        return self.hosts[1:]

    async def order(self, **changes: Any) -> JoinHosts:
        """Return by what all of them would become one node, once each is alone."""
        said = [await host.newest() for host in self.hosts]
        told = JoinHosts(
            head=self.head.name,
            parts=tuple(host.name for host in self.parts),
            endpoint=said[0].endpoint,
            secret=secrets.token_hex(32),
        )
        return replace(told, **changes)

    async def join(self) -> None:
        told = await self.order()
        for host in self.hosts:
            await host.say(told)
        await self.are_joined()

    async def are_joined(self) -> None:
        for host in self.hosts:
            await until(lambda: host.facts.head == self.head.name, f"{host.name} is joined")  # noqa: B023
        await until(lambda: self.head.joined.devices > 0, "the head has devices")

    async def started(self, count: int) -> list[Started]:
        await until(lambda: len(self.head.all(Started)) >= count, f"{count} workers are started")
        return sorted(self.head.all(Started), key=lambda one: (one.replica, one.worker or 0))

    async def waits(self, *names: str) -> None:
        """Wait until these workers run their script."""
        for name in names:
            await until(
                lambda: any((name, "waiting") in host.lines for host in self.hosts),  # noqa: B023
                f"{name} waits",
            )


async def until(what: Callable[[], object], why: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not what():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(why) from None


def played(
    directory: Path,
    scene: Callable[[Joined], Awaitable[None]],
    script: str,
    *,
    hosts: int = 2,
    workers: int = 2,
    devices: int = 1,
    tls: TlsFiles | None = None,
    grace_s: float = 0.0,
    shared: bool = True,
) -> Joined:
    """Play a scene with so many hosts per replica; nothing that it has started is left."""
    own = [directory / f"host{number}" for number in range(hosts)]
    for each in own:
        each.mkdir()
        (each / "script.py").write_text(script)
    (directory / "script.py").write_text(script)
    work = Work(
        job="j",
        command=(str(directory / "script.py"),),
        cwd=str(directory),
        out=str(directory) if shared else "/nowhere",
        workers_per_replica=workers,
        hosts_per_replica=hosts,
        holder="" if shared else "holder",
        tls=tls,
    )
    return asyncio.run(_main(directory, own, work, scene, devices, grace_s))


def _keep(lines: list[tuple[str, str]], worker: str, line: str) -> None:
    lines.append((worker, line))


async def _main(
    directory: Path,
    own: list[Path],
    work: Work,
    scene: Callable[[Joined], Awaitable[None]],
    devices: int,
    grace_s: float,
) -> Joined:
    before = set(psutil.Process().children())
    hosts = []
    for number, here in enumerate(own):
        lines: list[tuple[str, str]] = []
        config = AgentConfig(
            node=NodeId(f"h{number}"),
            devices=devices,
            environment=dict(os.environ),
            address=f"127.0.0.{number + 1}",
            here=here,
            grace_s=grace_s,
            give_up_s=DEADLINE_S,
            start_server=partial(start_server, arguments=(str(COLD_SERVER),)),
        )
        agent = Agent(config, listener=partial(_keep, lines))
        hosts.append(Host(config.node, agent, lines))
    by_name = {host.name: host for host in hosts}

    async def take(connection: ServerConnection) -> None:
        name = str(connection.request.path).strip("/") if connection.request else ""
        host = by_name[NodeId(name)]
        host.connection = connection
        await connection.send(encode(work, Incarnation(1)).decode())
        with suppress(ConnectionClosed):
            async for data in connection:
                envelope = decode(data)
                assert isinstance(envelope, Envelope), envelope
                host.heard.append(envelope.message)
                if isinstance(envelope.message, AgentLeft):
                    await connection.close()
        if host.connection is connection:
            host.connection = None

    async with serve(take, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        for host in hosts:
            places = (f"ws://127.0.0.1:{port}/{host.name}",)
            serving = host.agent.serve(partial(tuple, places), "token")
            host.serving = asyncio.create_task(serving)
        joined = Joined(hosts, directory)
        try:
            await scene(joined)
        finally:
            for host in hosts:
                await host.agent.close()
                assert host.serving is not None
                host.serving.cancel()
            tasks = [host.serving for host in hosts if host.serving is not None]
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                known = (asyncio.CancelledError, PermanentError, type(None))
                assert isinstance(result, known), result
    left = [child for child in psutil.Process().children() if child not in before]
    assert left == []
    return joined
