"""What replicas print is kept, and handed on line by line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.agent.output import MAX_LINE_BYTES, Output
from pliant.core.values import ReplicaId
from pliant.machine.rotating_file import RotatingFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "r1.log"


def test_what_the_disk_does_not_take_is_lost_and_disturbs_nobody(path: Path) -> None:
    file = RotatingFile(path)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file._fd)
    os.close(full)
    lines: list[str] = []

    Output(ReplicaId("r1"), file, lambda _, line: lines.append(line)).data_received(b"here\n")
    file.close()

    assert lines == ["here"]


class Listened:
    def __init__(self, path: Path) -> None:
        self.lines: list[str] = []
        self.file = RotatingFile(path)
        self.output = Output(ReplicaId("r1"), self.file, lambda _, line: self.lines.append(line))

    def feed(self, *pieces: bytes) -> list[str]:
        for piece in pieces:
            self.output.data_received(piece)
        return self.lines


def test_lines_are_handed_on_whole_whatever_the_pieces(path: Path) -> None:
    listened = Listened(path)

    assert listened.feed(b"on", b"e\ntwo\nth") == ["one", "two"]
    assert listened.feed(b"ree\n") == ["one", "two", "three"]
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_a_last_line_without_an_end_is_handed_on_at_the_end(path: Path) -> None:
    listened = Listened(path)

    listened.feed(b"half")
    listened.output.connection_lost(None)

    assert listened.lines == ["half"]


def test_an_endless_line_is_handed_on_in_pieces(path: Path) -> None:
    listened = Listened(path)

    lines = listened.feed(*[b"x" * 4096] * 40)

    assert len(lines) >= 2
    assert max(map(len, lines)) <= MAX_LINE_BYTES + 4096


def test_bytes_that_are_no_text_are_kept_and_shown_replaced(path: Path) -> None:
    listened = Listened(path)

    assert listened.feed(b"\xff!\n") == ["\ufffd!"]
    assert path.read_bytes() == b"\xff!\n"


def test_a_line_that_nobody_can_show_does_not_close_the_pipe(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(worker: str, line: str) -> None:
        raise ValueError(line)

    output = Output("r1", RotatingFile(path), fail)

    output.data_received(b"one\ntwo\nth")
    output.connection_lost(None)

    assert path.read_bytes() == b"one\ntwo\nth"
    assert output.ended.is_set()
    assert [record.message for record in caplog.records] == ["a line of r1 could not be shown"]
