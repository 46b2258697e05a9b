"""The kernel hands over only who begins with a word, and says to nobody else that it does not."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence

import pytest

from pliant.engine.groups.knock_filter import hear_all
from pliant.engine.groups.port import Port, parse_endpoint

pytestmark = pytest.mark.timeout(60)

WORD, OTHER = b"a word..", b"another."


@pytest.fixture(params=["127.0.0.1", "::1"])
def port(request: pytest.FixtureRequest) -> Iterator[Port]:
    port = Port(request.param)
    yield port
    port.close()


@contextlib.contextmanager
def listening(port: Port, *words: bytes) -> Iterator[list[socket.socket]]:
    listeners = [port.listen(word) for word in words]
    for listener in listeners:
        listener.settimeout(0.1)
    try:
        yield listeners
    finally:
        for listener in listeners:
            port.stop_listening(listener)


def connect(port: Port) -> socket.socket:
    return socket.create_connection(parse_endpoint(port.endpoint))


def accepted(listeners: Sequence[socket.socket]) -> socket.socket | None:
    for listener in listeners:
        with contextlib.suppress(TimeoutError):
            return listener.accept()[0]
    return None


@pytest.mark.parametrize(
    ("said", "is_let_in"),
    [
        (WORD, True),
        (WORD + bytes(60_000), True),
        (WORD[:-1], False),
        (WORD[:-1] + b"x", False),
        (b"x" + WORD[1:], False),
        (b"x" + WORD, False),
        (OTHER, False),
        (bytes(1400), False),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else str(value),
)
def test_who_begins_with_the_word_is_let_in_and_nobody_else(
    port: Port, said: bytes, is_let_in: bool
) -> None:
    with listening(port, WORD) as listeners, connect(port) as sock:
        sock.send(said)

        found = accepted(listeners)

        assert (found is not None) is is_let_in
        if found is not None:
            found.close()


def test_who_hangs_up_after_other_words_is_not_handed_over(port: Port) -> None:
    with listening(port, WORD) as listeners:
        with connect(port) as sock:
            sock.send(bytes(100))

        assert accepted(listeners) is None


def test_what_follows_the_word_is_heard_once_it_is_accepted(port: Port) -> None:
    with listening(port, WORD) as listeners, connect(port) as sock:
        sock.send(WORD)
        found = accepted(listeners)
        assert found is not None
        with found:
            hear_all(found)
            sock.send(b" and more")
            found.settimeout(5)
            assert found.recv(len(WORD), socket.MSG_WAITALL) == WORD
            assert found.recv(9, socket.MSG_WAITALL) == b" and more"


def test_a_word_that_comes_in_pieces_is_a_word(port: Port) -> None:
    """The sender's kernel sends again what was dropped, with what was said since."""
    with listening(port, WORD) as listeners, connect(port) as sock:
        sock.send(WORD[:3])
        sock.send(WORD[3:])
        listeners[0].settimeout(5)
        found = accepted(listeners)
        assert found is not None
        found.close()


def test_where_two_listen_at_one_port_each_word_is_let_in_by_both(port: Port) -> None:
    """The kernel picks one of them by chance; the wrong one says so by hanging up."""
    with listening(port, WORD, OTHER) as listeners:
        for number in range(20):
            with connect(port) as sock:
                sock.send((WORD, OTHER)[number % 2])
                found = accepted(listeners)
                assert found is not None, number
                found.close()
