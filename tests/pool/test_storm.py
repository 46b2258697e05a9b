"""Whatever happens, no device is used by two, and every job ends with the right bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pool.box import Box, box, until
from tests.pool.pool_storm import PoolStorm, PoolWeather
from tests.processes import elastic

from pliant.observe.audit import audit_run

pytestmark = [pytest.mark.processes]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Box]:
    with box(tmp_path) as lent:
        yield lent


@pytest.mark.timeout(60)
def test_a_small_storm_of_claims_uses_no_device_twice(here: Box) -> None:
    storm = PoolStorm(
        here, PoolWeather(seed=7, events=25, jobs=0, devices=4, notice_s=1.0, pause_s=0.05)
    )
    storm.claim()
    until(lambda: here.used() != set(), "a claim has devices, however slow the machine is")

    storm.rage()
    storm.clear()

    check(storm)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_storm_of_200_events_uses_no_device_twice_and_ends_with_the_same_bits(
    here: Box, seed: int
) -> None:
    weather = PoolWeather(seed=seed, events=200, jobs=8)
    storm = PoolStorm(here, weather)

    storm.rage()
    storm.clear()

    check(storm)
    digest = elastic.reference("gpt", weather.steps)
    for job in storm.jobs.values():
        assert storm.digests(job) == {digest}, job.name
        audit = audit_run(job.out)
        assert audit.exactly_once, audit.problems


def check(storm: PoolStorm) -> None:
    until(lambda: storm.box.used() == set(), f"nobody uses a device: {storm.said()}")
    until(lambda: storm.box.claims() == {}, f"nobody is left: {storm.said()}")
    assert storm.box.status()["free"] == storm.weather.devices
    seen = storm.watched()
    assert seen["violations"] == [], storm.said()
    assert seen["changes"] > 0
    assert seen["looks"] > 10
