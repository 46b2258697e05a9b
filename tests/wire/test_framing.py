"""Frames come out whole, whatever the pieces they arrive in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.wire.codec import MAX_MESSAGE_BYTES
from pliant.wire.framing import FrameError, Unframer, frame


@given(messages=st.lists(st.binary(max_size=50), max_size=8), cuts=st.lists(st.integers(1, 20)))
def test_messages_come_out_whole_and_in_order(messages: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(message) for message in messages)
    unframer, received = Unframer(), []

    for cut in [*cuts, len(stream)]:
        received += list(unframer.feed(stream[:cut]))
        stream = stream[cut:]

    assert received == messages


def test_a_frame_beyond_the_limit_ends_the_stream() -> None:
    unframer = Unframer()

    with pytest.raises(FrameError, match="a frame of 4294967295 bytes"):
        list(unframer.feed(b"\xff\xff\xff\xffabc"))


def test_a_frame_at_the_limit_is_read() -> None:
    message = b"x" * MAX_MESSAGE_BYTES

    assert list(Unframer().feed(frame(message))) == [message]


def test_half_a_length_is_waited_for() -> None:
    unframer = Unframer()

    assert list(unframer.feed(b"\0\0")) == []
    assert list(unframer.feed(b"\0\1x")) == [b"x"]
