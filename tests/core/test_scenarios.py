"""Every ``tests/scenarios/*.txt`` plays back to exactly the transcript it contains.

Refresh after an intended change with ``pytest --rewrite`` and read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.testing.scenario import play

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    played = play(path.read_text())
    if request.config.getoption("--rewrite"):
        path.write_text(played)
    assert played == path.read_text()
