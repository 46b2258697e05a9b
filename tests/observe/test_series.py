"""Curves of a run: few points say what many records do, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.observe import series
from pliant.observe.log import Record
from pliant.observe.reading import read
from pliant.observe.series import LaneSeries, SizeSeries, StepSeries

RECORDED = Path(__file__).parents[1] / "cli" / "recorded.jsonl"


def commit(step: int, at: float, loss: Any = 1.0) -> Record:
    return {"kind": "commit", "at": at, "step": step, "loss": loss, "samples": 8}


def series_of(*records: Record) -> StepSeries:
    found = StepSeries()
    for record in records:
        found.add(record)
    return found


def test_a_curve_says_when_how_long_and_how_fast() -> None:
    found = series_of(commit(0, 10.0), commit(1, 12.0, 0.5), commit(2, 13.0, "nan"))

    assert found.points(0.0, 100.0, 10) == {
        "at": [10.0, 12.0, 13.0],
        "step": [1, 2, 3],
        "step_s": [None, 2.0, 1.0],
        "longest_s": [None, 2.0, 1.0],
        **dict.fromkeys(("data_s", "compute_s", "exchange_s", "waiting_s", "other_s"), [None] * 3),
        "loss": [1.0, 0.5, None],
        "samples_per_s": [None, 4.0, 8.0],
    }


def divided(step: int, at: float, took_s: float, *parts_us: Any) -> Record:
    return commit(step, at) | {"step_s": took_s, "parts_us": list(parts_us)}


def test_what_the_time_of_steps_went_to_is_their_mean_and_the_rest_is_other() -> None:
    found = series_of(
        commit(0, 10.0),  # of an older version: it says nothing of it
        divided(1, 12.0, 2.0, 1_000_000, 500_000, 0, 250_000),
        divided(2, 13.0, 1.0, 500_000, 700_000, 0, 250_000),
        divided(3, 14.0, 1.0, 1, 2, 10**400, 4),
    )

    each, together = found.points(0.0, 20.0, 10), found.points(0.0, 20.0, 1)

    assert each["data_s"] == [None, 1.0, 0.5, None]
    assert each["waiting_s"] == [None, 0.25, 0.25, None]
    assert each["other_s"] == [None, 0.25, 0.0, None]
    assert (together["data_s"], together["compute_s"]) == ([0.75], [0.6])
    assert together["other_s"] == [0.0]


def test_how_long_a_run_was_suspended_is_no_step() -> None:
    found = series_of(commit(0, 10.0), commit(1, 11.0))
    found.start()
    found.add(commit(2, 5000.0))
    found.add(commit(3, 5001.0))

    assert found.points(0.0, 9999.0, 10)["longest_s"] == [None, 1.0, None, 1.0]


def test_a_clock_that_was_set_back_draws_no_curve_backwards() -> None:
    found = series_of(commit(0, 10.0), commit(1, 4.0), commit(2, 12.0))

    assert found.points(0.0, 100.0, 10)["at"] == [10.0, 10.0, 12.0]


@given(
    gaps=st.lists(st.integers(1, 50), min_size=1, max_size=200),
    most=st.integers(1, 40),
    kept=st.integers(2, 64),
)
def test_few_points_lose_no_step_no_time_and_no_longest_gap(
    gaps: list[int], most: int, kept: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "KEPT", kept)
        found = StepSeries()
        at = 100.0
        for step, gap in enumerate(gaps):
            at += gap
            found.add(commit(step, at))

    few = found.points(0.0, at, most)

    assert len(few["at"]) <= most
    assert {len(column) for column in few.values()} == {len(few["at"])}
    assert len(found._column("at")) <= kept + 1
    assert few["at"] == sorted(few["at"], key=float)  # type: ignore[arg-type]
    assert (few["at"][-1], few["step"][-1]) == (at, len(gaps))
    assert sum(found._column("number")) == len(gaps)
    longest = [value for value in few["longest_s"] if value is not None]
    assert max(longest, default=0) == max(gaps[1:], default=0)


def test_a_size_counts_until_the_next_and_the_fewest_of_many_are_shown() -> None:
    sizes = SizeSeries()
    for at, training in enumerate([2, 3, 3, 1, 4, 4, 5]):
        sizes.set(float(at), training, 4, 8)

    assert sizes.points(2.5, 4.5, 10) == [[1.0, 3, 4, 8], [3.0, 1, 4, 8], [4.0, 4, 4, 8]]
    assert [change[1] for change in sizes.points(0.0, 9.0, 4)] == [1, 4, 5]


def test_a_replica_has_a_lane_from_its_start_to_its_end() -> None:
    lanes = LaneSeries()
    for record in read(RECORDED):
        if record["kind"] != "commit":
            lanes.add(record)

    found = {lane.replica: lane for lane in lanes.between(0.0, 2e9)}

    assert [span[0] for span in found["r2"].spans] == ["starting", "spare", "joining", "training"]
    assert {name: lane.how for name, lane in found.items()} == {
        "r1": "finished",
        "r2": "signal",
        "r3": "finished",
        "r4": "finished",
    }
    for lane in found.values():
        ends = [until for _, _, until in lane.spans]
        assert ends == [*(since for _, since, _ in lane.spans[1:]), ends[-1]]
    assert lanes.training == 0
    assert [lane.replica for lane in lanes.between(0.0, found["r3"].spans[0][1])] == [
        "r1",
        "r2",
        "r3",
    ]


def test_a_replica_whose_node_is_gone_is_lost_and_one_of_a_job_that_ends_has_ended() -> None:
    lanes = LaneSeries()
    for kind, values in (
        ("start_replica", {"replica": "r1", "node": "a"}),
        ("start_replica", {"replica": "r2", "node": "b"}),
        ("node_lost", {"node": "a"}),
        ("job_ended", {"exit_code": 0}),
    ):
        lanes.add({"kind": kind, "at": 5.0, **values})

    assert [lane.how for lane in lanes.lanes] == ["lost", "ended"]


def test_of_those_before_another_coordinator_who_is_no_member_any_more_is_lost() -> None:
    lanes = LaneSeries()
    both = {"generation": 1, "members": [{"replica": "r1"}, {"replica": "r2"}]}
    one = {"generation": 2, "members": [{"replica": "r1"}]}
    for at, kind, values in (
        (1.0, "start_replica", {"replica": "r1", "node": "a"}),
        (1.0, "start_replica", {"replica": "r2", "node": "b"}),
        (2.0, "switch", {"order": both}),
        (2.0, "switched", {"replica": "r1"}),
        (2.0, "switched", {"replica": "r2"}),
        (3.0, "coordinator_started", {}),
        (4.0, "node_joined", {"node": "a", "replicas": ["r1"]}),
        (5.0, "reform", {"order": one}),
    ):
        lanes.add({"kind": kind, "at": at, **values})

    found = {lane.replica: lane for lane in lanes.lanes}
    assert (found["r1"].how, found["r1"].spans[-1]) == ("", ["training", 2.0, None])
    assert (found["r2"].how, found["r2"].spans[-1]) == ("lost", ["training", 2.0, 5.0])
