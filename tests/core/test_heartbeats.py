"""Many give signs of life less often, and what falls silent together is found so together."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.heartbeats import HEARTBEAT_S, MOST_PER_S, NEVER, found_at_s, interval_s

DUE_S = st.floats(0, 1e6)


@pytest.mark.parametrize(
    ("count", "silence_s", "every_s"),
    [(0, 10.0, 0.5), (200, 10.0, 0.5), (1000, 10.0, 2.5), (5000, 10.0, 2.5), (1000, 4.0, 1.0)],
)
def test_more_give_signs_less_often_but_four_in_what_counts_as_silence(
    count: int, silence_s: float, every_s: float
) -> None:
    assert interval_s(count, silence_s) == every_s


@given(count=st.integers(0, 1000))
def test_a_coordinator_hears_no_more_than_it_can(count: int) -> None:
    assert count / interval_s(count) == pytest.approx(min(MOST_PER_S, count / HEARTBEAT_S))
    assert interval_s(count) >= HEARTBEAT_S


def test_nobody_is_found_silent_where_nobody_can_be() -> None:
    assert found_at_s([]) == NEVER
    assert found_at_s([NEVER, NEVER]) == NEVER


def test_one_that_is_silent_by_itself_waits_for_nobody() -> None:
    assert found_at_s([10.0]) == 10.0
    assert found_at_s([10.0, 10.8, NEVER]) == 10.0


def test_those_that_are_silent_since_one_moment_are_found_at_one() -> None:
    assert found_at_s([10.0, 10.3, 10.5, 10.8]) == 10.5


@given(due_s=st.lists(DUE_S, min_size=1))
def test_the_first_is_found_within_an_interval_however_many_follow(due_s: list[float]) -> None:
    at_s = found_at_s(due_s)

    assert at_s in due_s
    first_s = min(due_s)
    assert first_s <= at_s <= first_s + interval_s(len(due_s)) + HEARTBEAT_S / 2 + math.ulp(at_s)
