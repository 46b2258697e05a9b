"""A live agent with fake workers, and the place that it connects to.

The agent, its uplink, its devices and its ends of its workers' sockets are the real ones; it does
by itself nothing that the passing of time would make it do.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from tests.conformance.fake_workers import FakeServer, FakeWorker
from tests.conformance.live import FileTime, Told

from pliant.agent import agent, placement, replicas_here, uplink, worker
from pliant.agent.agent import Agent
from pliant.agent.node_facts import AgentConfig
from pliant.coordinator.channel import serve_agent
from pliant.core.events import Exited, ExitKind, NodeJoined
from pliant.core.placement import HOST
from pliant.core.values import Labels, NodeId, ReplicaId
from pliant.http.server import open_socket, url_of
from pliant.machine.interfaces import loopback
from pliant.wire.messages import Ended, Work

DEADLINE_S = 15.0
"""Longest wait for what is on its way, in seconds; it is here within milliseconds, or never."""

NEVER_S = 1e6

KILLED = (ExitKind.SIGNAL, "SIGKILL")
"""How one ends that says nothing about it."""


class Switchboard:
    """The one place that all agents of a process connect to, whose coordinator changes."""

    def __init__(self) -> None:
        self.driver: Told
        self.work: Work
        self.app = FastAPI()
        self.app.add_api_websocket_route("/", self.take)
        self.socket = open_socket(loopback(), 0)
        self.url = url_of(self.socket).replace("http", "ws", 1)

    async def take(self, socket: WebSocket) -> None:
        """Serve an agent."""
        await serve_agent(socket, self.driver, self.work)


async def until(is_so: Callable[[], object], sentence: str) -> None:
    """Wait for what must come."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + DEADLINE_S
    while not is_so():
        assert loop.time() < end_s, f"not within {DEADLINE_S:g} s: {sentence}"
        await asyncio.sleep(0)


def labels_of(node: NodeId, labels: Labels) -> Labels:
    """Return where a node is: each is a host of its own unless its file says otherwise."""
    return labels if HOST in dict(labels) else (*labels, (HOST, node))


class LiveNode:
    """One agent, and what is behind it; made while an event loop runs."""

    def __init__(self, joined: NodeJoined, url: str, here: Path) -> None:
        self.name = joined.node
        self.is_cut_off = False
        self._server: FakeServer | None = None
        self.agent = Agent(
            AgentConfig(
                node=joined.node,
                devices=joined.devices,
                environment=dict(os.environ),
                here=here,
                labels=labels_of(joined.node, joined.labels),
                give_up_s=NEVER_S,
                start_server=self._start_server,
            )
        )
        self._url = url
        self._serving = asyncio.create_task(self.agent.serve(self._places, "token"))

    def _start_server(self, control: int, **settings: Any) -> FakeServer:
        self._server = FakeServer(control, **settings)
        return self._server

    def _places(self) -> tuple[str, ...]:
        if self.is_cut_off:
            raise OSError("it is cut off")
        return (self._url,)

    @property
    def server(self) -> FakeServer:
        """Its fork server; it has one as soon as it knows what the job runs."""
        assert self._server is not None
        return self._server

    @property
    def workers(self) -> dict[ReplicaId, FakeWorker]:
        """Those that live."""
        return {} if self._server is None else self._server.workers

    @property
    def runs(self) -> Sequence[ReplicaId]:
        """What its agent runs, or will when a device is free."""
        return self.agent._replicas.names()

    @property
    def is_connected(self) -> bool:
        """Whether it has a coordinator."""
        return self.agent.is_connected and not self.is_cut_off

    def has_heard_of(self, replica: ReplicaId) -> bool:
        """Whether its agent has been told to start a replica, and does so if it has room."""
        is_asked = self._server is not None and replica in self._server.started
        here = self.agent._replicas
        return is_asked or replica in here._waiting or replica in here._exits

    def end_process(self, exited: Exited) -> None:
        """Let a worker end, with a last word unless it was killed."""
        if (exited.kind, exited.detail) == KILLED:
            self.server.exit(exited.replica, -9)
            return
        last = Ended(replica=exited.replica, kind=exited.kind, detail=exited.detail)
        self.workers[exited.replica].say(last)
        self.server.exit(exited.replica, 0)

    async def list_what_runs(self, is_heard: Callable[[], object]) -> None:
        """Let its agent say once what it says every few seconds."""
        self.agent._signs = 0
        await _once(self.agent._stay_alive(), is_heard)

    async def look_at_workers(self, is_heard: Callable[[], object]) -> None:
        """Let its agent look once which workers live."""
        await _once(self.agent._replicas.speak_for_workers(), is_heard)

    async def be_read(self) -> None:
        """Let its agent hear what it was told, and that all it has said was read."""
        link = self.agent._uplink
        assert link is not None
        for _ in range(10):  # what comes meanwhile may be answered
            self.agent._signs = 1  # not 0: without a list of what runs
            until_heard = link._num_heard + len(link._unheard) + len(link._queue) + 1
            await _once(self.agent._stay_alive(), partial(_has_heard, link, until_heard))
            if not link._queue and not link._unheard:
                return
        raise AssertionError(f"{self.name} is not read: {link._unheard}")

    async def be_ended(self) -> None:
        """Let its agent end because the job has."""
        await self._serving

    async def close(self) -> None:
        """End the agent, with all that it runs."""
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        await self.agent.close()


def _has_heard(link: uplink.Uplink, count: int) -> bool:
    return link._num_heard >= count


async def _once(rounds: Coroutine[Any, Any, None], is_so: Callable[[], object]) -> None:
    """Let an agent do once what it does again and again, until something is so."""
    task = asyncio.create_task(rounds)
    try:
        await asyncio.sleep(0)
        await until(is_so, "what an agent says again and again")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def stop_time(patch: pytest.MonkeyPatch, time: FileTime, shows_life: Callable[[int], bool]) -> None:
    """Let agents say nothing because time passes, and wait for nothing; the time is the file's.

    ``shows_life``: whether the process of this number runs.
    """
    for module, name, value in (
        (agent, "ALIVE_S", NEVER_S),
        (replicas_here, "LOOK_S", NEVER_S),
        (uplink, "SILENT_LOOKS", math.inf),
        (uplink, "RETRY_S", 0.001),
        (uplink, "SLOWEST_RETRY_S", 0.002),
        (uplink, "time", SimpleNamespace(monotonic=time.now_s)),
        (placement, "REST_S", 0.0),
        (worker, "LifeWatch", lambda pid: SimpleNamespace(shows_life=lambda: shows_life(pid))),
    ):
        patch.setattr(module, name, value)
