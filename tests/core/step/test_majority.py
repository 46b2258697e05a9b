"""Who is wrong of several whose values ought to be equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.step.majority import minority


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
