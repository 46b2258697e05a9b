"""What workers print goes up once; the newest of it, where nobody hears it for long."""

from __future__ import annotations

from pliant.agent.output_news import KEPT_LETTERS, OutputNews
from pliant.core.values import Incarnation, ReplicaId
from pliant.wire.codec import MAX_MESSAGE_BYTES, encode
from pliant.wire.messages import OutputGrown


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
