"""The demo acts when the job is at peace, and its report says what the logs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.observe.story import Story, eventful

from pliant.observe.status import Board, board_of
from pliant.recipes.demo import Act, is_at_peace, make_report


def act(num_replicas: int) -> Act:
    return Act(num_replicas=num_replicas, deed=lambda job, board: None)


def board(story: Story) -> Board:
    return board_of(story.records)


def test_peace_needs_time_since_the_last_resize() -> None:
    story = eventful()

    assert is_at_peace(board(story), act(3), spacing=10)
    assert not is_at_peace(board(story), act(3), spacing=11)


def test_there_is_no_peace_while_anyone_comes_or_goes() -> None:
    assert not is_at_peace(board(eventful()), act(4), spacing=1)
    assert not is_at_peace(board(eventful().start("r6")), act(3), spacing=1)
    assert not is_at_peace(board(eventful().start("r6")), act(4), spacing=1)
    leaving = eventful()
    leaving.write("drain_requested", replica="r5", notice_s=30.0)
    assert not is_at_peace(board(leaving), act(3), spacing=1)


def test_an_act_may_need_more_than_peace() -> None:
    needy = Act(num_replicas=3, deed=lambda job, board: None, needs=lambda board: False)

    assert not is_at_peace(board(eventful()), needy, spacing=1)


def lay_out(out: Path, digests: tuple[str, str]) -> None:
    undisturbed = Story().started().start("r1").spare("r1").switch("r1").steps(49, 0.6)
    for name, story, digest in zip(
        ("elastic", "undisturbed"), (eventful(), undisturbed), digests, strict=True
    ):
        (out / name).mkdir()
        lines = [json.dumps(record) + "\n" for record in story.records]
        (out / name / "events.jsonl").write_text("".join(lines))
        (out / name / "digest.txt").write_text(digest + "\n")


def test_the_report_has_the_documented_fields(tmp_path: Path) -> None:
    lay_out(tmp_path, ("abc", "abc"))

    report = make_report(tmp_path)

    assert (report["bit_identical"], report["state_digest"]) == (True, "abc")
    assert report["steps_lost"] == 0
    assert report["samples_exactly_once"] is False  # there is no ledger
    assert report["passed"] is False
    assert report["median_step_s"] == pytest.approx(0.4, abs=0.05)
    assert [event["kind"] for event in report["events"]] == ["join", "drain", "loss", "join"]
    assert {"kind", "reason", "generation", "step", "pause_s", "ready_s"} <= set(
        report["events"][0]
    )


def test_other_bits_are_reported_as_such(tmp_path: Path) -> None:
    lay_out(tmp_path, ("abc", "abd"))

    assert make_report(tmp_path)["bit_identical"] is False
