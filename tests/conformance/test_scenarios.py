"""Every ``tests/scenarios/*.txt`` plays back to exactly the transcript it contains, by each driver.

Refresh after an intended change with ``pytest --rewrite`` and read the difference; it is the core
alone that says what is right.  ``live`` are the coordinators that run jobs.  The simulator has two
drivers: one of single replicas steps the core as here (``core``), the quick one of whole clusters
has no single events and is held to it by ``tests/simulate/test_controlled_job.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.live import LiveCoordinators

from pliant.core.job import controller
from pliant.core.job.state import JobSettings
from pliant.simulate.replay_core import CoreAlone
from pliant.simulate.replay_player import MakeDriver, play

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))

DRIVERS = ("core", "live")


@pytest.fixture
def make(driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeDriver]:
    """Return what makes the driver of this name."""
    if driver == "core":
        yield CoreAlone
        return
    monkeypatch.setattr(controller, "next_deadline_s", lambda job: LiveCoordinators.due_s)
    made: list[LiveCoordinators] = []
    with asyncio.Runner() as runner:

        def live(settings: JobSettings) -> LiveCoordinators:
            made.append(LiveCoordinators(settings, tmp_path, runner))
            return made[-1]

        yield live
        for one in made:
            one.close()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(
    path: Path, driver: str, make: MakeDriver, request: pytest.FixtureRequest
) -> None:
    played = play(path.read_text(), make)
    if driver == "core" and request.config.getoption("--rewrite"):
        path.write_text(played)
    assert played == path.read_text()
