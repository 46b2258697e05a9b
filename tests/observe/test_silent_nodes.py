"""A status says of which agents nothing is heard, and since when."""

from __future__ import annotations

from typing import Any

from pliant.observe.prose import line as prose
from pliant.observe.silent_nodes import line
from pliant.observe.status import board_of


def silent(at: float, *nodes: str, heard: tuple[str, ...] = ()) -> dict[str, Any]:
    own = {"kind": "nodes_silent", "nodes": list(nodes), "heard": list(heard)}
    return {"v": 1, "at": at, "mono": at, "job": "j", **own}


def kind(name: str, **values: Any) -> dict[str, Any]:
    return {"v": 1, "at": 130.0, "mono": 130.0, "job": "j", "kind": name, **values}


def test_each_is_told_since_when_until_it_is_heard_again() -> None:
    records = [silent(100.0, "n1"), silent(110.0, "n1", "n2")]

    first, _ = board_of(records).as_json()["silent"]

    assert first == {"node": "n1", "since": 100.0}
    said = line(first)
    assert said.startswith("nothing is heard of the agent of node n1 since ")
    assert said.endswith(": nothing new is started there until it speaks")
    assert board_of([*records, silent(120.0, heard=("n1", "n2"))]).silent == []


def test_who_ends_or_takes_over_says_no_more_of_it() -> None:
    began = silent(100.0, "n1")

    assert board_of([began, kind("end_job", exit_code=4)]).silent == []
    assert board_of([began, kind("coordinator_started")]).silent == []


def test_it_is_told_in_a_line_once_and_once_when_it_is_over() -> None:
    found = kind("node_silent", node="n1", others=["n2"])

    assert prose(found) == (
        "nothing is heard of the agent of node n1 and of 1 other: nothing new is started there"
    )
    assert prose(silent(130.0, "n1", "n2")) is None
    assert prose(silent(130.0, heard=("n1",))) == "heard again: the agent of n1"
