"""Who is slow computes less: all slots once, never slower than evenly, and no thrashing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pliant.core.step import balance, batching
from pliant.core.step.balance import (
    UNKNOWN_US,
    WINDOW_STEPS,
    Balance,
    Division,
    even_sizes,
    hear_times,
    most_partials,
    pace_of,
    slowness,
    step_us,
)

JOBS = st.integers(1, 48).flatmap(
    lambda slots: st.tuples(
        st.just(slots),
        st.lists(st.integers(1, 10**6), min_size=1, max_size=min(slots, 9)),
        st.integers(1, 3),
    )
)
"""Slots of a step, the time of each replica, slots that one computes at the same time."""


def divide(slots: int, said_us: Sequence[int], *, at_once: int = 1) -> Division:
    return balance.divide(slots, said_us, balance=Balance.SPEED, at_once=at_once)


def after(division: Division, windows: Sequence[Sequence[int]]) -> Division:
    """Hear the same times for one window after another."""
    for pace_us in windows:
        for _ in range(WINDOW_STEPS):
            division = hear_times(division, pace_us)
    return division


def settled(slots: int, pace_us: Sequence[int], at_once: int = 1) -> Division:
    return after(divide(slots, [UNKNOWN_US] * len(pace_us), at_once=at_once), [pace_us])


def all_sizes(slots: int, replicas: int) -> list[tuple[int, ...]]:
    if replicas == 1:
        return [(slots,)]
    return [
        (first, *rest)
        for first in range(1, slots - replicas + 2)
        for rest in all_sizes(slots - first, replicas - 1)
    ]


@example((36, [1000, 1, 1000, 1000], 2))  # the fewest in all are too many for one
@given(JOBS)
def test_every_slot_has_one_owner_and_every_replica_a_slot(
    drawn: tuple[int, list[int], int],
) -> None:
    slots, pace_us, at_once = drawn

    for division in (settled(slots, pace_us, at_once), divide(slots, pace_us, at_once=at_once)):
        owners = batching.ranges_of(division.sizes)
        assert [slot for owned in owners for slot in owned] == list(range(slots))
        assert len(owners) == len(pace_us)
        assert min(division.sizes) >= 1
        needed = max(map(len, batching.partials(slots, owners)))
        assert needed <= most_partials(slots, len(pace_us))


@given(JOBS)
def test_it_is_never_slower_than_evenly_by_its_own_estimate(
    drawn: tuple[int, list[int], int],
) -> None:
    slots, pace_us, at_once = drawn
    evenly = step_us(even_sizes(slots, len(pace_us)), pace_us, at_once)

    for division in (settled(slots, pace_us, at_once), divide(slots, pace_us, at_once=at_once)):
        assert division.step_us <= evenly
        if division.sizes != even_sizes(slots, len(pace_us)):
            assert 10 * division.step_us <= 9 * evenly


@given(
    st.integers(2, 10).flatmap(
        lambda slots: st.tuples(
            st.just(slots), st.lists(st.integers(1, 100), min_size=2, max_size=min(slots, 4))
        )
    )
)
@settings(max_examples=300)
def test_it_is_the_fastest_division_that_memory_is_kept_ready_for(
    drawn: tuple[int, list[int]],
) -> None:
    slots, pace_us = drawn
    most = most_partials(slots, len(pace_us))
    possible = [
        sizes
        for sizes in all_sizes(slots, len(pace_us))
        if max(map(len, batching.partials(slots, batching.ranges_of(sizes)))) <= most
    ]
    best = min(step_us(sizes, pace_us) for sizes in possible)

    found = settled(slots, pace_us).step_us

    assert found == best or 9 * found < 10 * best  # a gain of less than a tenth moves nothing


@given(JOBS, st.integers(0, 2**32))
def test_noise_moves_slots_at_most_once(drawn: tuple[int, list[int], int], seed: int) -> None:
    slots, pace_us, at_once = drawn
    noise = random.Random(seed)
    division = divide(slots, [UNKNOWN_US] * len(pace_us), at_once=at_once)
    seen = [division.sizes]

    for _ in range(6 * WINDOW_STEPS):
        said = [40 * pace + noise.randint(-pace, pace) for pace in pace_us]
        division = hear_times(division, said)
        if division.sizes != seen[-1]:
            seen.append(division.sizes)

    assert len(seen) <= 2


def test_evenly_stays_evenly_and_the_times_are_known() -> None:
    division = balance.divide(8, [30, 10], balance=Balance.EVEN)
    division = after(division, [[31, 11]] * 4)
    assert division.sizes == (4, 4)
    assert division.pace_us == (31, 11)


def test_one_that_takes_three_times_as_long_computes_a_third_as_much() -> None:
    assert settled(8, [30_000, 10_000]).sizes == (2, 6)
    assert settled(16, [10_000, 30_000, 10_000, 10_000]).sizes == (5, 1, 5, 5)


def test_what_changes_back_and_forth_is_followed_less_and_less() -> None:
    division = settled(8, [30, 10])
    changes = []
    for window in range(200):
        before = division.sizes
        division = after(division, [[10, 30] if window // 3 % 2 else [30, 10]])
        if division.sizes != before:
            changes.append(window)

    assert len(changes) < 20
    assert max(changes) - min(changes) > 100  # it still is


def test_after_a_long_calm_it_is_quick_again() -> None:
    division = replace(settled(8, [10, 10]), patience=16, calm=0)
    division = after(division, [[10, 10]] * 32)
    assert division.patience == 1


def test_one_step_that_took_long_moves_nothing() -> None:
    division = divide(8, [UNKNOWN_US] * 2)
    for step in range(WINDOW_STEPS):
        division = hear_times(division, [10_000_000 if step == 3 else 10, 10])
    assert division.sizes == (4, 4)


def test_steps_in_which_somebody_computed_nothing_say_nothing() -> None:
    division = divide(3, [UNKNOWN_US] * 3)
    assert hear_times(division, [30, UNKNOWN_US, 10]) == division


def test_who_comes_anew_is_taken_for_one_in_the_middle() -> None:
    assert divide(8, [30, 10, UNKNOWN_US]).sizes == divide(8, [30, 10, 10]).sizes
    assert divide(32, [20, 10, 40, UNKNOWN_US]).sizes == divide(32, [20, 10, 40, 20]).sizes
    assert divide(8, [10, 10, UNKNOWN_US]).sizes == even_sizes(8, 3)
    assert divide(8, [UNKNOWN_US] * 3).sizes == even_sizes(8, 3)


def test_a_generation_begins_with_what_the_members_say_of_the_one_before() -> None:
    division = settled(8, [30, 10])
    said = [pace_of(division, rank) for rank in range(2)]
    assert divide(8, said).sizes == (2, 6)

    early = hear_times(divide(8, [UNKNOWN_US] * 2), [31, 11])
    assert [pace_of(early, rank) for rank in range(2)] == [31, 11]


def test_what_is_computed_at_once_counts_as_one() -> None:
    """Two at once: five slots take three passes, as six do."""
    assert step_us((5, 3), [10, 10], 2) == 30
    division = settled(12, [30, 10], at_once=2)
    assert division.sizes == (2, 10)
    assert division.step_us == 50


@pytest.mark.parametrize(("slots", "replicas"), [(1000, 64), (4096, 256)])
def test_a_large_job_is_divided_as_any_other(slots: int, replicas: int) -> None:
    pace_us = [30_000 if rank % 16 == 0 else 9_000 + rank for rank in range(replicas)]

    division = settled(slots, pace_us)

    assert sum(division.sizes) == slots
    assert 2 * division.step_us < step_us(even_sizes(slots, replicas), pace_us)


@pytest.mark.parametrize(("slots", "replicas"), [(32, 4), (64, 3), (128, 8)])
def test_one_that_hardly_gets_on_computes_one_slot(slots: int, replicas: int) -> None:
    division = settled(slots, [100] * (replicas - 1) + [100 * slots])

    assert division.sizes[-1] == 1
    assert step_us(division.sizes, division.pace_us) == 100 * slots


def test_one_step_that_took_long_says_nothing_to_the_next_generation() -> None:
    division = hear_times(settled(64, [100] * 4), [100, 100, 100, 1500])

    assert [pace_of(division, rank) for rank in range(4)] == [100] * 4


def said_slow(pace_us: Sequence[int], *, before: int = 0) -> int:
    """Return how slow the first of some says that it is."""
    known = Division(
        num_slots=8,
        sizes=even_sizes(8, len(pace_us)),
        pace_us=tuple(pace_us),
        balance=Balance.EVEN,
        at_once=1,
    )
    return slowness(known, 0, before)


@pytest.mark.parametrize(
    ("pace_us", "before", "tenths"),
    [
        ([19, 10], 0, 0),
        ([20, 10], 0, 20),
        ([16, 10], 20, 15),
        ([14, 10], 20, 0),
        ([30, 10, 20], 0, 30),
        ([10, 30], 0, 0),
        ([UNKNOWN_US, 10], 20, 0),
        ([40, 10, UNKNOWN_US], 20, 0),
        ([40], 20, 0),
    ],
    ids=lambda given: str(given).replace(" ", ""),
)
def test_one_is_slow_from_twice_the_time_of_the_others_until_it_is_near_them(
    pace_us: list[int], before: int, tenths: int
) -> None:
    assert said_slow(pace_us, before=before) == tenths
