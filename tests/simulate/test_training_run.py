"""How fast a job is at a size, from its slots or from what was measured."""

from __future__ import annotations

import pytest
from tests.simulate.worlds import job

from pliant.simulate.training_run import speed


def test_slots_make_steps_of_the_sizes_that_do_not_divide_them() -> None:
    one = job("gpt", 1.0, 2, num_slots=8)

    assert [speed(one, size) for size in (0, 1, 2, 3, 4, 7, 8)] == [
        0.0, 0.5, 1.0, pytest.approx(4 / 3), 2.0, 2.0, 4.0,
    ]  # fmt: skip


def test_a_curve_is_followed_between_its_points_and_flat_behind_them() -> None:
    one = job("gpt", 1.0, 2, curve=((2, 2.0), (4, 3.0)))

    assert [speed(one, size) for size in (1, 2, 3, 4, 8)] == [0.5, 1.0, 1.25, 1.5, 1.5]
