"""Every ``tests/scenarios/*.txt`` plays back to exactly the transcript it contains.

Refresh after an intended change with ``pytest --rewrite`` and read the difference; it is the core
alone that says what is right.  A live coordinator, with live agents whose workers are fakes, plays
those in which agents do more than pass on what they hear (``not_played.SHELLS_DIFFER``), and of
every other kind of line one file.
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
    ALSO_LIVE,
    LOST_ORDERS,
    NOT_SAID_BY_AGENTS,
    SHELLS_DIFFER,
)
from tests.support.player import CoreAlone, play

from pliant.coordinator import nodes
from pliant.core.job import controller
from pliant.core.job.state import JobSettings
from pliant.http.server import Server

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))

ELSEWHERE = re.compile("^(state|register) ", re.MULTILINE)
WHOLE = [path for path in SCENARIOS if not ELSEWHERE.search(path.read_text())]
"""Those that begin where a job begins; from elsewhere only the core can go on."""

LIVE = [
    path
    for path in WHOLE
    if path.stem in {*LOST_ORDERS, *NOT_SAID_BY_AGENTS, *ALSO_LIVE}
    or SHELLS_DIFFER.search(path.read_text())
]

OPTION = re.compile(r" ([a-z_]+=)")

each_scenario = pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
each_live_scenario = pytest.mark.parametrize("path", LIVE, ids=lambda path: path.stem)


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


@each_live_scenario
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


def test_what_is_not_played_is_in_a_scenario() -> None:
    stems = {path.stem for path in SCENARIOS}

    assert {*LOST_ORDERS, *NOT_SAID_BY_AGENTS} <= stems


def test_each_kind_of_line_is_played_live() -> None:
    kinds = {path: _kinds(path.read_text()) for path in WHOLE}

    assert set().union(*(kinds[path] for path in LIVE)) == set().union(*kinds.values())
    others = [path for path in LIVE if path.stem not in ALSO_LIVE]
    for stem, kind in ALSO_LIVE.items():
        assert not any(kind in kinds[path] for path in others)
        assert any(path.stem == stem and kind in kinds[path] for path in LIVE)


def _kinds(text: str) -> set[str]:
    """Return what the lines of a file are about, events and answers, and with which options."""
    kinds = set()
    for line in text.splitlines():
        is_event = line.startswith("at ")
        if is_event or line.startswith("  "):
            words = line.split()[2 * is_event :]
            number = 2 if words[0] == "exit" and is_event else 1 if words[0] == "old" else 0
            kind = ("" if is_event else "> ") + words[0] + (f" {words[number]}" if number else "")
            kinds |= {kind, *(f"{kind} {name}" for name in OPTION.findall(line))}
    return kinds
