"""Whom a generation leaves out because its members cannot reach each other."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.membership.links import added, left_out, no_link_between
from pliant.core.values import ReplicaId

NAMES = tuple(ReplicaId(f"r{number}") for number in range(1, 7))
R1, R2, R3, R4, R5, R6 = NAMES


def test_the_larger_part_stays() -> None:
    links = frozenset((a, b) for a in (R1, R2) for b in (R3, R4, R5))

    assert left_out((R1, R2, R3, R4, R5), links, NAMES) == {R1, R2}
    assert left_out((R1, R2, R3, R4), links, NAMES) == {R3, R4}
    assert left_out((R1, R2), links, NAMES) == frozenset()


def test_one_link_costs_one_member() -> None:
    assert left_out(NAMES, {(R2, R5)}, NAMES) == {R5}
    assert left_out(NAMES, {(R2, R5)}, {R5}) == {R2}


def test_a_link_has_no_direction() -> None:
    assert added(added(frozenset(), R1, (R2,)), R2, (R1,)) == {(R1, R2)}


def test_who_is_left_out_is_told_because_of_whom() -> None:
    links = frozenset({(R1, R3), (R2, R3), (R4, R5)})

    assert no_link_between({R3}, links) == "no connection between r3 and r1, r2 could be made"


@given(
    st.sets(st.sampled_from(list(combinations(NAMES, 2)))),
    st.sets(st.sampled_from(NAMES), min_size=1),
)
def test_all_who_stay_reach_each_other_and_somebody_holds_the_state(
    links: set[tuple[ReplicaId, ReplicaId]], holders: set[ReplicaId]
) -> None:
    there = set(NAMES) - left_out(NAMES, links, holders)

    assert there & holders
    assert not [link for link in links if set(link) <= there]
