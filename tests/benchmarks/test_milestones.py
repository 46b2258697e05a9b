"""Milestones of an event are read off the event log."""

from __future__ import annotations

from typing import Any

from benchmarks.milestones import medians, milestones


def at(mono: float, kind: str, **more: Any) -> dict[str, Any]:
    return {"mono": mono, "kind": kind, **more}


LOG = [
    at(1.0, "commit", generation=1),
    at(10.0, "scaled", target=3),
    at(10.5, "start_replica", replica="r3"),
    at(12.0, "spare", replica="r3"),
    at(12.1, "prepare", order={"generation": 2}),
    at(12.2, "prepared", generation=2),
    at(12.4, "prepared", generation=2),
    at(12.5, "switch", order={"generation": 2}),
    at(13.0, "switched", generation=2),
    at(14.0, "commit", generation=2),
    at(15.0, "commit", generation=2),
    at(16.0, "exited", replica="r3"),
]


def test_each_milestone_counts_from_the_request() -> None:
    found = milestones(LOG, asked_at=10.0, generation=2)

    assert found == {
        "request logged": 0.0,
        "replica ordered": 0.5,
        "spare": 2.0,
        "first prepare sent": 12.1 - 10.0,
        "last prepared": 12.4 - 10.0,
        "first switch sent": 2.5,
        "last switched": 3.0,
        "first commit": 4.0,
    }


def test_medians_skip_events_that_lack_a_milestone() -> None:
    assert medians([{"spare": 1.0}, {"spare": 3.0, "reform": 2.0}]) == {"spare": 2.0, "reform": 2.0}
