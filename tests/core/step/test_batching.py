"""Whoever owns which slots, the sums are added in one tree, and few of them travel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.errors import ConfigError
from pliant.core.step.batching import (
    Node,
    children,
    efficiency,
    fold_plan,
    merge_plan,
    num_slots,
    ownership,
    partials,
    peak_copies,
    root,
    subtrees,
)

Sum = int | tuple["Sum", "Sum"]
"""A bracketing: a slot, or the sum of two bracketings.  Unordered, because addition commutes."""


@cache
def bracketing(node: Node) -> Sum:
    if node.hi - node.lo == 1:
        return node.lo
    left, right = children(node)
    return bracketing(left), bracketing(right)


def commuted(left: Sum, right: Sum) -> Sum:
    return (left, right) if _first(left) < _first(right) else (right, left)


def _first(term: Sum) -> int:
    while isinstance(term, tuple):
        term = term[0]
    return term


def computed(node: Node) -> Sum:
    """What a replica gets that follows the merge plan with a stack."""
    stack: list[Sum] = []
    for slot, merges in merge_plan(node):
        stack.append(slot)
        for _ in range(merges):
            newest = stack.pop()
            stack.append(commuted(stack.pop(), newest))
    (total,) = stack
    return total


def folded(slots: int, owners: Sequence[range]) -> Sum:
    """What the replicas get together."""
    nodes = [node for mine in partials(slots, owners) for node in mine]
    sums = [computed(node) for node in nodes]
    for left, right in fold_plan(slots, nodes):
        sums[left] = (sums[left], sums[right])
    return sums[0]


def num_partials(slots: int, replicas: int) -> int:
    return sum(map(len, partials(slots, ownership(slots, replicas))))


@pytest.mark.parametrize("slots", range(1, 65))
def test_every_number_of_replicas_adds_in_the_same_tree(slots: int) -> None:
    for replicas in range(1, slots + 1):
        assert folded(slots, ownership(slots, replicas)) == bracketing(root(slots))


@given(st.integers(1, 120).flatmap(lambda k: st.tuples(st.just(k), st.sets(st.integers(1, k)))))
def test_any_contiguous_ownership_adds_in_the_same_tree(drawn: tuple[int, set[int]]) -> None:
    slots, cuts = drawn
    edges = sorted({0, slots} | cuts)
    owners = [range(lo, hi) for lo, hi in itertools.pairwise(edges)]

    assert folded(slots, owners) == bracketing(root(slots))


@pytest.mark.parametrize("slots", [*range(1, 33), 100])
def test_ranges_are_contiguous_and_differ_by_at_most_one(slots: int) -> None:
    for replicas in range(1, slots + 1):
        owners = ownership(slots, replicas)

        sizes = [len(owned) for owned in owners]
        assert [slot for owned in owners for slot in owned] == list(range(slots))
        assert len(owners) == replicas
        assert max(sizes) - min(sizes) <= 1


Split = Callable[[int, int, str], int]


def fewest_partials(slots: int, replicas: int, split: Split) -> int:
    """Dumb second implementation: try every choice of long ranges, count maximal subtrees."""
    size, num_long = divmod(slots, replicas)

    @cache
    def count(lo: int, hi: int, start: int, stop: int, side: str) -> int:
        if stop <= lo or hi <= start:
            return 0
        if start <= lo and hi <= stop:
            return 1
        mid = split(lo, hi, side)
        return count(lo, mid, start, stop, "left") + count(mid, hi, start, stop, "right")

    @cache
    def best(rank: int, longs: int) -> float:
        if longs > num_long or rank - longs > replicas - num_long:
            return math.inf
        if rank == replicas:
            return 0
        at = rank * size + longs
        return min(
            count(0, slots, at, at + size + extra, "root") + best(rank + 1, longs + extra)
            for extra in (0, 1)
            if size + extra
        )

    return int(best(0, 0))


def plain(lo: int, hi: int, side: str) -> int:
    return (lo + hi + 1) // 2


def mirrored(lo: int, hi: int, side: str) -> int:
    return lo + ((hi - lo) // 2 if side == "right" else (hi - lo + 1) // 2)


@pytest.mark.parametrize("slots", [*range(1, 33), 37, 48, 61])
def test_the_cuts_need_the_fewest_partial_sums(slots: int) -> None:
    for replicas in range(1, min(slots, 12) + 1):
        assert num_partials(slots, replicas) == fewest_partials(slots, replicas, mirrored)


def test_fewer_partial_sums_than_plain_midpoint_halving_on_the_whole() -> None:
    """Not for every pair: 18 slots over 3 replicas need 8 here and 7 there."""
    pairs = [(k, w) for k in range(1, 41) for w in range(2, min(k, 8) + 1)]
    here = [num_partials(k, w) for k, w in pairs]
    there = [fewest_partials(k, w, plain) for k, w in pairs]

    assert sum(here) < sum(there)
    assert sum(a < b for a, b in zip(here, there, strict=True)) > 0


def test_partial_sums_over_all_batches_of_up_to_64_slots() -> None:
    """Pinned: a change of the tree or of the cuts changes bits or traffic of every user."""
    totals = {
        replicas: sum(num_partials(slots, replicas) for slots in range(replicas, 65))
        for replicas in range(1, 9)
    }

    assert totals == {1: 64, 2: 126, 3: 472, 4: 244, 5: 712, 6: 716, 7: 749, 8: 456}


def test_a_power_of_two_that_the_replicas_divide_needs_one_partial_sum_each() -> None:
    assert [num_partials(64, replicas) for replicas in (1, 2, 4, 8, 16, 32, 64)] == [
        1, 2, 4, 8, 16, 32, 64,
    ]  # fmt: skip


@pytest.mark.parametrize("slots", range(1, 65))
def test_gradient_copies_stay_within_the_promised_number(slots: int) -> None:
    for replicas in range(1, slots + 1):
        for owned in ownership(slots, replicas):
            further = len(subtrees(slots, owned)) - 1
            assert peak_copies(slots, owned) <= len(owned).bit_length() + further


def test_the_heavier_half_comes_first_to_save_a_copy() -> None:
    """Of 6 slots the right half is (3, (4, 5)): in slot order three gradients would be alive."""
    (right,) = subtrees(6, range(3, 6))

    assert merge_plan(right) == ((4, 0), (5, 1), (3, 1))
    assert peak_copies(6, range(3, 6)) == 2


@pytest.mark.parametrize("replicas", [0, 5])
def test_more_replicas_than_slots_are_refused(replicas: int) -> None:
    with pytest.raises(
        ConfigError, match=f"{replicas} replicas cannot share 4 micro-batches: 1 to 4"
    ):
        ownership(4, replicas)


def test_a_batch_of_thousands_of_slots_is_divided_among_a_thousand_replicas() -> None:
    owners = ownership(8000, 1023)

    assert sum(map(len, owners)) == 8000
    assert {len(owned) for owned in owners} == {7, 8}


@pytest.mark.parametrize(
    "wrong",
    [
        [Node(0, 2, "left")],
        [Node(0, 2, "left"), Node(2, 4, "left")],
        [Node(0, 2, "left"), Node(2, 4, "right"), Node(2, 3, "left")],
        [],
    ],
)
def test_partial_sums_that_do_not_tile_the_tree_are_refused(wrong: list[Node]) -> None:
    with pytest.raises(ValueError, match="do not tile 4 slots"):
        fold_plan(4, wrong)


def test_efficiency_is_the_share_of_time_that_computes() -> None:
    assert [efficiency(8, replicas) for replicas in (1, 2, 3, 4, 5, 8)] == [
        1.0, 1.0, 8 / 9, 1.0, 0.8, 1.0,
    ]  # fmt: skip


def test_slots_of_a_step() -> None:
    assert num_slots(global_batch_size=64, micro_batch_size=8) == 8


@pytest.mark.parametrize(
    ("batch", "micro", "sentence"),
    [
        (64, 6, "micro_batch_size=6 does not divide global_batch_size=64; use micro_batch_size "
                "4 or 8, or global_batch_size 60 or 66"),
        (8, 100, "micro_batch_size=100 does not divide global_batch_size=8; use micro_batch_size "
                 "8, or global_batch_size 100"),
        (0, 1, "global_batch_size must be a positive integer, got 0"),
        (8, 2.0, "micro_batch_size must be a positive integer, got 2.0"),
        (8, True, "micro_batch_size must be a positive integer, got True"),
    ],
)  # fmt: skip
def test_a_batch_that_makes_no_slots_is_refused(batch: int, micro: int, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        num_slots(global_batch_size=batch, micro_batch_size=micro)

    assert str(caught.value) == sentence
