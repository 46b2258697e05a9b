"""A status says which nodes do not reach each other, since when, and when one tries again."""

from __future__ import annotations

from typing import Any

from pliant.observe.nodes_apart import line
from pliant.observe.status import board_of

NODES = ["n1", "n2"]


def apart(at: float, *pairs: tuple[list[str], int, float | None]) -> dict[str, Any]:
    return {"v": 1, "at": at, "mono": at, "job": "j", "kind": "nodes_apart", "pairs": list(pairs)}


FOUND, DUE, AGAIN, MET = (
    apart(100.0, (NODES, 1, 30.0)),
    apart(130.0, (NODES, 1, None)),
    apart(200.0, (NODES, 2, 60.0)),
    apart(290.0),
)


def test_the_first_time_counts_and_the_newest_says_when_again() -> None:
    (known,) = board_of([FOUND, DUE, AGAIN]).as_json()["apart"]

    assert known == {"nodes": NODES, "times": 2, "since": 100.0, "again_at": 260.0}
    said = line(known)
    assert said.startswith("nodes n1 and n2 do not reach each other since ")
    assert "one replica tries it at " in said


def test_what_is_due_and_what_is_over_is_said() -> None:
    (due,) = board_of([FOUND, DUE]).apart

    assert line(due).endswith("; one replica tries it now")
    assert board_of([FOUND, DUE, AGAIN, MET]).apart == []


def test_a_job_that_has_ended_promises_no_other_try() -> None:
    ended = {"v": 1, "at": 110.0, "mono": 110.0, "job": "j", "kind": "end_job", "exit_code": 4}

    assert board_of([FOUND, ended]).as_json()["apart"] == []


def test_another_coordinator_finds_it_out_anew() -> None:
    follows = {"v": 1, "at": 110.0, "mono": 110.0, "job": "j", "kind": "coordinator_started"}

    assert board_of([FOUND, follows]).apart == []
