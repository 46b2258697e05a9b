"""What a replica printed is shown line by line, none left out and none twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from pliant.cli import logs as command
from pliant.cli.logs import MAX_LINE_BYTES, Read, printed
from pliant.observe.printed import PrintedUntil, printed_after


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


@pytest.fixture
def read(tmp_path: Path) -> Read:
    return partial(printed_after, tmp_path, "r1")


def test_nothing_that_comes_while_others_are_shown_is_left_out(logs: Path, read: Read) -> None:
    """Who reads may be slow: a pager, a terminal that is far away."""
    path, ends = logs / "r1.log", iter([False, False, False, True])
    path.write_text("one\n")
    lines = printed(read, lambda: next(ends))

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

    shown = list(printed(read, lambda: True))

    assert shown == ["first", " 10%\r100%"]


@pytest.mark.timeout(10)
def test_who_prints_faster_than_it_is_shown_does_not_keep_it_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "MOST_AT_ONCE", 1000, raising=False)

    def read(after: PrintedUntil) -> tuple[bytes, PrintedUntil]:
        assert after.offset < 5000, "it goes on without end"
        return b"again\n" * 20, PrintedUntil(1, after.offset + 120)

    assert 100 <= len(list(printed(read, lambda: True))) <= 200


def test_a_line_without_end_is_shown_in_pieces() -> None:
    """As a bar of progress is, over days: none of it is lost, and little of it is kept."""
    pieces = iter([b"%" * 300_000] * 10)

    def read(after: PrintedUntil) -> tuple[bytes, PrintedUntil]:
        return next(pieces, b""), after

    shown = list(printed(read, lambda: True))

    assert max(map(len, shown)) <= MAX_LINE_BYTES + 300_000
    assert sum(map(len, shown)) == 3_000_000
