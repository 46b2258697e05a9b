"""What replicas print is kept, and handed on line by line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pliant.agent.output import KEPT_LETTERS, MAX_LINE_BYTES, Output, OutputNews
from pliant.core.values import Incarnation, ReplicaId
from pliant.machine.files import RotatingFile
from pliant.wire.codec import MAX_MESSAGE_BYTES, encode
from pliant.wire.messages import OutputGrown


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


def test_each_line_goes_up_once_by_the_name_of_its_worker() -> None:
    news = OutputNews()
    news.add("r1", "one")
    news.add("r2.1", "two")
    news.add("r1", "three")

    assert list(news.new()) == [
        OutputGrown(replica=ReplicaId("r1"), offset=0, text="one\nthree\n"),
        OutputGrown(replica=ReplicaId("r2"), worker=1, offset=0, text="two\n"),
    ]
    news.add("r1", "four")
    assert list(news.new()) == [OutputGrown(replica=ReplicaId("r1"), offset=10, text="four\n")]
    assert list(news.new()) == []


def test_what_is_printed_without_end_takes_no_more_than_its_room() -> None:
    """A megabyte a second, and a coordinator that is away: what came last counts."""
    news = OutputNews()
    for number in range(20_000):
        news.add("r1", f"line {number:06}")

    (said,) = news.new()

    assert len(said.text) <= KEPT_LETTERS
    assert said.text.endswith("line 019999\n")
    assert said.offset + len(said.text) == 20_000 * len("line 000000\n")


def test_no_line_is_too_long_for_a_message_whatever_is_in_it() -> None:
    news = OutputNews()
    news.add("r1", "\x00" * 10 * KEPT_LETTERS)

    (said,) = news.new()

    assert len(said.text) == KEPT_LETTERS
    assert len(encode(said, Incarnation(1))) < MAX_MESSAGE_BYTES
