"""What people are shown of a run that lost every process and went on from a checkpoint."""

from __future__ import annotations

import pytest
from tests.observe.story import Story
from tests.observe.whole_log import explained_of

from pliant.observe.prose import line, resize_line
from pliant.observe.status import Board, board_of
from pliant.observe.timeline import ResizeKind


def lost_and_restored() -> Story:
    story = Story().started().start("r1", "r2").spare("r1", "r2").planned().switch("r1", "r2")
    story.steps(10).saved("step-00000010-l1").steps(3)
    story.now += 20.0
    story.started().start("r3").spare("r3", after_s=2.0)
    return story.restore("r3", checkpoint="step-00000010-l1", committed=10).steps(5)


def test_a_restore_is_one_event_and_no_loss_or_join() -> None:
    (restore,) = board_of(lost_and_restored().records).resizes()

    assert restore.kind is ResizeKind.RESTORE
    assert (restore.replicas, restore.step, restore.steps_lost) == (("r3",), 10, 3)
    assert restore.ready_s == 2.0
    assert restore.pause_s is not None
    assert 20.0 < restore.pause_s < 23.0
    assert resize_line(restore).startswith("r3 restored at step 10, generation 2, now 1 replica (")
    assert "3 steps to repeat): from step-00000010-l1" in resize_line(restore)


def test_the_time_while_it_was_suspended_is_no_pause() -> None:
    story = Story().started().start("r1").spare("r1").switch("r1").steps(10)
    story.saved("step-00000010-l1").write("job_ended", reason="suspended on request")
    story.now += 96.0
    story.started().start("r2").spare("r2", after_s=2.0)
    story.restore("r2", checkpoint="step-00000010-l1", committed=10).steps(5)

    (restore,) = board_of(story.records).resizes()

    assert restore.pause_s == pytest.approx(2.0)


def test_the_step_goes_back_and_the_dead_are_not_listed() -> None:
    story = lost_and_restored()
    status = board_of(story.records).as_json()

    assert status["step"] == 15
    assert [replica["name"] for replica in status["replicas"]] == ["r3"]
    assert status["checkpoint"]["name"] == "step-00000010-l1"
    assert status["restored"] == {
        "checkpoint": "step-00000010-l1",
        "committed": 10,
        "lineage": 2,
    }
    assert board_of(story.records[:-5]).committed == 10


def test_a_run_that_begins_again_says_that_nothing_was_durable() -> None:
    story = Story().started().start("r1").spare("r1").switch("r1").steps(2)
    story.started().start("r2").spare("r2").restore("r2", checkpoint="", committed=0).steps(2)

    (restore,) = board_of(story.records).resizes()

    assert restore.reason == "from the beginning, for nothing was durable"
    assert restore.steps_lost == 2


def test_a_failure_shows_until_a_save_succeeds() -> None:
    story = Story().started().start("r1").spare("r1").switch("r1").steps(2)
    story.write("save_failed", replica="r1", committed=2, reason="disk full", retry_s=1.0)
    board = board_of(story.records)

    assert board.as_json()["checkpoint_failure"]["reason"] == "disk full"
    assert line(story.records[-1]) == ("no checkpoint after step 2: disk full; trying again in 1 s")

    board.add(story.saved("step-00000002-l1").records[-1])
    assert board.as_json()["checkpoint_failure"] is None
    assert line(story.records[-1]) == "checkpoint step-00000002-l1 is durable (0.5 s)"


def test_a_suspended_job_is_no_failed_one() -> None:
    story = Story().started().start("r1").spare("r1").switch("r1").steps(2)
    story.write("suspend_requested")
    board = board_of(story.records)
    assert board.state == "stopping"

    board.add(story.write("job_ended", exit_code=3, reason="suspended on request after 2 steps"))
    assert board.state == "suspended"
    board.add(story.started().records[-1])
    assert board.state == "training"


def test_the_interval_is_the_last_one_that_was_told() -> None:
    story = Story()
    assert explained_of(story.records).interval is None
    for reason in ("a checkpoint every 60 s: one", "a checkpoint every 90 s: two"):
        story.write("interval_chosen", replica="r1", reason=reason)

    assert explained_of(story.records).interval == "a checkpoint every 90 s: two"
    assert Board().checkpoint is None
