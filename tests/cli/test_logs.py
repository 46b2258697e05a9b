"""What a replica printed is shown line by line, none left out and none twice."""

from __future__ import annotations

from pathlib import Path

from pliant.cli.logs import printed


def test_nothing_that_comes_while_others_are_shown_is_left_out(tmp_path: Path) -> None:
    """Who reads may be slow: a pager, a terminal that is far away."""
    path, ends = tmp_path / "r1.log", iter([False, False, False, True])
    path.write_text("one\n")
    lines = printed(path, lambda: next(ends))

    assert next(lines) == "one"
    with path.open("a") as log:
        log.write("two\nhal")
    assert next(lines) == "two"
    with path.open("a") as log:
        log.write("f-")
    path.rename(tmp_path / "r1.log.2")  # rotated twice between two looks
    (tmp_path / "r1.log.1").write_text("way\nfour\n")
    path.write_text("five")

    assert list(lines) == ["half-way", "four", "five"]


def test_a_line_that_was_written_over_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "r1.log.10").write_text("first\n")
    (tmp_path / "r1.log.9").write_text(" 10%\r100%\n")
    (tmp_path / "r1.log.old").write_text("not ours\n")
    (tmp_path / "r1.log").touch()

    shown = list(printed(tmp_path / "r1.log", lambda: True))

    assert shown == ["first", " 10%\r100%"]
