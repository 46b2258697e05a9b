"""What tests of an agent share."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.agent.world import Play, played


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return partial(played, tmp_path)
