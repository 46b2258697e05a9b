"""A trace of capacity is read in both forms, or refused with the line and what was expected."""

from __future__ import annotations

import pytest

from pliant.core.errors import ConfigError
from pliant.spec.trace import parse_trace


def changes(text: str, most: int = 8) -> list[tuple[float, int]]:
    return [(c.at_s, c.devices) for c in parse_trace(text, source="t.csv", most=most)]


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        changes(text)
    return str(caught.value)


def test_one_node_of_bamboos_form_is_one_device() -> None:
    text = "0,add,a\n0,add,b\n1500,remove,a\n1500,add,c\n2500,remove,b\n"

    assert changes(text) == [(0, 2), (2.5, 1)]


def test_nodes_beyond_the_pools_size_are_not_seen() -> None:
    text = "0,add,a\n0,add,b\n0,add,c\n1000,remove,a\n2000,remove,b\n"

    assert changes(text, most=2) == [(0, 2), (2, 1)]


def test_a_node_that_comes_twice_counts_once() -> None:
    assert changes("0,add,a\n1,add,a\n2,remove,a\n3,remove,a\n") == [(0, 1), (0.002, 0)]


def test_steps_say_the_number_itself() -> None:
    text = "# measured on a Tuesday\ntime_s,devices\n0,8\n\n90.5,6\n100,6\n200,99\n"

    assert changes(text) == [(0, 8), (90.5, 6), (200, 8)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "t.csv is an empty trace; expected milliseconds,add|remove,node or time_s,devices"),
        (
            "0,add,a\n5,gone,b\n",
            "t.csv line 2: '5,gone,b'; expected milliseconds,add|remove,node",
        ),
        ("0,add,a\n5,add\n", "t.csv line 2: '5,add'; expected milliseconds,add|remove,node"),
        (
            "0,add,a\nsoon,add,b\n",
            "t.csv line 2: 'soon' is no time; expected milliseconds,add|remove,node",
        ),
        (f"0,{'9' * 5000}\n", f"t.csv line 1: '0,{'9' * 38}'; expected time_s,devices"),
        ("0,8\n-1,4\n", "t.csv line 2: '-1' is no time; expected time_s,devices"),
        ("0,8\n1,4.5\n", "t.csv line 2: '1,4.5'; expected time_s,devices"),
        ("0,8\n1\n", "t.csv line 2: '1'; expected milliseconds,add|remove,node or time_s,devices"),
        (
            "0,8\n9,4\n3,5\n",
            "t.csv line 3: 3 s is before 9 s of the line above; a trace goes forward in time",
        ),
        ("nan,4\n", "t.csv line 1: 'nan' is no time; expected time_s,devices"),
    ],
)
def test_a_malformed_trace_is_refused_with_its_line(text: str, sentence: str) -> None:
    assert refusal(text) == sentence
