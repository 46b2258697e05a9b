"""A coordinator and the agent beside it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pliant.agent.agent import Agent
from pliant.core.errors import PermanentError
from pliant.core.values import NodeId
from pliant.run.hosting import Host
from pliant.run.separate import beside


class UnfitAgent:
    node = NodeId("here")
    is_closed = False

    async def serve(self, places: Any, token: str) -> None:
        raise PermanentError("node here has torch 1, and node there has 2")

    async def close(self) -> None:
        self.is_closed = True


@dataclass
class FakeHost:
    others: bool
    url: str = "http://127.0.0.1:7000"
    token: str = "secret"
    notes: list[str] = field(default_factory=list)

    @property
    def driver(self) -> Any:
        return SimpleNamespace(nodes=SimpleNamespace(has_others=lambda node: self.others))

    @property
    def log(self) -> Any:
        return SimpleNamespace(write=lambda kind, text: self.notes.append(text))


@pytest.mark.parametrize("others", [True, False])
def test_a_job_ends_with_the_agent_beside_its_coordinator_only_if_there_are_no_others(
    others: bool,
) -> None:
    host, agent = FakeHost(others), UnfitAgent()

    async def run() -> None:
        async with asyncio.timeout(0.2):
            await beside(cast(Host, host), cast(Agent, agent))

    with pytest.raises(TimeoutError if others else PermanentError):
        asyncio.run(run())

    why = "the host that coordinates runs no replicas: node here has torch 1, and node there has 2"
    assert host.notes == [why] * others
    assert agent.is_closed == others
