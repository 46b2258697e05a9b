"""A small fleet against a real coordinator: what the large one of ``benchmarks.load`` is timed at.

Real connections and a real register; the workers only talk.  Nothing here is timed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from benchmarks.fleet import Agent, Fleet
from tests.coordinator.drivers import driver_of

from pliant.coordinator.app import create_app
from pliant.coordinator.driver import JobDriver
from pliant.core.job.state import JobSettings
from pliant.core.membership.state import Timeouts
from pliant.core.policy.decide import Policy
from pliant.http.server import Server, open_socket
from pliant.observe.log import EventLog
from pliant.wire.messages import Work

pytestmark = pytest.mark.timeout(120)

AGENTS, GONE = 40, 15
TOKEN = "secret"
LIMIT_S = 60.0
SETTINGS = JobSettings(
    policy=Policy(max_replicas=AGENTS),
    node_s=1.0,
    timeouts=Timeouts(heartbeat_s=4.0),
    restart_budget=1000,
)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so():
            await asyncio.sleep(0.01)


def play(directory: Path, scene: Callable[[Fleet, JobDriver], Awaitable[None]]) -> None:
    """Run a scene with a fleet that is one generation."""

    async def main() -> None:
        log = EventLog(directory / "events.jsonl", job="j")
        driver = driver_of(log, SETTINGS)
        sock = open_socket("127.0.0.1", 0)
        work = Work(job="j", command=("train.py",), cwd="/", out="/")
        app = create_app(driver, work=work, token=TOKEN, events_path=log.path)
        server = Server(app, sock)
        await driver.begin()
        await server.start()
        fleet = Fleet(address=sock.getsockname(), token=TOKEN, num_slots=AGENTS)
        tasks = [asyncio.create_task(driver.run()), asyncio.create_task(fleet.live(0.2))]
        try:
            await fleet.join(AGENTS)
            await until(lambda: fleet.generation > 0 and fleet.committed > 0)
            await scene(fleet, driver)
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for agent in fleet.agents:
                agent.vanish()
            await server.stop()
            log.close()

    asyncio.run(main())


@pytest.mark.parametrize("how", [Agent.vanish, Agent.cut_off])
def test_many_that_are_gone_at_once_make_one_generation(
    tmp_path: Path, how: Callable[[Agent], None]
) -> None:
    async def scene(fleet: Fleet, driver: JobDriver) -> None:
        before = fleet.generation
        fleet.frames.clear()

        for agent in fleet.agents[:GONE]:
            agent.give_signs(math.inf)  # else this machine's pauses are between them
            how(agent)

        await until(lambda: fleet.generation > before)
        await asyncio.sleep(1.0)
        reforms = fleet.arrivals("reform")
        assert {frame.generation for frame in reforms} == {before + 1}
        assert {frame.node for frame in reforms} == set(range(GONE, AGENTS))
        committed = fleet.committed
        await until(lambda: fleet.committed > committed + 2)
        assert driver.board.timeline.generation == before + 1

    play(tmp_path, scene)


def test_each_hears_of_a_death_and_of_the_replacement(tmp_path: Path) -> None:
    async def scene(fleet: Fleet, driver: JobDriver) -> None:
        before = fleet.generation
        fleet.frames.clear()

        fleet.agents[3].die()

        await until(lambda: fleet.generation > before + 1)
        told = {frame.node for frame in fleet.arrivals("reform")}
        assert told == set(range(AGENTS)) - {3}
        assert [frame.node for frame in fleet.arrivals("start_replica")] == [3]
        for kind in ("prepare", "switch"):
            told = {frame.node for frame in fleet.arrivals(kind)}
            assert told == set(range(AGENTS)), kind
        assert not fleet.lost
        assert sum(driver.refused.values()) == 0

    play(tmp_path, scene)
