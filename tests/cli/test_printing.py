"""Who prints what happens does not end with its reader."""

from __future__ import annotations

import os

import pytest

from pliant.cli.printing import while_heard
from pliant.observe.log import Record


def test_a_reader_that_is_gone_ends_nothing_and_is_told_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, moved = list[Record](), list[int]()

    def told(one: Record) -> None:
        asked.append(one)
        if len(asked) == 2:
            raise BrokenPipeError

    def moving(fd: int, to: int) -> None:
        moved.append(to)

    monkeypatch.setattr(os, "dup2", moving)
    tell = while_heard(told)
    for number in range(4):
        tell({"number": number})

    assert [one["number"] for one in asked] == [0, 1]
    assert moved == [1]  # what is in the buffer still is written nowhere
