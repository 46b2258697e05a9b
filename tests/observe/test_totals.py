"""What adds up over a job's life, from a log made by hand."""

from __future__ import annotations

from tests.observe.story import Story

from pliant.observe.goodput import goodput_of
from pliant.observe.status import board_of
from pliant.observe.totals import Totals


def totals_of(story: Story) -> Totals:
    return board_of(story.records).totals


def pair() -> Story:
    story = Story().started()
    story.records[-1]["workers_per_replica"] = 2
    return story.start("r1", "r2").spare("r1", "r2", after_s=10.0).switch("r1", "r2")


def test_devices_are_idle_until_their_replica_trains_and_are_held_all_the_time() -> None:
    story = pair()
    story.now += 0.5
    found = totals_of(story.steps(40, step_s=0.5))

    assert found.steps.counts[4] == 40, "each took half a second"
    assert found.steps.sum_s == 20.0
    assert abs(found.training_s - 4 * 20.0) <= 4 * 1.0
    assert abs(found.training_s + found.idle_s - 4 * 30.5) <= 4 * 0.5


def test_steps_shorter_than_the_pause_between_two_looks_are_training() -> None:
    found = totals_of(pair().steps(400, step_s=0.05))

    assert found.training == 4
    assert abs(found.training_s - 4 * 20.0) <= 4 * 1.0


def test_a_job_that_makes_no_first_step_has_a_time_since_when() -> None:
    story = Story().started()
    assert totals_of(story).committed_at is None, "nobody trains: nothing is late"

    story.start("r1").spare("r1", after_s=10.0)
    began_at = totals_of(story.switch("r1")).committed_at
    assert began_at is not None

    committed_at = totals_of(story.steps(3, step_s=0.5)).committed_at
    assert committed_at is not None
    assert committed_at > began_at
    assert totals_of(story.started()).committed_at is None, "it was resumed"


def test_time_in_the_queue_of_a_pool_is_summed_up() -> None:
    story = Story().started()
    for admission, lasts_s in (("waiting", 60.0), ("running", 100.0), ("waiting", 30.0)):
        story.write("pool", admission=admission)
        story.now += lasts_s
    story.write("job_ended", exit_code=0, reason="")
    story.now += 50
    story.write("note", text="late")

    assert totals_of(story).queued_s == 90.0


def test_what_people_ask_is_told_from_what_the_outside_takes() -> None:
    story = Story().started()
    story.write("scaled", target=3)
    story.write("suspend_requested", reason="for others", notice_s=30.0)
    story.write("suspend_requested", reason="", notice_s=None)
    story.write("exited", replica="r1", exited_kind="finished")
    story.write("exited", replica="r2", exited_kind="signal")
    story.started()
    found = totals_of(story)

    assert found.requests == {"scale": 1, "suspend": 1}
    assert found.causes == {"request": 1, "exit": 1}
    assert found.num_starts == 2


def test_a_board_accounts_as_the_report_of_a_whole_log_does() -> None:
    board = board_of(pair().steps(20).reform("r1", pause_s=3.0).steps(20).records)

    story = pair().steps(20).reform("r1", pause_s=3.0).steps(20)
    assert board.totals.account.goodput(board.timeline) == goodput_of(story.records)
