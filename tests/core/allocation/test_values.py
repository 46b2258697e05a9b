"""The lists of a pool are sorted sets, and the arithmetic of one claim adds up."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.core.allocation import Asked, demand, new_pool, standing, state, step
from pliant.core.allocation.values import Claim
from pliant.core.tenancy import Demand


@given(start=st.sets(st.integers(0, 30)), number=st.integers(0, 30))
def test_a_list_stays_sorted(start: set[int], number: int) -> None:
    keys = tuple((one,) for one in sorted(start - {number}))
    longer = state.added(keys, (number,))

    assert longer == tuple(sorted((*keys, (number,))))
    assert state.without(longer, (number,)) == keys


@settings(max_examples=40)
@given(devices=st.sets(st.integers(0, 200)))
def test_devices_are_bits_and_back(devices: set[int]) -> None:
    found = state.bits(tuple(devices))

    assert state.numbers(found) == tuple(sorted(devices))
    assert state.numbers(state.lowest(found, len(devices) // 2)) == tuple(
        sorted(devices)[: len(devices) // 2]
    )


sizes_ = st.none() | st.sets(st.integers(1, 40), min_size=1).map(lambda s: tuple(sorted(s)))


@settings(max_examples=40)
@given(low=st.integers(1, 40), more=st.integers(0, 20), sizes=sizes_, slots=st.none() | st.just(24))
def test_a_claim_goes_up_and_down_through_the_same_sizes(
    low: int, more: int, sizes: tuple[int, ...] | None, slots: int | None
) -> None:
    if sizes is not None and not any(low <= size <= low + more for size in sizes):
        return
    claim = Claim(name="a", min_replicas=low, ask_replicas=low + more, sizes=sizes)
    base, top = demand.base(claim), demand.top(claim)
    at, met = base, [base]

    while at < top:
        rise = demand.rise(sizes, top, slots, at)
        assert at + rise.useful <= max(top, at + rise.more)
        at += rise.more
        met.append(at)

    assert at == top
    assert met == [n for n in range(low, low + more + 1) if sizes is None or n in sizes]
    down = [top]
    while down[-1] > base:
        fall = demand.fall(sizes, slots, down[-1])
        assert fall.loss >= 0.0
        down.append(down[-1] - fall.less)
    assert down[::-1] == met


@settings(max_examples=60)
@given(slots=st.integers(1, 300), share=st.integers(1, 300), top=st.integers(1, 400))
def test_sizes_that_may_be_the_best_are_those_with_fewer_turns(
    slots: int, share: int, top: int
) -> None:
    turns = range(math.ceil(slots / share) - 1, 0, -1)
    sizes = sorted({math.ceil(slots / each) for each in turns})

    found = demand._useful(None, top, slots, share, share + 1)

    assert found == tuple(size for size in sizes if size <= top)


@pytest.mark.parametrize("slots", [None, 100_000_000])
def test_whoever_asks_for_far_too_much_keeps_nobody_waiting(slots: int | None) -> None:
    """It is decided in the time of the test; each device one by one would take hours."""
    pool = new_pool(8)
    for claim in (
        Claim(name="low", priority="low", ask_replicas=8),
        Claim(name="greedy", ask_replicas=10**12, num_slots=slots),
    ):
        pool, _ = step(pool, Asked(claim=claim), now_s=0.0)

    held = [standing(pool, name) for name in ("greedy", "low")]
    assert [one.share for one in held if one is not None] == [7, 1]


def test_one_more_device_is_worth_less_to_whoever_has_more() -> None:
    gains = [demand.rise(None, 100, None, at).gain for at in range(1, 20)]

    assert gains == sorted(gains, reverse=True)
    assert gains[0] == math.log(2)


def test_where_several_devices_only_pay_together_the_step_to_all_of_them_counts() -> None:
    assert demand.rise(None, 8, 8, 4)[:2] == (1, 4)
    assert demand.rise(None, 8, 8, 4).gain == pytest.approx(math.log(2) / 4)
    assert demand.rise(None, 7, 8, 4).gain == 0.0


def test_the_claim_of_a_demand_has_all_of_it() -> None:
    demand = Demand(
        team="a", priority="high", min_replicas=2, ask_replicas=4, sizes=(2, 4), num_slots=8
    )

    claim = Claim.of("gpt", demand, since=3.0)

    assert (claim.name, claim.since) == ("gpt", 3.0)
    assert all(getattr(claim, one.name) == getattr(demand, one.name) for one in fields(Demand))
