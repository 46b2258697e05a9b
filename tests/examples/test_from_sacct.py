"""What Slurm prints becomes jobs; what cannot be read is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from examples.simulations import from_sacct
from examples.simulations.from_sacct import ExportError, Row, parse_sacct, unix_s

from pliant.spec.workload import parse_workload


def rows_of(text: str) -> list[Row]:
    return parse_sacct(text, source="o.txt").rows


def test_times_are_in_utc_unless_they_say_where() -> None:
    plain, zulu, berlin = map(
        unix_s, ("2026-10-01T08:00:00", "2026-10-01T08:00:00Z", "2026-10-01T10:00:00+02:00")
    )

    assert plain == zulu == berlin
    assert unix_s("8 o'clock") is None


HEADER = "JobID|JobName|Submit|Start|End|State|AllocTRES"


def row(
    job: str = "7",
    submit: str = "2026-10-01T08:00:00",
    start: str = "2026-10-01T08:10:00",
    end: str = "2026-10-01T09:10:00",
    tres: str = "cpu=64,gres/gpu=8,node=1",
) -> str:
    return f"{job}|x|{submit}|{start}|{end}|COMPLETED|{tres}"


def export(*rows: str) -> str:
    return "\n".join([HEADER, *rows]) + "\n"


def test_a_job_arrives_waits_and_trains_on_what_it_was_given() -> None:
    text = export(row(), row("9", "2026-10-01T09:00:00", "2026-10-01T09:00:00"))

    assert rows_of(text) == [("7", 0.0, 600.0, 3600.0, 8), ("9", 3600.0, 3600.0, 600.0, 8)]


@pytest.mark.parametrize(
    ("tres", "devices"),
    [
        ("gres/gpu=8", 8),
        ("billing=8,gres/gpu:a100=4,gres/gpu=4", 4),
        ("cpu=1,gres/gpu:a100=2,gres/gpu:h100=1,mem=4G", 3),
    ],
)
def test_accelerators_with_a_type_are_not_counted_twice(tres: str, devices: int) -> None:
    assert [row[-1] for row in rows_of(export(row(tres=tres)))] == [devices]


def test_what_is_no_training_is_left_out_and_counted() -> None:
    text = export(
        row(),
        row("7.batch"),
        row("8", tres="cpu=4"),
        row("9", start="None", end="2026-10-01T08:30:00"),
        row("10", start="Unknown", end="Unknown"),
        row("11", end="2026-10-01T08:10:00"),
        row("12_[3-9]", start="Unknown", end="Unknown", tres=""),
        row("13", start="2026-10-01T08:20:00", end="2026-10-01T08:20:00", tres=""),
    )

    found = parse_sacct(text, source="o.txt")

    assert [name for name, *_ in found.rows] == ["7"]
    assert found.notes == (
        "left out: 1 steps of jobs",
        "left out: 1 jobs without an accelerator",
        "left out: 4 jobs that never began",
        "left out: 1 jobs that took no time",
    )


def test_a_job_that_was_to_wait_for_another_waits_for_accelerators_only_then() -> None:
    late, later = "2026-10-01T08:10:30", "2026-10-01T08:11:00"
    text = export(row(), row("8", start=late), row("9", start=later))
    text = text.replace("JobName", "Eligible")
    first, after, none = text.splitlines()[1:]
    after = after.replace("|x|", "|2026-10-01T08:09:00|")
    none = none.replace("|x|", "|Unknown|")
    first = first.replace("|x|", "|2026-10-01T08:30:00|")  # it had begun by then

    text = "\n".join([text.splitlines()[0], first, after, none])

    assert [(name, began_s - arrival_s) for name, arrival_s, began_s, *_ in rows_of(text)] == [
        ("9", 660.0),
        ("8", 90.0),
        ("7", 0.0),
    ]


def test_who_ran_before_the_window_of_an_export_arrives_with_it() -> None:
    """With ``sacct -T`` whatever ran before the first moment seems to begin then."""
    text = export(
        row("1", "2026-08-30T08:00:00", "2026-10-01T00:00:00"),
        row("2", "2026-09-30T08:00:00", "2026-10-01T00:00:00"),
        row("3", "2026-09-30T23:00:00", "2026-10-01T01:00:00"),
        row("4"),
    )

    found = parse_sacct(text, source="o.txt")

    waited = [(name, arrival_s, began_s) for name, arrival_s, began_s, *_ in found.rows]
    assert waited[:3] == [("1", 0.0, 0.0), ("2", 0.0, 0.0), ("3", 0.0, 3600.0)]
    assert waited[3] == ("4", 8 * 3600.0, 8 * 3600.0 + 600.0)
    assert found.notes == ("3 jobs were submitted before the export begins, and arrive with it",)


def test_a_long_beginning_with_hardly_a_job_is_told_of() -> None:
    days = [f"2026-10-{day:02}T08:00:00" for day in range(1, 31)]
    rows = [row(day, day, day, day.replace("T08", "T20")) for day in days]
    late = row("old", "2026-09-01T08:00:00", "2026-09-01T08:00:00", "2026-10-05T08:00:00")

    found = parse_sacct(export(late, *rows), source="o.txt")

    assert parse_sacct(export(*rows), source="o.txt").notes == ()
    assert found.notes == (
        "only 2 of 31 jobs began in the first 732 of 1428 hours: others that had ended by then are"
        " missing, and what seems idle there was not; cut the export to a window (sacct -T)",
    )


def test_a_job_that_still_runs_ends_with_the_export_and_one_that_was_requeued_is_two() -> None:
    text = export(
        row("7", end="Unknown"),
        row("7", "2026-10-01T08:30:00", "2026-10-01T09:00:00", "2026-10-01T10:10:00"),
    )

    found = parse_sacct(text, source="o.txt")

    assert [(name, work_s) for name, _, _, work_s, _ in found.rows] == [
        ("7", 7200.0),
        ("7#2", 4200.0),
    ]
    assert found.notes == ("1 jobs that still ran end with the export",)


def test_bars_at_the_end_of_lines_are_those_of_parsable() -> None:
    assert len(rows_of(export(row()).replace("\n", "|\n"))) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            export(row()).replace("|Submit|", "|Eligible|"),
            "o.txt line 1: the column Submit is missing; export with `sacct --parsable2 -o"
            " JobID,Submit,Start,End,AllocTRES`",
        ),
        (export("7|x"), "o.txt line 2 has 2 fields; expected 7, as in line 1"),
        (
            export(row(), row(start="08:10")),
            "o.txt line 3: Start '08:10' is no time; expected one such as 2026-10-01T08:00:00",
        ),
        (
            export(row(submit="Unknown")),
            "o.txt line 2: Submit is empty; expected a time, such as 2026-10-01T08:00:00",
        ),
        (
            export(row(end="2026-10-01T08:09:00")),
            "o.txt line 2: End 2026-10-01T08:09:00 is before Start 2026-10-01T08:10:00; if the"
            " clock was put back, export with TZ=UTC",
        ),
        (
            export(row(tres="cpu=1")),
            "o.txt has no job that trained on accelerators (left out: 1 jobs without an"
            " accelerator)",
        ),
    ],
)
def test_what_cannot_be_read_is_named(text: str, sentence: str) -> None:
    with pytest.raises(ExportError) as told:
        parse_sacct(text, source="o.txt")

    assert str(told.value) == sentence


def test_what_is_written_is_a_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "o.txt"
    path.write_text("\ufeff" + export(row(), row("8", tres="cpu=4")))
    monkeypatch.setattr(sys, "argv", ["from_sacct.py", str(path)])

    assert from_sacct.main() == 0

    said = capsys.readouterr()
    (one,) = parse_workload(said.out, source="o.csv")
    assert (one.name, one.arrival_s, one.work_s, one.devices) == ("7", 0.0, 3600.0, 8)
    assert said.err.splitlines() == [
        f"{path}: left out: 1 jobs without an accelerator",
        f"{path}: jobs waited 0.2 h in the mean (p99 0.2 h)",
    ]
    path.write_text("x\n")
    assert from_sacct.main() == 2
