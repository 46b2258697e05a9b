"""Every ``tests/scenarios/*.txt`` plays back to exactly the transcript it contains, by each driver.

Refresh after an intended change with ``pytest --rewrite`` and read the difference; it is the core
alone that says what is right.  Beside it a live coordinator plays them, with live agents whose
workers are fakes, and so does the simulator's driver of single replicas.  Its quick way of whole
clusters has no such events, and is held to that driver by
``tests/conformance/test_controlled_job.py``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.conformance.live import LiveCoordinators
from tests.conformance.live_agents import LiveAgents, exits_of
from tests.conformance.live_node import Switchboard
from tests.conformance.not_played import (
    LOST_ORDERS,
    NOT_SAID_BY_AGENTS,
    NOT_SAID_BY_SIMULATED,
    NOT_SIMULATED,
)
from tests.conformance.simulated import SimulatedReplicas

from pliant.coordinator import nodes
from pliant.core.job import controller
from pliant.core.job.state import JobSettings
from pliant.http.server import Server
from pliant.simulate.replay_core import CoreAlone
from pliant.simulate.replay_player import play

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))

ELSEWHERE = re.compile("^(state|register) ", re.MULTILINE)
WHOLE = [path for path in SCENARIOS if not ELSEWHERE.search(path.read_text())]
"""Those that begin where a job begins; from elsewhere only the core can go on."""

each_scenario = pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
each_whole_scenario = pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)


@each_scenario
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    played = play(path.read_text(), CoreAlone)
    if request.config.getoption("--rewrite"):
        path.write_text(played)

    assert played == path.read_text()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return the loop of all live agents and coordinators: one server is enough for them."""
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.fixture(scope="module")
def switchboard(loop: asyncio.AbstractEventLoop) -> Iterator[Switchboard]:
    """Return the place that live agents connect to."""
    board = Switchboard()
    server = Server(board.app, board.socket)
    loop.run_until_complete(server.start())
    yield board
    loop.run_until_complete(server.stop())


@each_whole_scenario
def test_scenario_with_live_agents(
    path: Path,
    loop: asyncio.AbstractEventLoop,
    switchboard: Switchboard,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = path.read_text()
    made: list[LiveAgents] = []
    monkeypatch.setattr(controller, "next_deadline_s", lambda job: LiveCoordinators.due_s)
    monkeypatch.setattr(nodes, "AGAIN_S", 0.0)  # of time that passes in a file by steps

    def make(settings: JobSettings) -> LiveAgents:
        live = LiveAgents(
            settings,
            tmp_path,
            loop,
            switchboard,
            monkeypatch,
            exits=exits_of(text),
            to_lose=LOST_ORDERS.get(path.stem, []),
        )
        made.append(live)
        return live

    try:
        played = play(text, make)
    except BaseException:
        with suppress(Exception):  # what it has left undone follows from that
            made[0].close()
        raise
    made[0].close()

    assert played == text
    assert set(made[0].told) == set(NOT_SAID_BY_AGENTS.get(path.stem, {}))


@each_whole_scenario
def test_scenario_simulated(path: Path) -> None:
    made: list[SimulatedReplicas] = []

    def make(settings: JobSettings) -> SimulatedReplicas:
        made.append(SimulatedReplicas(settings))
        return made[-1]

    played = play(path.read_text(), make)

    assert played == path.read_text()
    told = {line for line in made[0].told if _verb(line) not in NOT_SIMULATED}
    assert told == set(NOT_SAID_BY_SIMULATED.get(path.stem, {}))


def test_what_is_not_played_is_in_a_scenario() -> None:
    texts = {path.stem: path.read_text() for path in SCENARIOS}
    said = {
        _verb(line.partition(" ")[2].partition(" ")[2])
        for text in texts.values()
        for line in text.splitlines()
        if line.startswith("at ")
    }

    for table in (LOST_ORDERS, NOT_SAID_BY_AGENTS, NOT_SAID_BY_SIMULATED):
        assert set(table) <= set(texts)
    assert set(NOT_SIMULATED) <= said


def _verb(line: str) -> str:
    """Return what a line is about; of an exit how it was."""
    verb, _, rest = line.partition(" ")
    return f"exit {rest.split()[1]}" if verb == "exit" else verb
