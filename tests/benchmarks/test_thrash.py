"""Capacity is a matter of the seed alone, so that policies are compared under the same one."""

from __future__ import annotations

from itertools import islice

import pytest
from benchmarks.thrash import DEVICES, STAYS_S, STILL, stays


@pytest.mark.parametrize("weather", STAYS_S)
def test_the_capacity_of_a_seed_is_the_same_for_every_side(weather: str) -> None:
    first, again = (list(islice(stays(3, weather), 40)) for _ in range(2))
    shortest, longest = STAYS_S[weather]

    assert first == again != list(islice(stays(4, weather), 40))
    assert all(shortest <= stay_s <= longest for _, stay_s in first)


@pytest.mark.parametrize("weather", STAYS_S)
def test_the_capacity_falls_and_comes_back_in_turn(weather: str) -> None:
    numbers = [devices for devices, _ in islice(stays(3, weather), 40)]

    assert set(numbers[1::2]) == {DEVICES}
    assert set(numbers[::2]) == set(range(1, DEVICES))


def test_in_still_weather_nothing_changes() -> None:
    assert next(stays(3, STILL))[0] == DEVICES
