"""What says that results may be wrong is seen at the end, and in the status, once each."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from pliant.cli.screens import job_panel
from pliant.observe import explain
from pliant.observe.log import Record
from pliant.observe.status import board_of

DIFFERS = "the script's 'best' is 0.0 here and {} on the replicas that train: set it in the loop"


def note(text: str, by: str = "r2", *, lasting: bool = True) -> Record:
    return {"kind": "note", "replica": by, "text": text, "lasting": lasting, "at": 1.0}


def told(records: list[Record]) -> list[tuple[Any, Any]]:
    return [(one["by"], one["text"]) for one in board_of(records).as_json()["warnings"]]


def test_only_lasting_notes_are_kept_and_each_once() -> None:
    one, other = DIFFERS.format(0.25), DIFFERS.format("1e-3").replace("best", "ema2")
    records = [note("hello", lasting=False), note(one), note(DIFFERS.format(17), "r3"), note(other)]

    assert told(records) == [("r2", one), ("r2", other)]


@pytest.mark.parametrize(
    ("other", "is_same"),
    [("'x1' is 3, and 4 there", True), ("'x1' is -0.5, and nan there", False),
     ("'x2' is 1, and 2 there", False), ("'x1' is 1, and 2 here", False)],
)  # fmt: skip
def test_numbers_make_no_other_note_but_names_do(other: str, is_same: bool) -> None:
    assert explain.is_same("'x1' is 1, and 2 there", other) is is_same


def test_a_change_of_size_in_restart_mode_is_told_with_its_cost() -> None:
    found = explain.Explained()
    records: list[Record] = [
        {"kind": "job_started", "mode": "restart"},
        {"kind": "switch", "at": 10.0},
        {**note("stopped from 2 to 3, at call 7 of elastic_event: ..."), "at": 11.5},
        {**note("rank 1 had not acknowledged a save within 1 s: up to 7 steps may be repeated")},
        {"kind": "commit", "at": 16.0},
        {"kind": "commit", "at": 17.0},
    ]
    for record in records:
        found.add(record)

    assert found.cost == (
        "the last change, from 2 to 3 processes: all had ended 1.5 s after it was ordered; up to 7 "
        "steps may be repeated; the next step was done 6.0 s after it was ordered"
    )
    found.add({"kind": "job_started", "mode": "inPlace"})
    assert found.cost is None


def test_their_number_is_bounded_and_what_is_left_out_is_said() -> None:
    warnings = board_of([note("about " + "x" * length) for length in range(100)]).warnings

    lines = explain.lines(warnings)

    assert len(warnings) == explain.MAX_KEPT
    assert lines[0] == "warning (r2): about "
    assert lines[explain.MAX_SHOWN :] == ["15 more: pliant status --json"]


def test_they_stay_over_a_resume_and_are_in_the_panel() -> None:
    ended = {"kind": "job_ended", "exit_code": 3, "reason": "stopped"}
    status = board_of([note("what is wrong"), ended, {"kind": "job_started"}]).as_json()
    console = Console(width=80, record=True)

    console.print(job_panel(status))

    assert "warning (r2): what is wrong" in console.export_text()


def test_who_the_job_goes_on_without_is_named_at_the_end_once() -> None:
    held = "node n1 starts nothing more until pliant scale N, as r3 was refused: a.yaml changed"
    notes: list[Record] = [
        {"kind": "note", "text": text}
        for text in ("r2 cannot join: it differs", held, "r4 cannot join: it differs", "r5 left")
    ]

    assert told(notes) == [("r2", "cannot join: it differs"), ("r3", "refused: a.yaml changed")]
