"""A trace has each resize from cause to first step, as readers of Chrome's format take it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.observe.story import Story, eventful

from pliant.observe.trace import trace_of


def slices(story: Story, track: str) -> list[dict[str, Any]]:
    events = trace_of(story.records)["traceEvents"]
    return [one for one in events if one["ph"] == "X" and one["cat"] == track]


def test_each_resize_is_a_slice_with_who_came_and_went_and_why() -> None:
    found = [one for one in slices(eventful(), "resizes") if one["name"].startswith("resize")]

    assert [(one["name"].partition(": ")[2], one["args"]["cause"]) for one in found] == [
        ("+r1 +r2", ""),
        ("+r3 +r4", "request"),
        ("-r4", "request"),
        ("-r2", "exit"),
        ("+r5", ""),
    ]
    assert found[1]["args"]["reason"] == "grow from 2 to 4 replicas: 4 asked for"


def test_the_parts_of_a_resize_follow_each_other_from_its_cause_to_its_first_step() -> None:
    story = Story().started().start("r1").spare("r1").switch("r1").steps(3)
    story.now += 1.0
    story.write("scaled", target=2)
    story.now += 0.2
    story.decided(2, "asked for")
    story.now += 0.1
    story.start("r2").spare("r2", after_s=4.0).prepare("r1", "r2")
    story.now += 0.5
    story.write("prepared", replica="r2", generation=2)
    story.now += 0.3
    story.switch("r1", "r2")
    story.records[-1]["mono"] += 0.7  # r2 has to wait for its state
    story.now += 1.0
    story.commit()

    whole, *parts = slices(story, "resizes")[-7:]

    assert [(one["name"], one["dur"] / 1e6) for one in parts] == [
        ("detect", pytest.approx(0.2)),
        ("decide", pytest.approx(0.1)),
        ("start", pytest.approx(4.0)),
        ("prepare", pytest.approx(0.8)),
        ("transfer", pytest.approx(0.7)),
        ("first step", pytest.approx(0.3)),
    ]
    assert whole["ts"] == parts[0]["ts"]
    assert sum(one["dur"] for one in parts) == pytest.approx(whole["dur"], abs=10)
    (start, connect, transfer) = slices(story, "r2")
    assert (start["name"], connect["name"], transfer["name"]) == ("start", "connect", "transfer")
    assert connect["dur"] == pytest.approx(0.5e6, abs=10)


def test_every_event_has_what_the_format_asks_for_and_slices_of_a_track_nest() -> None:
    trace = json.loads(json.dumps(trace_of(eventful().saved("step-1").records)))
    named = {one["tid"] for one in trace["traceEvents"] if one["name"] == "thread_name"}

    ends: dict[int, list[int]] = {}
    for one in trace["traceEvents"]:
        assert one["ph"] in ("M", "X", "C", "i")
        assert isinstance(one["pid"], int)
        if one["ph"] != "M":
            assert isinstance(one["ts"], int)
            assert one["ts"] >= 0
        if one["ph"] != "X":
            continue
        assert one["tid"] in named
        assert one["dur"] >= 0
        open_ends = ends.setdefault(one["tid"], [])
        while open_ends and open_ends[-1] <= one["ts"]:
            open_ends.pop()
        assert not open_ends or one["ts"] + one["dur"] <= open_ends[-1] + 1, one
        open_ends.append(one["ts"] + one["dur"])
