"""Every ``tests/scenarios/operator/*.txt`` plays back to the transcript it contains.

Refresh with ``pytest --rewrite`` and read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.core.operator.play import played

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios" / "operator").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_plays_as_it_is_written(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    now = played(text)
    if request.config.getoption("--rewrite"):
        path.write_text(now)
        return

    assert now == text
