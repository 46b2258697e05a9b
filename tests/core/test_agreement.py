"""Nodes that would not train alike, or could not meet, are told apart by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.agreement import NodeFacts, disagreement, minority, misnamed
from pliant.core.values import NodeId

A, B, C = (NodeId(name) for name in "abc")
FACTS = NodeFacts(
    pliant="1.0",
    python="3.13",
    torch="2.13.0",
    numpy="2.3.0",
    processor="x86_64",
    hash_seed="0",
    address="10.0.0.1",
    boot=1,
)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("pliant", "1.1", "pliant 1.1, and node a has 1.0"),
        ("python", "3.12", "Python 3.12, and node a has 3.13"),
        ("torch", "2.11.0", "torch 2.11.0, and node a has 2.13.0"),
        ("numpy", "1.26.4", "numpy 1.26.4, and node a has 2.3.0"),
        ("processor", "aarch64", "processors of the family aarch64, and node a has x86_64"),
        ("hash_seed", "7", "PYTHONHASHSEED 7, and node a has 0"),
    ],
)
def test_what_differs_is_named_with_both_values(name: str, value: Any, said: str) -> None:
    found = disagreement(B, replace(FACTS, **{name: value}), {A: FACTS})

    assert found == f"node b has {said}; a job needs the same on every node"


def test_nodes_that_agree_may_have_other_addresses_and_machines() -> None:
    other = replace(FACTS, address="10.0.0.2", boot=2)

    assert disagreement(B, other, {A: FACTS}) is None
    assert disagreement(B, FACTS, {}) is None
    assert disagreement(B, NodeFacts(), {A: FACTS}) is None  # of what is not known nothing is said


@pytest.mark.parametrize(
    ("mine", "theirs", "lone"),
    [
        (("127.0.0.1", 1), ("10.0.0.1", 1), "b"),
        (("10.0.0.1", 1), ("127.0.0.1", 1), "a"),
        (("::1", 1), ("::1", 2), "b"),
        (("127.0.0.1", 1), ("127.0.0.1", 1), None),
        (("what", 1), ("10.0.0.1", 2), None),
    ],
)
def test_a_node_whose_workers_no_other_reaches_is_named(
    mine: tuple[str, int], theirs: tuple[str, int], lone: str | None
) -> None:
    here, there = (replace(FACTS, address=one[0], boot=one[1]) for one in (mine, theirs))

    found = disagreement(B, here, {A: there})

    if lone is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(f"workers of node {lone} are reached at ")
        assert "--interface" in found


@pytest.mark.parametrize(
    ("node", "certified"),
    [
        ("gpu1", ["10.0.0.1", "gpu1"]),
        ("GPU1", ["gpu1"]),
        ("gpu1", ["gpu1.lab.example"]),
        ("gpu1.lab.example", ["gpu1"]),
        ("gpu1.lab.example", ["*.lab.example"]),
        ("10.0.0.1", ["10.0.0.1"]),
    ],
)
def test_a_certificate_names_a_node_as_people_do(node: str, certified: list[str]) -> None:
    assert misnamed(NodeId(node), certified) is None


@pytest.mark.parametrize(
    ("node", "certified"),
    [
        ("gpu1", []),
        ("gpu1", ["gpu2", "10.0.0.1"]),
        ("10", ["10.0.0.1"]),
        ("10.0.0.2", ["10.0.0.1"]),
        ("gpu1.lab.example", ["gpu1.other.example"]),
        ("gpu1", ["*.lab.example"]),
        ("gpu1.x.lab.example", ["*.lab.example"]),
    ],
)
def test_a_node_that_has_the_certificate_of_another_is_told(
    node: str, certified: list[str]
) -> None:
    said = misnamed(NodeId(node), certified)

    assert said is not None
    named = " and ".join(sorted(certified)) or "nobody"
    assert said.startswith(f"the certificate of node {node} names {named}, and not {node}; name ")


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ("a", ()),
        ("aa", ()),
        ("ab", None),
        ("aab", (2,)),
        ("baa", (0,)),
        ("abc", None),
        ("aabb", None),
        ("aabc", None),
        ("aaabc", (3, 4)),
        ("abababb", (0, 2, 4)),
    ],
)
def test_those_that_differ_from_more_than_half_are_wrong(
    values: str, wrong: tuple[int, ...] | None
) -> None:
    assert minority(values) == wrong


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_without_the_wrong_all_are_alike_and_they_were_more(values: list[int]) -> None:
    wrong = minority(values)

    if wrong is None:
        assert all(2 * values.count(value) <= len(values) for value in values)
    else:
        kept = [value for place, value in enumerate(values) if place not in wrong]
        assert len(set(kept)) == 1
        assert len(kept) > len(wrong)
