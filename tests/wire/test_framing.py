"""Frames come out whole, whatever the pieces they arrive in."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.commands import Reform, StartReplica
from pliant.core.values import Generation, Incarnation, NodeId, Order, ReplicaId, Seat
from pliant.wire.codec import COMMANDS, MAX_MESSAGE_BYTES, Envelope, Refusal, encode
from pliant.wire.framing import (
    PACKED_FROM,
    FrameError,
    Unframer,
    decode_packed,
    frame,
    packed,
    unpacked,
)


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


SEATS = tuple(
    Seat(
        replica=ReplicaId(f"r{i}"), endpoint=f"10.0.{i // 250}.{i % 250}:{32768 + i * 7919 % 28000}"
    )
    for i in range(1, 1001)
)
ORDER = Order(generation=Generation(7), members=SEATS)
REFORM = Reform(to=ORDER.replicas, order=ORDER, secret="0a" * 32)


def test_an_order_to_a_thousand_takes_a_quarter_of_its_bytes() -> None:
    message = encode(REFORM, Incarnation(3))

    data = packed(message)

    assert data is not None
    assert 4 * len(data) < len(message)
    assert decode_packed(data, COMMANDS) == Envelope(message=REFORM, incarnation=Incarnation(3))


def test_a_small_message_goes_as_it_is() -> None:
    start = StartReplica(replica=ReplicaId("r1"), node=NodeId("n"))
    message = encode(start, Incarnation(1))

    assert packed(message) is None
    assert decode_packed(message.decode()) == Envelope(message=start, incarnation=Incarnation(1))
    assert packed(b"x" * PACKED_FROM) is not None


def test_what_would_unpack_to_more_than_a_message_is_not_unpacked() -> None:
    bomb = zlib.compress(bytes(256 * MAX_MESSAGE_BYTES))
    tracemalloc.start()

    refusal = decode_packed(bomb)

    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refusal == Refusal(reason="more than 1048576 bytes, packed; no more are read")
    assert most_bytes < 4 * MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no packed message: it does not end where it should"),
        (b"{}", "no packed message: Error -3"),
        (zlib.compress(b"{}")[:-1], "no packed message: it does not end where it should"),
        (zlib.compress(b"{}") + b"x", "no packed message: it does not end where it should"),
        (zlib.compress(b"[1]"), "a JSON list, not an object"),
    ],
)
def test_what_is_no_packed_message_is_refused(data: bytes, reason: str) -> None:
    answer = decode_packed(data)

    assert isinstance(answer, Refusal)
    assert answer.reason.startswith(reason)


def test_the_largest_message_can_be_packed() -> None:
    message = b" " * MAX_MESSAGE_BYTES

    assert unpacked(zlib.compress(message)) == message
