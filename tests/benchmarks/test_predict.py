"""A prediction is what arithmetic on the back of an envelope says, where that is possible."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.calibration import Calibration
from benchmarks.predict import DEVICES, SEEDS, measured, played, predict, stairs
from tests.benchmarks.test_calibration import BEGAN_AT, LOG

from pliant.spec.trace import Change

KNOWN = Calibration(
    step_s={1: 4.0, 2: 2.0, 3: 4 / 3, 4: 1.0},
    num_slots=12,
    samples=24,
    launch_s=3.0,
    start_s=2.0,
    join_pause_s=0.5,
    leave_pause_s=0.25,
    joins=1,
    leaves=1,
)


def changes(*steps: tuple[float, int]) -> list[Change]:
    return [Change(at_s=at_s, devices=devices) for at_s, devices in steps]


def test_devices_that_stay_give_a_step_each_second() -> None:
    found = predict(KNOWN, changes((0.0, 4)), until_s=105.0)

    assert found.resizes == 0
    assert found.samples_per_s == pytest.approx(100 * 24 / 105.0)


def test_each_change_costs_its_pause_and_no_more() -> None:
    trace = changes((0.0, 4), (25.5, 2), (60.5, 4))

    found = predict(KNOWN, trace, until_s=105.0)

    # 21 steps of 1 s until 26.0, steps of 2 s from 26.25 on until 64.25, the first end of one
    # after 62.5; 4 replicas from 64.75 on
    assert found.resizes == 2
    assert found.samples_per_s == pytest.approx((21 + 19 + 40) * 24 / 105.0)


def test_longer_pauses_are_paid_once_for_each_change() -> None:
    trace = changes((0.0, 4), (25.5, 2), (60.5, 4))

    short = predict(KNOWN, trace, until_s=105.0)
    long = predict(replace(KNOWN, join_pause_s=10.5), trace, until_s=105.0)

    assert (short.samples_per_s - long.samples_per_s) * 105.0 == pytest.approx(10 * 24)


def test_what_was_committed_after_the_trace_does_not_count() -> None:
    found = measured(LOG, began_at=BEGAN_AT, until_s=18.0)

    assert (found.samples_per_s, found.resizes) == (7 * 16 / 18.0, 2)


def test_a_trace_is_played_faster_and_the_same_for_a_seed() -> None:
    slow, fast = (played(None, seed=SEEDS[0], scale=scale) for scale in (1.0, 60.0))

    assert [one.at_s for one in fast] == [one.at_s / 60 for one in slow]
    assert len({tuple(played(None, seed=seed, scale=1.0)) for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_trace_changes_often_and_never_stops_the_job(seed: int) -> None:
    sizes = [one.devices for one in played(None, seed=seed, scale=1.0)]

    assert len(sizes) > 12
    assert {1, 2} & set(sizes)
    assert min(sizes) >= 1


def test_the_stairs_have_each_size_and_changes_of_both_kinds() -> None:
    steps, until_s = stairs()

    assert {one.devices for one in steps} == set(range(1, DEVICES + 1))
    assert until_s < 300
