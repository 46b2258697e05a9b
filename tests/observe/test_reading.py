"""Durations are right over reboots and other machines; a wall clock that is set changes none."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observe.story import Story, eventful

from pliant.observe.goodput import goodput_of
from pliant.observe.log import CONTINUED, Record
from pliant.observe.reading import LogClock
from pliant.observe.status import board_of

HERE = {"machine": "one pid:[1]"}


def two_lives(kind: str = "job_started") -> tuple[list[Record], int]:
    """A run that goes on after an hour; where its second life begins."""
    story = eventful()
    story.records[0].update(HERE)
    story.now += 3600.0
    begun = len(story.records)
    story.write(kind, **HERE, out="runs/gpt", pid=8, url="http://h")
    story.start("r8").spare("r8").restore("r8", checkpoint="step-9", committed=9).steps(9)
    story.start("r9").spare("r9").prepare("r8", "r9").switch("r8", "r9").steps(9, 0.3)
    story.exited("r9", "signal", "SIGKILL").reform("r8", pause_s=0.4).steps(9)
    return story.records, begun


def moved(records: list[Record], begun: int, by_s: float, machine: str) -> list[Record]:
    """The same where the clock of the second life begins elsewhere."""
    records = copy.deepcopy(records)
    for record in records[begun:]:
        record["mono"] = round(record["mono"] + by_s, 6)
    records[begun]["machine"] = machine
    return records


def told(records: list[Record]) -> dict[str, Any]:
    """Everything with a duration in it."""
    board, spent = board_of(records), goodput_of(records)
    pauses = [(resize.pause_s, resize.ready_s) for resize in board.resizes()]
    return {
        "wall_s": spent.wall_s,
        "start_s": spent.start_s,
        "downtime_s": spent.downtime_s,
        "goodput": spent.goodput,
        "median_s": board.median_step_s(),
        "speed": board.samples_per_s(),
        "eta_s": board.eta_s(),
        **{f"pause {at}": one[0] for at, one in enumerate(pauses)},
        **{f"ready {at}": one[1] for at, one in enumerate(pauses)},
    }


@pytest.mark.parametrize("kind", ["job_started", "coordinator_started"])
@given(by_s=st.floats(-3600.0, 1e7), machine=st.sampled_from(["two pid:[1]", "two pid:[2]"]))
def test_a_run_that_goes_on_after_a_reboot_has_the_figures_of_one_that_saw_none(
    kind: str, by_s: float, machine: str
) -> None:
    records, begun = two_lives(kind)

    assert told(moved(records, begun, by_s, machine)) == pytest.approx(told(records), abs=1e-4)


def test_where_no_start_says_its_boot_a_clock_that_is_behind_has_begun_anew() -> None:
    records, begun = two_lives()
    for record in records:
        record.pop("machine", None)
    after = [*records[:begun], *moved(records, begun, -3700.0, "")[begun:]]

    assert told(after) == pytest.approx(told(records), abs=1e-4)


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_wall_clock_that_is_set_changes_nothing(jump_s: float) -> None:
    records, begun = two_lives()
    jumped = copy.deepcopy(records)
    for record in jumped[begun - 20 :]:
        record["at"] += jump_s

    assert told(jumped) == told(records)


def test_of_a_log_whose_beginning_is_gone_what_it_carries_says_the_boot() -> None:
    """The newest start that it carries: the job may have been begun elsewhere."""
    clock, story = LogClock(), Story(now=50.0)
    before = {"kind": "job_started", "machine": "two pid:[1]"}
    clock.add(story.write(CONTINUED, carried=[before, {"kind": "coordinator_started", **HERE}]))
    clock.add(story.write("commit"))
    story.now = 60.0
    again = story.write("job_started", machine="two pid:[1]")

    assert clock.add({**again, "mono": 1000.0})
    assert clock.moment_s({**again, "mono": 1001.0}) == pytest.approx(61.0)
