"""What steers a terminal is written out; everything else stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.text import (
    in_one_line,
    is_follower,
    line_left,
    order_of,
    printable,
    printable_values,
    replica_of,
    worker_name,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\rb\x08c\x7f", r"a\rb\x08c\x7f"),
        ("\u202etxt.exe\u2066", r"\u202etxt.exe\u2066"),
        ("\udc80", r"\udc80"),
        ("line\n\tnext", "line\n\tnext"),
        ("[bold]é 模型 🎉[/]", "[bold]é 模型 🎉[/]"),
    ],
)
def test_control_characters_are_shown_as_such(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_what_is_printable_can_be_written_anywhere_and_stays_as_it_is(text: str) -> None:
    shown = printable(text)

    assert printable(shown) == shown
    assert all(char.isprintable() or char in "\n\t" or ord(char) > 0x9F for char in shown)
    shown.encode()


def test_a_sentence_cannot_pass_for_two_lines() -> None:
    assert in_one_line("boom\n12:00:00  the job ends\n") == "boom 12:00:00  the job ends"


def test_of_a_line_of_progress_the_end_is_left() -> None:
    assert line_left("10%\r100% \x1b[0m\r") == r"100% \x1b[0m"


def test_every_text_in_a_value_becomes_printable() -> None:
    value = {"\x1b": ["\x07", ("\r", 1, None)], "at": 1.5}

    assert printable_values(value) == {r"\x1b": [r"\x07", [r"\r", 1, None]], "at": 1.5}


@pytest.mark.parametrize(
    ("worker", "name", "follows"),
    [(None, "r3", False), (0, "r3.0", False), (1, "r3.1", True), (12, "r3.12", True)],
)
def test_a_name_tells_the_replica_and_whether_the_worker_speaks_for_it(
    worker: int | None, name: str, follows: bool
) -> None:
    assert worker_name("r3", worker) == name
    assert replica_of(name) == "r3"
    assert is_follower(name) is follows


def test_names_are_sorted_by_their_numbers() -> None:
    names = ["forkserver", "r10.0", "r2.10", "r2.9", "r2", "r1.0"]

    assert sorted(names, key=order_of) == ["r1.0", "r2", "r2.9", "r2.10", "r10.0", "forkserver"]
