"""Every resize is found in the log, with its cause and its price."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe.story import Story, eventful

from pliant.observe.timeline import NORMAL_GAPS, Resize, ResizeKind, Timeline, timeline_of


def resizes(story: Story) -> list[Resize]:
    return timeline_of(story.records).resizes()


def two_running() -> Story:
    story = Story().started().start("r1", "r2").spare("r1", "r2")
    return story.switch("r1", "r2").steps(10, 0.5)


def test_the_start_is_no_resize() -> None:
    assert resizes(two_running()) == []


def test_the_eventful_story_has_four_resizes() -> None:
    told = [(r.kind.value, r.replicas, r.num_replicas) for r in resizes(eventful())]

    assert told == [
        ("join", ("r3", "r4"), 4),
        ("drain", ("r4",), 3),
        ("loss", ("r2",), 2),
        ("join", ("r5",), 3),
    ]


def test_every_resize_says_why() -> None:
    assert [resize.reason for resize in resizes(eventful())] == [
        "grow from 2 to 4 replicas: 4 asked for",
        "drain requested with 30 s notice",
        "ended by SIGKILL",
        "grow from 2 to 3 replicas: r2 is lost",
    ]


def test_a_pause_is_the_longest_gap_minus_the_median_step_at_the_new_size() -> None:
    story = two_running().start("r3").spare("r3").prepare("r1", "r2", "r3")
    story.switch("r1", "r2", "r3", pause_s=0.25).steps(9, 0.3)

    [join] = resizes(story)

    # spare took 1 s in which nothing was committed, but before the first Prepare;
    # the gap that spans the switch holds that second, 0.25 s of switching and a step of 0.3 s
    assert join.pause_s == pytest.approx(1.0 + 0.25 + 0.3 - 0.3)


def test_a_slow_preparation_counts_as_pause() -> None:
    story = two_running().start("r3").spare("r3", after_s=0.0).prepare("r1", "r2", "r3")
    story.steps(1, 0.9).switch("r1", "r2", "r3").steps(9, 0.3)

    [join] = resizes(story)

    assert join.pause_s == pytest.approx(0.9 - 0.3)


def test_a_pause_before_the_cause_does_not_count() -> None:
    story = two_running().steps(1, 30.0).steps(1, 0.5).start("r3").spare("r3", after_s=0.0)
    story.prepare("r1", "r2", "r3").switch("r1", "r2", "r3").steps(9, 0.3)

    [join] = resizes(story)

    assert join.pause_s == pytest.approx(0.0)


def test_a_resize_that_was_quicker_than_a_step_at_the_new_size_has_no_pause() -> None:
    story = two_running().start("r3").spare("r3", after_s=0.0)
    story.prepare("r1", "r2", "r3").switch("r1", "r2", "r3").steps(1, 0.2).steps(9, 0.3)

    [join] = resizes(story)

    assert join.pause_s == 0.0


def test_commits_that_are_reported_late_are_judged_by_their_own_time() -> None:
    story = two_running().start("r3").spare("r3", after_s=0.0).prepare("r1", "r2", "r3")
    early = story.now + 0.5
    story.now += 0.6
    story.switch("r1", "r2", "r3")
    story.commit(generation=1, mono=early)  # in the batch after Switched
    story.now = early
    story.steps(9, 0.3)

    [join] = resizes(story)

    assert join.pause_s == pytest.approx(0.5 - 0.3)


def test_the_price_is_open_until_the_new_size_has_a_normal_step() -> None:
    story = two_running().exited("r2", "signal", "SIGKILL").reform("r1")

    [before] = resizes(story)
    [during] = resizes(story.steps(1))
    [known_too_little] = resizes(story.steps(NORMAL_GAPS - 1))
    [after] = resizes(story.steps(1))
    [much_later] = resizes(story.steps(50, step_s=3.0))

    assert [one.pause_s for one in (before, during, known_too_little)] == [None] * 3
    assert after.pause_s is not None
    assert much_later.pause_s == after.pause_s  # it was told


def test_at_the_end_of_a_job_what_is_known_must_do_for_the_price() -> None:
    story = two_running().exited("r2", "signal", "SIGKILL").reform("r1").steps(2)
    story.write("end_job", exit_code=0, reason="finished")

    [resize] = resizes(story)

    assert resize.pause_s is not None


def test_the_new_size_is_that_of_the_first_commit_after_the_event() -> None:
    story = two_running().exited("r2", "signal", "SIGKILL").reform("r1")  # below its minimum
    story.start("r3").spare("r3", after_s=1.0).switch("r1", "r3").steps(5, 0.5)

    loss, join = resizes(story)

    assert loss.pause_s == pytest.approx(1.0)
    assert join.pause_s == pytest.approx(1.0)


def test_ready_counts_from_the_order_to_start_until_the_slowest_joiner_trains() -> None:
    story = two_running().start("r3").start("r4", after_s=0.5).spare("r3", "r4", after_s=2.0)
    story.prepare("r1", "r2", "r3", "r4").switch("r1", "r2", "r3", "r4", pause_s=0.5).steps(5)

    [join] = resizes(story)

    assert join.ready_s == pytest.approx(0.5 + 2.0 + 0.5)


def test_a_committed_step_that_is_done_again_is_lost() -> None:
    story = two_running().exited("r2", "signal", "SIGKILL").reform("r1")
    story.committed -= 3
    story.steps(5)

    [loss] = resizes(story)

    assert loss.steps_lost == 3


def test_a_step_that_was_only_begun_is_not_lost() -> None:
    story = two_running().exited("r2", "signal", "SIGKILL").reform("r1").steps(5)

    [loss] = resizes(story)

    assert loss.steps_lost == 0


def test_a_step_reported_by_several_replicas_counts_once() -> None:
    story = two_running()
    doubled = [record for record in story.records for _ in range(2)]

    timeline = timeline_of(doubled)

    assert timeline.num_commits == 10
    assert timeline.median_step_s(2) == pytest.approx(0.5)


def test_a_leaver_that_is_killed_before_the_boundary_is_a_loss() -> None:
    story = two_running()
    story.write("drain_requested", replica="r2", notice_s=5.0)
    story.prepare("r1").exited("r2", "signal", "SIGKILL").reform("r1").steps(5)

    [loss] = resizes(story)

    assert (loss.kind, loss.reason) == (ResizeKind.LOSS, "ended by SIGKILL")


def test_a_kill_on_request_says_so() -> None:
    story = two_running()
    story.write("kill_requested", replica="r2")
    story.write("end_replica", replica="r2", reason="kill requested")
    story.exited("r2", "signal", "SIGKILL").reform("r1").steps(5)

    [loss] = resizes(story)

    assert loss.reason == "kill requested: ended by SIGKILL"


@pytest.mark.parametrize(
    ("how", "detail", "reason"),
    [
        ("signal", "SIGKILL", "r2.1 ended by SIGKILL"),
        ("script", "ValueError: x", "r2.1: ValueError: x"),
    ],
)
def test_a_loss_says_which_worker_of_several_was_its_cause(
    how: str, detail: str, reason: str
) -> None:
    story = two_running()
    story.write("exited", replica="r2", exited_kind=how, detail=detail, worker=1)
    story.reform("r1").steps(5)

    [loss] = resizes(story)

    assert loss.reason == reason


def test_a_drain_to_a_smaller_target_says_what_was_decided() -> None:
    story = two_running().decided(1, "shrink from 2 to 1 replica: 1 asked for").prepare("r1")
    story.decided(1, "stay at 1 replica: 1 asked for").switch("r1").steps(5)

    [drain] = resizes(story)

    assert drain.reason == "shrink from 2 to 1 replica: 1 asked for"


def test_one_generation_may_drain_and_join() -> None:
    story = two_running().start("r3").spare("r3").prepare("r1", "r3").switch("r1", "r3").steps(5)

    assert [(r.kind.value, r.replicas) for r in resizes(story)] == [
        ("drain", ("r2",)),
        ("join", ("r3",)),
    ]


def test_lives_have_a_beginning_and_an_end() -> None:
    timeline = timeline_of(eventful().records)

    life = timeline.lives["r4"]
    assert life.ended is not None
    assert life.spare is not None
    assert life.joined is not None
    assert life.requested < life.spare < life.joined < life.ended
    assert (life.how, timeline.lives["r1"].ended) == ("left", None)


@given(st.integers(1, 4), st.lists(st.floats(0.01, 10.0), min_size=2, max_size=30))
def test_the_median_step_is_that_of_the_gaps_at_that_size(size: int, gaps: list[float]) -> None:
    names = tuple(f"r{n}" for n in range(1, size + 1))
    story = Story().started().start(*names).switch(*names).commit()
    for gap in gaps:
        story.steps(1, gap)

    timeline = timeline_of(story.records)

    assert timeline.median_step_s(size) == pytest.approx(median(gaps), abs=1e-9)
    assert timeline.median_step_s(size + 1) is None


KINDS = st.sampled_from(
    ["prepare", "switch", "reform", "switched", "commit", "exited", "spare", "start_replica"]
)
VALUES = st.fixed_dictionaries(
    {"kind": KINDS, "mono": st.floats(0, 100), "replica": st.sampled_from(["r1", "r2", "r3"])},
    optional={
        "generation": st.integers(0, 5),
        "step": st.integers(0, 9),
        "order": st.builds(
            lambda number, names: {
                "generation": number,
                "members": [{"replica": name} for name in names],
            },
            st.integers(0, 5),
            st.sets(st.sampled_from(["r1", "r2", "r3"])),
        ),
        "exited_kind": st.sampled_from(["signal", "left", "finished"]),
    },
)


@given(st.lists(VALUES, max_size=60))
def test_records_in_any_order_never_stop_the_timeline(records: list[dict[str, object]]) -> None:
    timeline = Timeline()

    for record in records:
        timeline.add(record)

    generations = [resize.generation for resize in timeline.resizes()]
    assert generations == sorted(generations)


@given(st.integers(0, 200))
def test_reading_in_two_parts_gives_what_reading_at_once_gives(cut: int) -> None:
    records = eventful().records
    timeline = timeline_of(records[:cut])

    for record in records[cut:]:
        timeline.add(record)

    assert timeline.resizes() == timeline_of(records).resizes()
