"""Jobs of an export that could be elastic are made so by their size."""

from __future__ import annotations

import pytest
from tests.simulate.worlds import job

from pliant.simulate.training_run import speed
from pliant.spec.exported_jobs import made_elastic, unix_s


def test_jobs_of_a_size_get_half_to_twice_as_many_and_are_not_ideal_there() -> None:
    small, large, own = made_elastic(
        [job("a", 60.0, 2), job("b", 60.0, 8), job("c", 60.0, 8, max_devices=9)], least=4
    )

    assert (small.is_elastic, own.max_devices) == (False, 9)
    assert (large.min_devices, large.max_devices) == (4, 16)
    assert [speed(large, size) for size in (4, 8, 16)] == pytest.approx([1 / 1.8, 1.0, 1.8])


def test_half_of_the_replicas_are_whole_ones() -> None:
    (one,) = made_elastic([job("a", 60.0, 12, workers=4)], least=8)

    assert (one.min_devices, one.max_devices) == (4, 24)


def test_a_job_of_one_device_cannot_have_half() -> None:
    (one,) = made_elastic([job("a", 60.0)], least=1)

    assert (one.min_devices, one.max_devices) == (1, 2)


def test_times_are_in_utc_unless_they_say_where() -> None:
    plain, zulu, berlin = map(
        unix_s, ("2026-10-01T08:00:00", "2026-10-01T08:00:00Z", "2026-10-01T10:00:00+02:00")
    )

    assert plain == zulu == berlin
    assert unix_s("8 o'clock") is None
