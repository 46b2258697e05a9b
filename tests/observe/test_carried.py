"""What a part of a log says of the parts before it is read as these parts would be."""

from __future__ import annotations

import json

from pliant.observe.carried import Carried
from pliant.observe.log import Record
from pliant.observe.log_clock import LogClock
from pliant.observe.status import board_of

KINDS: list[tuple[str, int, Record]] = [
    ("job_started", 1, {"machine": "one pid:[1]"}),
    ("plan", 1, {"num_slots": 8}),
    ("nodes_apart", 1, {"pairs": []}),
    ("coordinator_started", 2, {"machine": "one pid:[1]"}),
    ("plan", 2, {"num_slots": 8}),
    ("nodes_apart", 2, {"pairs": [[["a", "b"], 1, 30.0]]}),
]


def written() -> list[Record]:
    return [
        {"kind": kind, "incarnation": number, "at": 1.7e9 + at, "mono": 100.0 + at, **values}
        for at, (kind, number, values) in enumerate(KINDS)
    ]


def test_the_newest_of_each_kind_stand_in_the_order_in_which_they_came() -> None:
    """A status forgot which nodes do not reach each other, and a clock began anew."""
    carried, clock = Carried(), LogClock()
    for record in written():
        carried.add(record)

    told = carried.records()

    kinds = ["job_started", "coordinator_started", "plan", "nodes_apart"]
    assert [record["kind"] for record in told] == kinds
    assert board_of(told).apart == board_of(written()).apart != []
    assert [clock.add(record) for record in told] == [False] * 4


def test_a_plan_that_was_said_again_to_another_coordinator_is_carried_once() -> None:
    identity = [["seed", "1"]]
    again = {
        "kind": "registered",
        "incarnation": 2,
        "replica": "r1",
        "spare": {"replica": "r1", "identity": identity},
    }
    carried = Carried()
    for record in (again, {**again, "incarnation": 3}):
        carried.add(record)

    assert carried.records() == [again]
    carried.add({"kind": "switched", "replica": "r1"})
    assert carried.settled == {json.dumps(identity): "r1"}
