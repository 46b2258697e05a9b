"""Every ``tests/scenarios/pools/*.txt`` plays back to the transcript it contains, by each driver.

The core alone says what is right; a simulated cluster, and what drives a pool live, must tell the
same claimants the same.  Refresh with ``pytest --rewrite`` and read the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.pool_scenario import MakePool, Teller, core_alone, play_pool
from tests.support.recorded_pool import SceneTime, allocator_of
from tools.replay_log import POOL_ANSWERS

from pliant.core.allocation import Action, Event
from pliant.core.allocation.kinds import PoolBeginning, begun
from pliant.core.allocation.values import Actions
from pliant.observe.core_values import value_of
from pliant.observe.reading import read
from pliant.simulate.simulated_pool import SimulatedPool

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios" / "pools").glob("*.txt"))


class Everybody(dict[str, Any]):
    """Claimants of any name, who remember what they are told."""

    def __init__(self) -> None:
        self.told: list[Action] = []

    def get(self, name: str, default: Any = None) -> Any:
        return self

    def follow(self, action: Action) -> None:
        self.told.append(action)


def simulated(beginning: PoolBeginning, now_s: float) -> Teller:
    """Drive it as a simulated cluster does."""
    pool = SimulatedPool(beginning.devices)
    pool.core = begun(beginning, now_s=now_s)
    pool.claimants = everybody = Everybody()

    def tell(event: Event, now_s: float) -> Actions:
        everybody.told.clear()
        pool.pass_time(now_s)
        pool.tell(event)
        pool.settle()
        return tuple(everybody.told)

    return tell


def live(path: Path) -> MakePool:
    """Drive it as a pool that runs does, and read the answers in its log."""

    def make(beginning: PoolBeginning, now_s: float) -> Teller:
        time = SceneTime()
        time.now_s = now_s
        allocator = allocator_of(path, beginning, time)

        def tell(event: Event, now_s: float) -> Actions:
            time.now_s = now_s
            before = len(read(path))
            allocator.apply(event)
            said = read(path)[before:]
            return tuple(
                value_of(Action, {**record, "is": record["kind"]})
                for record in said
                if record["kind"] in POOL_ANSWERS
            )

        return tell

    return make


DRIVERS: dict[str, Callable[[Path], MakePool]] = {
    "core": lambda _: core_alone,
    "simulate": lambda _: simulated,
    "live": live,
}


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_of_a_pool(
    path: Path, driver: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    played = play_pool(path.read_text(), DRIVERS[driver](tmp_path / "events.jsonl"))
    if driver == "core" and request.config.getoption("--rewrite"):
        path.write_text(played)

    assert played == path.read_text()
