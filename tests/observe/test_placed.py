"""Where replicas are, as a status says it."""

from __future__ import annotations

from typing import Any

from pliant.observe.placed import placed_line
from pliant.observe.status import board_of


def records(placement: str) -> list[dict[str, Any]]:
    return [
        {"kind": "job_started", "job": "gpt", "placement": placement},
        {"kind": "node_joined", "node": "n1", "labels": [["host", "x"], ["rack", "a"]]},
        {"kind": "node_joined", "node": "n2", "labels": [["rack", "b"], "damaged", ["one"]]},
        {"kind": "node_joined", "node": "n3"},
        {"kind": "start_replica", "replica": "r1", "node": "n1"},
        {"kind": "start_replica", "replica": "r2", "node": "n2"},
        {"kind": "start_replica", "replica": "r3", "node": "n3"},
        {"kind": "start_replica", "replica": "r4", "node": "n1"},
    ]


def test_a_status_says_where_replicas_are_by_what_their_job_goes_by() -> None:
    found = board_of(records("spread:rack")).as_json()["placed"]

    sites = {"a": ["r1", "r4"], "b": ["r2"], "n3": ["r3"]}
    assert found == {"rule": "spread:rack", "sites": sites}
    assert placed_line(found) == "spread by rack: a: r1, r4; b: r2; n3: r3"


def test_nothing_is_said_of_a_job_that_goes_anywhere_or_of_a_damaged_record() -> None:
    assert board_of(records("free")).as_json()["placed"] is None
    assert board_of(records("odd")).as_json()["placed"] is None
