"""All members of a generation come to the same division, and each forms it anew for itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from pliant.core.step.balance import UNKNOWN_US, WINDOW_STEPS, Balance, most_partials
from pliant.core.values import Generation, Order, ReplicaId, Seat
from pliant.engine.member.formed import Shape, window_size_for
from pliant.engine.member.slot_division import SlotDivision
from pliant.engine.reduce import shared_memory
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.plan import ReductionPlan
from pliant.wire.messages import SlotsMoved

LAYOUT = Layout.of(nn.Linear(100, 100).named_parameters(), extras=1)


def shape(balance: Balance = Balance.SPEED) -> Shape:
    return Shape(num_slots=8, layout=LAYOUT, is_exact=True, balance=balance)


def order(generation: int, *names: str) -> Order:
    seats = tuple(Seat(replica=ReplicaId(name), endpoint="") for name in names)
    return Order(generation=Generation(generation), members=seats)


def group(rank: int, size: int) -> Any:
    return SimpleNamespace(rank=rank, size=size, shared=None)


class Members:
    """Replicas of one generation, each with a division of its own."""

    def __init__(self, *names: str, balance: Balance = Balance.SPEED) -> None:
        self.told: list[SlotsMoved] = []
        self.slow: dict[str, int] = {}
        self.each = {
            name: SlotDivision(
                ReplicaId(name),
                shape(balance),
                self.told.append,
                lambda tenths, name=name: self.slow.__setitem__(name, tenths),  # type: ignore[misc]
            )
            for name in names
        }

    def enter(self, generation: int, *names: str) -> None:
        here = [self.each[name] for name in names]
        paces_us = [one.pace_us for one in here]
        for rank, one in enumerate(here):
            one.enter(order(generation, *names), group(rank, len(names)), paces_us, 0)

    def train(self, pace_us: dict[str, int], steps: int = WINDOW_STEPS) -> None:
        for step in range(1, steps + 1):
            for name in pace_us:
                self.each[name].hear_times(list(pace_us.values()), step)

    def owned(self, *names: str) -> list[range]:
        return [self.each[name].formed.owned for name in names]  # type: ignore[union-attr]


def test_members_compute_other_slots_from_the_same_step_on() -> None:
    members = Members("r1", "r2")
    members.enter(1, "r1", "r2")
    before = members.each["r1"].formed

    members.train({"r1": 30, "r2": 10}, WINDOW_STEPS - 1)
    assert members.owned("r1", "r2") == [range(4), range(4, 8)]
    members.train({"r1": 30, "r2": 10}, 1)

    assert members.owned("r1", "r2") == [range(2), range(2, 8)]
    formed = members.each["r1"].formed
    assert before is not None
    assert formed is not None
    assert (formed.order, formed.group) == (before.order, before.group)
    (news,) = members.told  # the first member says it for all
    assert (news.replica, news.replicas, news.sizes) == ("r1", ("r1", "r2"), (2, 6))
    assert news.paces_us == (30, 10)


def test_a_generation_with_a_joiner_begins_with_what_the_others_know() -> None:
    members = Members("r1", "r2", "r3")
    members.enter(1, "r1", "r2")
    members.train({"r1": 30, "r2": 10})

    members.enter(2, "r1", "r2", "r3")

    assert {one.sizes for one in members.each.values()} == {(1, 3, 4)}
    assert len(members.told) == 2


def test_who_is_left_goes_on_with_its_own_time() -> None:
    members = Members("r1", "r2", "r3")
    members.enter(1, "r1", "r2", "r3")
    members.train({"r1": 10, "r2": 30, "r3": 10}, 3)

    members.enter(2, "r2", "r3")  # r1 has died: others have other ranks now

    assert members.each["r2"].pace_us == 30
    assert members.owned("r2", "r3") == [range(2), range(2, 8)]


def test_evenly_says_nothing() -> None:
    members = Members("r1", "r2", balance=Balance.EVEN)
    members.enter(1, "r1", "r2")
    members.train({"r1": 30, "r2": 10}, 50)

    assert members.owned("r1", "r2") == [range(4), range(4, 8)]
    assert members.told == []
    assert members.each["r2"].pace_us == 10


def test_who_is_far_slower_says_so_until_it_is_not() -> None:
    members = Members("r1", "r2")
    members.enter(1, "r1", "r2")
    said = []
    for pace_us in (19, 20, 34, 15, 14):
        members.train({"r1": pace_us, "r2": 10})
        said.append(members.slow["r1"])

    assert said == [0, 20, 30, 15, 0]
    assert members.slow["r2"] == 0


def test_who_has_computed_nothing_knows_no_time() -> None:
    members = Members("r1")
    assert members.each["r1"].pace_us == UNKNOWN_US
    assert members.each["r1"].sizes == ()


@pytest.mark.parametrize("balance", list(Balance))
def test_memory_is_ready_for_every_division(balance: Balance) -> None:
    """What only other divisions need gets memory when they are."""
    size = window_size_for(order(1, "r1", "r2", "r3"), shape(balance), ReplicaId("r2"))

    most = most_partials(8, 3) if balance is Balance.SPEED else 1
    plans = [
        ReductionPlan.of(8, [range(low), range(low, high), range(high, 8)])
        for low in range(1, 7)
        for high in range(low + 1, 8)
    ]
    fitting = [plan for plan in plans if plan.partials[1] <= most]
    needed = max(shared_memory.window_size(LAYOUT, plan, 1).nbytes for plan in fitting)

    assert size.nbytes >= needed
    assert bool(size.spare) == (balance is Balance.SPEED)
