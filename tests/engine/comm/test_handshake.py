"""A handshake proves both sides to each other, byte by byte, or ends for both."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from pliant.engine.comm.handshake import (
    MAX_GREETING_BYTES,
    Handshake,
    HandshakeFailed,
    Steps,
    accepting,
    connecting,
)

pytestmark = pytest.mark.timeout(60)

SECRET = bytes(range(32))
Change = Callable[[int, bytes], bytes]
"""Gets the place of a byte in its direction, and the byte; returns what arrives instead."""


def same(place: int, byte: bytes) -> bytes:
    return byte


@dataclass
class End:
    """One side: its steps, and what came of them."""

    steps: Steps[bytes]
    sock: socket.socket
    wire: socket.socket
    outcome: Any = None
    said: bytes = b""
    is_over: bool = False

    def go_on(self) -> None:
        if self.is_over:
            return
        try:
            next(self.steps)
        except StopIteration as end:
            self.outcome, self.is_over = end.value, True
        except (HandshakeFailed, OSError) as error:
            self.outcome, self.is_over = error, True
            self.sock.close()


@dataclass
class Shake:
    """A handshake between two, with a wire in the middle that moves a byte at a time or more."""

    forward: Change = same
    backward: Change = same
    at_once: int = 10_000
    connector: dict[str, Any] = field(default_factory=dict)
    acceptor: dict[str, Any] = field(default_factory=dict)
    greetings: tuple[bytes, bytes] = (b"from who connects", b"from who accepts")
    said: tuple[bytes, bytes] = (b"", b"")
    left: bytes = b""
    """What who accepts has not read."""

    def run(self) -> tuple[Any, Any]:
        """Return what came of both: a greeting, an error, or None if it still waits."""
        with contextlib.ExitStack() as stack:
            ends = []
            for is_first, given in ((True, self.connector), (False, self.acceptor)):
                sock, wire = socket.socketpair()
                for each in (sock, wire):
                    stack.callback(each.close)
                    each.setblocking(False)
                handshake = Handshake(
                    **{
                        "sock": sock,
                        "generation": 3,
                        "secret": SECRET,
                        "size": 3,
                        "rank": 2 if is_first else 1,
                        "peer": 1 if is_first else None,
                        **given,
                    }
                )
                if is_first:
                    steps = connecting(handshake, self.greetings[0])
                else:
                    steps = accepting(handshake, lambda theirs: self.greetings[1] + theirs)
                ends.append(End(steps, sock, wire))
            self._relay(*ends)
            self.said = ends[0].said, ends[1].said
            with contextlib.suppress(OSError):
                self.left = ends[1].sock.recv(100)
            return ends[0].outcome, ends[1].outcome

    def _relay(self, first: End, second: End) -> None:
        num_idle = 0
        while num_idle < 3:  # the first step of who connects is to wait
            first.go_on()
            second.go_on()
            moved = _move(first, second, self.forward, self.at_once)
            moved += _move(second, first, self.backward, self.at_once)
            num_idle = 0 if moved else num_idle + 1


def _move(source: End, target: End, change: Change, at_once: int) -> int:
    try:
        data = source.wire.recv(at_once)
    except BlockingIOError:
        return 0
    except OSError:
        data = b""
    if not data:
        with contextlib.suppress(OSError):
            target.wire.shutdown(socket.SHUT_WR)
        return 0
    place = len(source.said)
    source.said += data
    out = b"".join(change(place + index, data[index : index + 1]) for index in range(len(data)))
    with contextlib.suppress(OSError):
        target.wire.sendall(out)
    return len(data)


def flipping(at: int) -> Change:
    return lambda place, byte: bytes([byte[0] ^ 0x40]) if place == at else byte


def cutting(at: int) -> Change:
    return lambda place, byte: byte if place < at else b""


GOOD = (b"from who accepts" + b"from who connects", b"from who connects")


@pytest.mark.parametrize("at_once", [1, 2, 31, 10_000])
def test_both_get_the_greeting_of_the_other(at_once: int) -> None:
    assert Shake(at_once=at_once).run() == GOOD


@pytest.mark.parametrize("length", [0, 1, 300_000])
def test_greetings_may_be_empty_or_long(length: int) -> None:
    found = Shake(greetings=(bytes(length), b""), at_once=60_000).run()

    assert found == (bytes(length), bytes(length))


def lengths() -> tuple[int, int]:
    shake = Shake()
    shake.run()
    return len(shake.said[0]), len(shake.said[1])


def places(direction: int) -> Iterator[int]:
    return iter(range(lengths()[direction]))


def test_no_byte_can_be_changed_on_the_way_there() -> None:
    for place in places(0):
        connector, acceptor = Shake(forward=flipping(place)).run()

        assert not isinstance(acceptor, bytes), place
        assert not isinstance(connector, bytes), place


def test_no_byte_can_be_changed_on_the_way_back() -> None:
    for place in places(1):
        connector, acceptor = Shake(backward=flipping(place)).run()

        assert not isinstance(connector, bytes), place
        if place < 64:  # the answer: who connects says nothing more
            assert not isinstance(acceptor, bytes), place


def test_no_byte_can_be_missing_at_the_end() -> None:
    for place in places(0):
        assert [type(each) for each in Shake(forward=cutting(place)).run()] != [bytes, bytes]
    for place in places(1):
        assert not isinstance(Shake(backward=cutting(place)).run()[0], bytes)


def test_nothing_is_read_beyond_it() -> None:
    """What follows belongs to the communicator."""
    last = lengths()[0] - 1
    shake = Shake(forward=lambda place, byte: byte + b"more" if place == last else byte)

    assert shake.run() == GOOD
    assert shake.left == b"more"


@pytest.mark.parametrize(
    ("connector", "acceptor"),
    [
        ({"secret": bytes(32)}, {}),
        ({"secret": SECRET[:-1] + b"x"}, {}),
        ({}, {"secret": b""}),
        ({"generation": 4}, {}),
        ({"peer": 0}, {}),
        ({"rank": 1}, {}),
        ({"rank": 0}, {}),
        ({"rank": 3}, {}),
        ({}, {"size": 2}),
        ({}, {"rank": 2}),
    ],
    ids=str,
)
def test_who_is_not_the_one_that_is_meant_hears_nothing(
    connector: dict[str, Any], acceptor: dict[str, Any]
) -> None:
    shake = Shake(connector=connector, acceptor=acceptor)

    found = shake.run()

    assert [type(each) for each in found] == [HandshakeFailed] * 2
    assert shake.said[1] == b""


def test_a_recording_of_either_side_convinces_nobody() -> None:
    recorded = Shake()
    assert recorded.run() == GOOD
    there, back = recorded.said

    def playing(record: bytes) -> Change:
        return lambda place, byte: record[place : place + 1]

    connector, acceptor = Shake(forward=playing(there)).run()
    assert not isinstance(acceptor, bytes)
    assert not isinstance(connector, bytes)

    connector, acceptor = Shake(backward=playing(back)).run()
    assert isinstance(connector, HandshakeFailed)
    assert not isinstance(acceptor, bytes)


def test_a_hello_counts_once() -> None:
    hellos: set[bytes] = set()
    shake = Shake(acceptor={"hellos": hellos})
    assert shake.run() == GOOD
    there = shake.said[0]

    again = Shake(forward=lambda place, byte: there[place : place + 1], acceptor={"hellos": hellos})
    again.run()

    assert again.said[1] == b""


def test_the_secret_is_not_shown() -> None:
    sock, other = socket.socketpair()
    with sock, other:
        handshake = Handshake(sock=sock, generation=3, secret=b"hush" * 8, size=3, rank=1)
        assert "hush" not in repr(handshake)


def test_a_greeting_that_is_too_long_is_not_read() -> None:
    """Its length is said before anything of it is proved."""
    length = MAX_GREETING_BYTES + 1
    said = length.to_bytes(4, "little")

    def growing(place: int, byte: bytes) -> bytes:
        return said[place - 120 : place - 119] if 120 <= place < 124 else byte

    _, acceptor = Shake(forward=growing).run()

    assert isinstance(acceptor, HandshakeFailed)
    assert f"a greeting of {length} bytes" in str(acceptor)
