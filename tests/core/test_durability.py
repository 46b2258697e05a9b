"""When a run's state is made durable."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core import durability
from pliant.core.durability import Interval, Progress, is_due, parse_interval
from pliant.core.errors import ConfigError

START = Progress(began_s=0.0, kept_at_s=0.0)


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("500steps", Interval(steps=500)),
        ("1step", Interval(steps=1)),
        ("10min", Interval(seconds=600.0)),
        ("90 s", Interval(seconds=90.0)),
        ("1.5h", Interval(seconds=5400.0)),
        ("auto", Interval()),
    ],
)
def test_an_interval_is_a_number_and_a_unit(text: str, interval: Interval) -> None:
    assert parse_interval(text) == interval


@pytest.mark.parametrize("text", ["", "10", "min", "0s", "0steps", "1.5steps", "-3s", "10 parsecs"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="'10min'"):
        parse_interval(text)


def test_steps_are_counted_from_the_jobs_first_and_not_from_the_last_save() -> None:
    late = durability.kept(START, 13, at_s=5.0)

    assert [n for n in range(14, 31) if is_due(Interval(steps=10), late, n, now_s=9.0)] == list(
        range(20, 31)
    )


@given(now_s=st.floats(0, 1e6), seconds=st.floats(1e-3, 1e5))
def test_a_time_is_over_when_it_has_passed_since_the_last_snapshot(
    now_s: float, seconds: float
) -> None:
    progress = durability.kept(START, 3, at_s=10.0)

    assert is_due(Interval(seconds=seconds), progress, 4, now_s=now_s) == (now_s - 10.0 >= seconds)


@given(st.builds(Interval, seconds=st.floats(1e-3, 1e3)) | st.builds(Interval))
def test_a_state_that_is_durable_is_never_saved_again(interval: Interval) -> None:
    progress = durability.kept(START, 7, at_s=0.0)

    assert not is_due(interval, progress, 7, now_s=math.inf)


def test_what_is_asked_for_is_saved_once_unless_the_storage_refuses() -> None:
    every = parse_interval("1000steps")
    known = Progress(began_s=0.0, kept=5, kept_at_s=0.0)

    assert is_due(every, known, 8, now_s=1.0, asked_after=7)
    assert is_due(every, replace(known, kept=7), 8, now_s=1.0, asked_after=7)
    assert not is_due(every, replace(known, kept=8), 9, now_s=1.0, asked_after=7)
    went_back = replace(known, kept=1)  # to an older one: what was asked for is not of these steps
    assert [n for n in range(2, 9) if is_due(every, went_back, n, now_s=1.0, asked_after=7)] == [8]
    assert not is_due(every, replace(known, retry_at_s=2.0), 8, now_s=1.0, asked_after=7)


def test_a_failure_is_tried_again_later_and_later_but_never_given_up() -> None:
    progress, waits, now_s = START, [], 0.0
    for _ in range(10):
        progress, wait_s = durability.failed(progress, now_s=now_s)
        waits.append(wait_s)
        assert not is_due(Interval(steps=1000), progress, 1, now_s=now_s + wait_s * 0.99)
        now_s += wait_s
        assert is_due(Interval(steps=1000), progress, 1, now_s=now_s)

    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert durability.unprotected_s(progress, now_s=now_s) == now_s
    assert durability.unprotected_s(durability.kept(progress, 1, at_s=now_s), now_s=now_s) == 0


def test_a_save_that_a_loss_cut_short_is_taken_at_the_next_boundary() -> None:
    quiet = durability.lost(START, was_saving=False)
    owed = durability.lost(START, was_saving=True)

    assert not is_due(Interval(steps=1000), quiet, 1, now_s=0.0)
    assert is_due(Interval(steps=1000), owed, 1, now_s=0.0)


@given(
    cost_s=st.floats(1e-3, 1e3),
    losses=st.integers(0, 100),
    hours=st.floats(0, 1000),
)
def test_an_automatic_interval_costs_less_than_half_or_twice_of_it(
    cost_s: float, losses: int, hours: float
) -> None:
    now_s = hours * 3600
    progress = Progress(began_s=0.0, kept_at_s=0.0, cost_s=cost_s, losses=losses)
    best_s = durability.auto_interval_s(progress, now_s=now_s)
    between_s = durability.loss_interval_s(progress, now_s=now_s)

    def overhead(wait_s: float) -> float:
        return cost_s / wait_s + wait_s / (2 * between_s)

    assert durability.AUTO_MIN_S <= best_s <= durability.AUTO_MAX_S
    if durability.AUTO_MIN_S < best_s < durability.AUTO_MAX_S:
        assert overhead(best_s) <= min(overhead(best_s / 2), overhead(best_s * 2))


def test_its_reason_has_the_numbers_that_made_it() -> None:
    progress = Progress(began_s=0.0, kept_at_s=0.0, cost_s=0.2, losses=3)

    said = durability.explain(Interval(), progress, now_s=3600.0)

    assert said == (
        "a checkpoint every 95 s: a save costs 0.2 s of training, and with 3 losses in 60 min, "
        "and one a day assumed beside them, one is expected every 6.25 h"
    )
    one = durability.explain(Interval(), replace(progress, losses=1), now_s=120.0)
    assert "with 1 loss in 2 min, and one a day assumed beside them, one is expected" in one
