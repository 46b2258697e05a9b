"""The order of samples is a permutation of its own for each seed and epoch."""

from __future__ import annotations

import enum
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.step.order import key, keys, mix, permute

TRILLION = 10**12


def order(size: int, *, seed: int = 0, epoch: int = 0) -> list[int]:
    return [permute(at, size=size, key=key(seed, epoch)) for at in range(size)]


@pytest.mark.parametrize("sizes", [range(lo, lo + 100) for lo in range(1, 601, 100)])
def test_every_sample_has_exactly_one_position(sizes: range) -> None:
    for size in sizes:
        assert sorted(order(size, seed=size)) == list(range(size))


@given(seed=st.integers(0, 2**64), size=st.integers(1, 60))
def test_every_seed_gives_a_permutation(seed: int, size: int) -> None:
    assert sorted(order(size, seed=seed)) == list(range(size))


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(order(50, seed=seed, epoch=epoch)) for seed in range(8) for epoch in range(8)}

    assert len(orders) == 64


def test_the_order_is_the_same_everywhere_and_in_every_release() -> None:
    assert order(12, seed=1, epoch=2) == [8, 5, 11, 1, 10, 0, 9, 6, 4, 2, 3, 7]
    far = [permute(at, size=TRILLION, key=key(1, 2)) for at in (0, 1, TRILLION - 1)]
    assert far == [156315955036, 35237114593, 671897156333]


def test_a_trillion_samples_need_no_memory() -> None:
    samples = {permute(at, size=TRILLION, key=key(3, 0)) for at in range(2000)}

    assert len(samples) == 2000
    assert 0 <= min(samples) < TRILLION // 100
    assert TRILLION * 99 // 100 < max(samples) < TRILLION


@pytest.mark.parametrize("size", [2, 3, 10, 30])
def test_each_sample_is_first_about_equally_often(size: int) -> None:
    trials = 200 * size
    first = [permute(0, size=size, key=key(seed, 0)) for seed in range(trials)]

    counts = [first.count(sample) for sample in range(size)]
    assert min(counts) > 120
    assert max(counts) < 280


def test_neighbours_are_not_kept_together() -> None:
    size = 4096
    samples = order(size)

    close = sum(abs(a - b) < 16 for a, b in itertools.pairwise(samples))
    assert close < 80  # 31 on average for a random order; 4095 for none


@pytest.mark.parametrize("position", [-1, 10])
def test_a_position_outside_the_epoch_is_refused(position: int) -> None:
    with pytest.raises(IndexError, match=f"position {position} is outside an epoch of 10 samples"):
        permute(position, size=10, key=key(0, 0))


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
