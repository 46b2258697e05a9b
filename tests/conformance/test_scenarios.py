"""Every ``tests/scenarios/*.txt`` plays back to exactly the transcript it contains, by each driver.

Refresh after an intended change with ``pytest --rewrite`` and read the difference; it is the core
alone that says what is right.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.simulate.replay_core import CoreAlone
from pliant.simulate.replay_player import MakeDriver, play

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))

DRIVERS: dict[str, MakeDriver] = {"core": CoreAlone}


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, driver: str, request: pytest.FixtureRequest) -> None:
    played = play(path.read_text(), DRIVERS[driver])
    if driver == "core" and request.config.getoption("--rewrite"):
        path.write_text(played)
    assert played == path.read_text()
