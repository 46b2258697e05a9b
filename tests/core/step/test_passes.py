"""Passes: the workers of a replica compute its slots side by side, each slot once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.step.passes import Pass, passes


def test_two_shards_take_two_slots_at_a_time() -> None:
    assert passes([True] * 5, 2) == (
        Pass(places=range(2), computed=(0, 1)),
        Pass(places=range(2, 4), computed=(2, 3)),
        Pass(places=range(4, 5), computed=(4,)),
    )


def test_what_holds_no_samples_is_added_in_its_turn_and_computed_by_nobody() -> None:
    (first, second) = passes([True, False, True, True, False], 2)

    assert first == Pass(places=range(3), computed=(0, 2))
    assert second == Pass(places=range(3, 5), computed=(3,))
    assert [second.of_shard(shard) for shard in (0, 1)] == [3, None]


def test_a_replica_whose_slots_are_all_empty_has_one_pass_of_nothing() -> None:
    assert passes([False, False], 3) == (Pass(places=range(2), computed=()),)


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 6))
def test_each_slot_is_in_one_pass_in_its_order(holds: list[bool], num_shards: int) -> None:
    found = passes(holds, num_shards)

    assert [place for one in found for place in one.places] == list(range(len(holds)))
    computed = [place for one in found for place in one.computed]
    assert computed == [place for place, is_full in enumerate(holds) if is_full]
    assert all(len(one.computed) <= num_shards for one in found)
    assert all(set(one.computed) <= set(one.places) for one in found)
    assert len(found) <= max(1, -(-sum(holds) // num_shards))  # no pass more than needed
