"""The price of an event is what a person would read off the moments of its steps."""

from __future__ import annotations

import pytest
from benchmarks.events import cost, normal_s
from benchmarks.harness import Tail


def steps(*moments: tuple[int, float]) -> list[Tail]:
    return [Tail(step=step, at=at, size=0, pid=1) for step, at in moments]


UNDISTURBED = steps(*((step, float(step)) for step in range(20)))


def test_nothing_is_lost_when_nothing_happens() -> None:
    price = cost(UNDISTURBED, asked_at=4.5, first_at=8.0, old_s=1.0, new_s=1.0, batch=16)

    assert (price.pause_s, price.longest_s, price.steps_lost) == (0.0, 0.0, 0)
    assert price.samples_behind == 0.0


def test_a_restart_pays_with_time_and_with_the_steps_it_repeats() -> None:
    before = [(step, float(step)) for step in range(8)]
    after = [(step, 12.0 + step - 5) for step in range(5, 20)]

    price = cost(
        steps(*before, *after), asked_at=7.25, first_at=12.0, old_s=1.0, new_s=1.0, batch=2
    )

    assert price.pause_s == 4.0
    assert price.steps_lost == 3
    assert price.wait_s == 3.75
    assert price.samples_behind == 2 * (10 - 3)


def test_a_slow_preparation_counts_as_samples_behind_but_not_as_pause() -> None:
    slow = steps((0, 0.0), (1, 1.0), (2, 3.0), (3, 5.0), *((n, n + 2.0) for n in range(4, 12)))

    price = cost(slow, asked_at=1.0, first_at=6.0, old_s=1.0, new_s=1.0, batch=1)

    assert price.pause_s == 0.0
    assert price.longest_s == 1.0
    assert price.samples_behind == 2.0


def test_a_normal_step_is_the_median_gap() -> None:
    assert normal_s(steps((0, 0.0), (1, 1.0), (2, 2.0), (3, 9.0))) == pytest.approx(1.0)
