"""The status is what the log says, at any moment of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe.story import Story, eventful
from tests.observe.whole_log import explained_of

from pliant.observe.goodput import goodput_of
from pliant.observe.prose import line, pause, resize_line
from pliant.observe.status import Board, board_of

DOCUMENTED = {
    "job",
    "state",
    "generation",
    "step",
    "total_steps",
    "target_replicas",
    "min_replicas",
    "max_replicas",
    "num_slots",
    "workers_per_replica",
    "mode",
    "replicas",
    "nonfinite",
    "apart",
    "silent",
    "ailing",
    "register_unreached",
    "hosts",
    "slow",
    "placed",
    "warnings",
    "checkpoint",
    "checkpoint_failure",
    "checkpoint_asked",
    "pool",
    "restored",
    "loss",
    "samples_per_s",
    "median_step_s",
    "eta_s",
    "idle_s",
    "waits_for",
    "steps_lost",
    "stale",
    "events",
    "decision",
    "exit_code",
    "reason",
    "out",
    "url",
    "pid",
}


def states(story: Story) -> dict[str, str]:
    return {
        replica["name"]: replica["state"]
        for replica in board_of(story.records).as_json()["replicas"]
    }


def test_an_empty_log_has_a_status_too() -> None:
    status = Board().as_json()

    assert set(status) == DOCUMENTED
    assert (status["state"], status["step"], status["replicas"]) == ("starting", 0, [])


def test_the_shape_is_the_documented_one_and_on_its_page() -> None:
    page = Path(__file__).parents[2] / "docs/reference/records.md"
    status = board_of(eventful().records).as_json()

    assert set(status) == DOCUMENTED
    assert {f"`{name}`" for name in DOCUMENTED} <= set(re.findall(r"`\w+`", page.read_text()))
    assert set(status["replicas"][0]) == {
        "name", "state", "pids", "node", "device", "device_name", "hosts",
    }  # fmt: skip
    json.dumps(status, allow_nan=False)


def test_the_eventful_story_ends_with_three_that_train() -> None:
    status = board_of(eventful().planned(100).records).as_json()

    there = {"node": "here", "device": None, "device_name": "", "hosts": ["here"]}
    here = {"state": "training", **there}
    assert status["replicas"] == [
        {"name": "r1", "pids": [1001], **here},
        {"name": "r3", "pids": [1003], **here},
        {"name": "r5", "pids": [1005], **here},
    ]
    assert (status["state"], status["target_replicas"], status["generation"]) == ("training", 3, 5)
    assert [event["kind"] for event in status["events"]] == ["join", "drain", "loss", "join"]
    assert status["steps_lost"] == 0


def test_a_replica_goes_from_starting_to_training() -> None:
    story = Story().started().start("r1").spare("r1").switch("r1").steps(3)
    assert states(story.start("r2")) == {"r1": "training", "r2": "starting"}
    assert states(story.spare("r2")) == {"r1": "training", "r2": "spare"}
    assert states(story.prepare("r1", "r2")) == {"r1": "training", "r2": "joining"}
    assert states(story.switch("r1", "r2")) == {"r1": "training", "r2": "training"}


def test_a_drained_replica_leaves_until_its_process_has_ended() -> None:
    story = Story().started().start("r1", "r2").switch("r1", "r2").steps(3)
    story.prepare("r1").switch("r1")
    assert states(story) == {"r1": "training", "r2": "leaving"}

    story.exited("r2", "left")

    assert states(story) == {"r1": "training"}


def test_replicas_of_a_node_that_is_lost_are_gone_once_others_go_on_without_them() -> None:
    """Their agent is gone, so that nobody says how they have ended."""
    story = Story().started().start("r1", "r2", "r3").switch("r1", "r2")
    for record in story.records:
        if record["kind"] == "start_replica" and record["replica"] != "r1":
            record["node"] = "far"
    story.write("node_lost", node="near", others=["far"])
    assert states(story) == {"r1": "training", "r2": "training"}  # it may be waited for

    story.switch("r1")

    assert states(story) == {"r1": "training"}


def test_an_agent_that_is_started_anew_has_none_of_its_replicas() -> None:
    story = Story().started().start("r1", "r2").switch("r1", "r2")
    story.write("node_lost", node="here", others=[])
    story.write("node_joined", node="here", devices=2, replicas=["r2"])

    assert states(story) == {"r2": "training"}


def test_a_job_below_its_minimum_waits() -> None:
    story = Story().started().start("r1", "r2").switch("r1", "r2").steps(3)
    order = {**story.order(2, ("r1",)), "hold": True}
    story.exited("r2", "signal", "SIGKILL").write("reform", to=["r1"], order=order)
    story.enter("r1")

    board = board_of(story.records)

    assert (board.state, states(story)) == ("waiting", {"r1": "waiting"})


@pytest.mark.parametrize(
    ("code", "state"),
    [(0, "finished"), (1, "failed"), (2, "failed"), (3, "stopped"), (4, "lost"), (130, "stopped")],
)
def test_an_ended_job_says_how(code: int, state: str) -> None:
    story = eventful()
    story.write("job_ended", exit_code=code, reason="because")

    status = board_of(story.records).as_json()

    assert (status["state"], status["exit_code"], status["reason"]) == (state, code, "because")
    assert status["eta_s"] is None


def test_speed_and_eta_come_from_the_last_steps() -> None:
    story = Story().started().start("r1").switch("r1").planned(100).steps(21, 0.5, samples=16)

    status = board_of(story.records).as_json()

    assert status["samples_per_s"] == pytest.approx(32.0)
    assert status["median_step_s"] == pytest.approx(0.5)
    assert status["eta_s"] == pytest.approx(79 * 0.5)


@given(st.integers(0, 200))
def test_every_prefix_of_a_log_has_a_status(cut: int) -> None:
    status = board_of(eventful().records[:cut]).as_json()

    assert set(status) == DOCUMENTED
    json.dumps(status, allow_nan=False)


def test_decisions_are_told_once_with_their_reasons() -> None:
    story = eventful().decided(3, "stay at 3 replicas").decided(3, "stay at 3 replicas")

    decisions = list(explained_of(story.records).decisions)[-2:]

    assert [(d.target_replicas, d.reason) for d in decisions] == [
        (3, "grow from 2 to 3 replicas: r2 is lost"),
        (3, "stay at 3 replicas"),
    ]


def test_the_newest_of_equal_decisions_says_when_it_looks_again() -> None:
    story = Story().decided(3, "held", looks_again_s=9.0).start("r1", after_s=5.0)
    story.decided(3, "held", would_change="time", looks_again_s=60.0)

    (decision,) = explained_of(story.records).decisions

    assert decision.at == story.records[0]["at"]
    assert decision.looks_again_at == story.records[-1]["at"] + 60.0
    assert decision.would_change == "time"


def test_a_policy_set_while_the_job_runs_changes_its_bounds() -> None:
    story = Story().started()

    story.write("policy_changed", policy={}, min_replicas=2, max_replicas=6)

    status = board_of(story.records).as_json()
    assert (status["min_replicas"], status["max_replicas"]) == (2, 6)


def test_goodput_charges_only_gaps_that_cross_a_generation() -> None:
    story = Story().started().start("r1", "r2").spare("r1", "r2", after_s=3.0)
    story.switch("r1", "r2").steps(10, 0.5).exited("r2", "signal", "SIGKILL")
    story.reform("r1", pause_s=2.0).steps(10, 1.0)

    spent = goodput_of(story.records)

    assert spent.start_s == pytest.approx(3.5)
    assert spent.downtime_s == pytest.approx(2.0)
    assert spent.wall_s == pytest.approx(3.0 + 5.0 + 2.0 + 10.0)
    assert (spent.committed_steps, spent.committed_samples) == (20, 320)
    assert spent.goodput == pytest.approx(320 / 20.0)
    assert spent.productive == pytest.approx((20.0 - 3.5 - 2.0) / 20.0)


def test_an_empty_log_has_no_goodput() -> None:
    assert goodput_of([]).goodput == 0.0


@given(st.integers(0, 200))
def test_time_is_never_spent_twice(cut: int) -> None:
    spent = goodput_of(eventful().records[:cut])

    assert 0.0 <= spent.start_s <= spent.wall_s
    assert spent.downtime_s >= 0.0
    assert 0.0 <= spent.productive <= 1.0


def test_what_people_are_told_about_the_eventful_story() -> None:
    story = eventful()
    told = [said for record in story.records if (said := line(record)) is not None]

    assert "asked for 4 replicas" in told
    assert "r3 is starting on here" in told
    assert "r3 is ready to join" in told
    assert "asked to drain r4, 30 s notice" in told
    assert "r2 was ended by SIGKILL" in told
    assert "r4 left" in told


def test_a_worker_without_its_device_is_no_fault_of_the_script() -> None:
    why = "the script was not run: process 4711 has device 1"
    story = eventful().exited("r9", "taken", why)

    assert line(story.records[-1]) == f"r9 could not have its device: {why}"
    assert len(board_of(story.records).resizes()) == len(board_of(eventful().records).resizes())


def test_a_resize_is_told_with_its_price() -> None:
    join, drain, loss, _ = board_of(eventful().records).resizes()

    assert resize_line(join) == (
        "r3, r4 joined at step 13, generation 2, now 4 replicas"
        " (pause 0.200 s, ready after 1.7 s): grow from 2 to 4 replicas: 4 asked for"
    )
    assert resize_line(drain) == (
        "r4 drained at step 24, generation 3, now 3 replicas"
        " (pause none): drain requested with 30 s notice"
    )
    assert "r2 lost at step 34, generation 4, now 2 replicas (pause " in resize_line(loss)


@pytest.mark.parametrize(("pause_s", "said"), [(-0.1, "none"), (0.0, "none"), (0.0123, "0.012 s")])
def test_a_pause_is_told_in_milliseconds(pause_s: float, said: str) -> None:
    assert pause(pause_s) == said
