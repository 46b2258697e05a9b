"""What a replica printed is shown line by line, none left out and none twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pliant.cli import job_commands
from pliant.cli.job_commands import MAX_LINE_BYTES, printed
from pliant.cli.main import code_of
from pliant.observe.printed import PrintedUntil, printed_after, printers, workers_of


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


Read = Callable[[PrintedUntil], tuple[bytes, PrintedUntil]]


def lines_of(read: Read, is_over: Callable[[], bool]) -> Iterator[str]:
    """Yield what one worker printed."""
    return (text for _, text in printed(lambda: ["r1"], lambda _, after: read(after), is_over))


@pytest.fixture
def read(tmp_path: Path) -> Read:
    return lambda after: printed_after(tmp_path, "r1", after)


def test_nothing_that_comes_while_others_are_shown_is_left_out(logs: Path, read: Read) -> None:
    """Who reads may be slow: a pager, a terminal that is far away."""
    path, ends = logs / "r1.log", iter([False, False, False, True])
    path.write_text("one\n")
    lines = lines_of(read, lambda: next(ends))

    assert next(lines) == "one"
    with path.open("a") as log:
        log.write("two\nhal")
    assert next(lines) == "two"
    with path.open("a") as log:
        log.write("f-")
    path.rename(logs / "r1.log.2")  # rotated twice between two looks
    (logs / "r1.log.1").write_text("way\nfour\n")
    path.write_text("five")

    assert list(lines) == ["half-way", "four", "five"]


def test_a_line_that_was_written_over_is_one_line(logs: Path, read: Read) -> None:
    (logs / "r1.log.10").write_text("first\n")
    (logs / "r1.log.9").write_text(" 10%\r100%\n")
    (logs / "r1.log.old").write_text("not ours\n")
    (logs / "r1.log").touch()

    shown = list(lines_of(read, lambda: True))

    assert shown == ["first", " 10%\r100%"]


@pytest.mark.timeout(10)
def test_who_prints_faster_than_it_is_shown_does_not_keep_it_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_commands, "MOST_AT_ONCE", 1000, raising=False)

    def read(after: PrintedUntil) -> tuple[bytes, PrintedUntil]:
        assert after.offset < 5000, "it goes on without end"
        return b"again\n" * 20, PrintedUntil(1, after.offset + 120)

    assert 100 <= len(list(lines_of(read, lambda: True))) <= 200


def test_a_line_without_end_is_shown_in_pieces() -> None:
    """As a bar of progress is, over days: none of it is lost, and little of it is kept."""
    pieces = iter([b"%" * 300_000] * 10)

    def read(after: PrintedUntil) -> tuple[bytes, PrintedUntil]:
        return next(pieces, b""), after

    shown = list(lines_of(read, lambda: True))

    assert max(map(len, shown)) <= MAX_LINE_BYTES + 300_000
    assert sum(map(len, shown)) == 3_000_000


def test_of_several_workers_each_has_its_lines_also_who_prints_later(
    logs: Path, tmp_path: Path
) -> None:
    (logs / "r1.0.log").write_text("zero\nhal")
    (logs / "r2.0.log").write_text("another replica's\n")
    ends = iter([False, True])

    def workers() -> list[str]:
        return workers_of(printers(tmp_path), "r1")

    lines = printed(workers, partial(printed_after, tmp_path), lambda: next(ends))

    assert next(lines) == ("r1.0", "zero")
    (logs / "r1.1.log").write_text("one\n")
    with (logs / "r1.0.log").open("a") as log:
        log.write("f")
    assert sorted(lines) == [("r1.0", "half"), ("r1.1", "one")]


def test_the_name_of_a_worker_of_a_job_elsewhere_steers_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [("r1.\x1b[2J", "said")]
    job_commands._show("gpt", "r1", lines, is_wanted=bool, as_json=False)

    assert capsys.readouterr().out == "r1.\\x1b[2J | said\n"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--grep", "loss (nan|inf)"], ["r1 | loss nan", "r2 | loss inf"]),
        (["r2", "--grep", "loss"], ["loss 2", "loss inf"]),
        (["--all"], ["r1 | loss 1", "r1 | loss nan", "r2 | loss 2", "r2 | loss inf"]),
        (
            ["r1", "--json"],
            [{"run": "gpt", "replica": "r1", "line": f"loss {x}"} for x in ("1", "nan")],
        ),
    ],
)
def test_lines_of_one_or_all_replicas_are_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], shown: list[Any]
) -> None:
    run = tmp_path / "gpt"
    (run / "logs").mkdir(parents=True)
    (run / "events.jsonl").touch()
    (run / "logs/r1.log").write_text("loss 1\nloss nan\n")
    (run / "logs/r2.log").write_text("loss 2\nloss inf\n")

    assert code_of(["logs", "--out", str(run), *words]) == 0

    said = capsys.readouterr().out.splitlines()
    assert [json.loads(one) for one in said] == shown if "--json" in words else said == shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--grep", "(", "--out", "."], "--grep ( is no regular expression"),
        (["r1", "--all", "--out", "."], "r1 is one replica, and --all are all"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert code_of(["logs", *words]) == 2
    assert sentence in capsys.readouterr().err
