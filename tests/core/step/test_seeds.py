"""Each place where random numbers are drawn has a seed of its own."""

from __future__ import annotations

import enum

import pytest

from pliant.core.step.seeds import keys, mix


def test_seeds_are_the_same_everywhere_and_in_every_release() -> None:
    assert mix("slot", 1, 2, 3) == 2422216692


def test_seeds_use_the_low_32_bits_only() -> None:
    seeds = [mix("item", 0, position) for position in range(1000)]

    assert len(set(seeds)) == 1000
    assert max(seeds) < 2**32
    assert max(seeds) > 2**31


def test_coordinates_are_not_run_together() -> None:
    assert len({mix(1, 23), mix(12, 3), mix(123), mix("1", 23), mix("1, 23"), mix(1, 2, 3)}) == 6


def test_any_integer_type_counts_as_the_integer_it_stands_for() -> None:
    class Epoch(enum.IntEnum):
        SECOND = 2

    assert mix(Epoch.SECOND) == mix(2)


def test_a_float_is_no_coordinate() -> None:
    with pytest.raises(TypeError):
        mix(1.5)  # type: ignore[arg-type]


def test_keys_are_eight_different_64_bit_numbers() -> None:
    assert len(set(keys("order", 1, 2))) == 8
    assert max(keys("order", 1, 2)) < 2**64
