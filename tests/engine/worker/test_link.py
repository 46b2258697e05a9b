"""The worker's control socket: commands in, events out, and never in the main thread's way."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from pliant.core.commands import Command, Release, SkipCalls
from pliant.core.events import Busy, Event, Progressed
from pliant.core.values import Incarnation, ReplicaId
from pliant.engine.worker.link import Link
from pliant.wire.codec import Envelope, Message, decode, encode
from pliant.wire.framing import Unframer, frame

ME = ReplicaId("r1")
DEADLINE_S = 5.0


class Agent:
    """The other end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(DEADLINE_S)
        self._unframer = Unframer()
        self._received: list[Message] = []

    def say(self, command: Command, incarnation: int = 1) -> None:
        self.sock.sendall(frame(encode(command, Incarnation(incarnation))))

    def hear(self, kind: type[Message]) -> Message:
        """Return the next message of a type; others are passed over."""
        while True:
            while self._received:
                message = self._received.pop(0)
                if isinstance(message, kind):
                    return message
            for data in self._unframer.feed(self.sock.recv(65536)):
                envelope = decode(data)
                assert isinstance(envelope, Envelope)
                self._received.append(envelope.message)


class Pair:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.gone = threading.Event()
        self.link = Link(theirs, ME, incarnation=Incarnation(1), on_agent_gone=self.gone.set)
        self.agent = Agent(ours)
        self.commands: list[tuple[Command, Incarnation]] = []
        self.heard = threading.Condition()

    def take(self, command: Command, incarnation: Incarnation) -> None:
        with self.heard:
            self.commands.append((command, incarnation))
            self.heard.notify_all()

    def wait_for(self, count: int) -> list[Command]:
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.commands) >= count, DEADLINE_S)
            return [command for command, _ in self.commands]


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.link.close()
    pair.agent.sock.close()


def calls(number: int) -> SkipCalls:
    return SkipCalls(to=(ME,), calls=number)


def test_commands_reach_the_session_in_order_on_another_thread(pair: Pair) -> None:
    threads: list[str] = []

    def take(command: Command, incarnation: Incarnation) -> None:
        threads.append(threading.current_thread().name)
        pair.take(command, incarnation)

    pair.link.attach(take)
    pair.link.start()

    for number in range(20):
        pair.agent.say(calls(number))

    assert pair.wait_for(20) == [calls(number) for number in range(20)]
    assert set(threads) == {"link"}


def test_commands_that_come_before_the_session_wait_for_it(pair: Pair) -> None:
    pair.link.start()
    pair.agent.say(calls(1))
    pair.agent.hear(Progressed)

    pair.link.attach(pair.take)

    assert pair.wait_for(1) == [calls(1)]


def test_commands_of_an_older_incarnation_are_refused(pair: Pair) -> None:
    pair.link.attach(pair.take)
    pair.link.start()

    pair.agent.say(calls(1), incarnation=3)
    pair.agent.say(calls(2), incarnation=2)
    pair.agent.say(calls(3), incarnation=3)

    assert pair.wait_for(2) == [calls(1), calls(3)]
    assert pair.link.stale == 1
    assert pair.link.incarnation == 3


def test_garbage_is_refused_and_counted(pair: Pair) -> None:
    pair.link.attach(pair.take)
    pair.link.start()

    pair.agent.sock.sendall(frame(b"{}"))
    pair.agent.sock.sendall(frame(encode(Busy(replica=ME, max_s=1.0), Incarnation(1))))
    pair.agent.say(Release(to=(ME,)))

    assert pair.wait_for(1) == [Release(to=(ME,))]
    assert pair.link.refused == 2


def test_a_worker_says_that_it_lives_before_and_after_it_has_a_session(pair: Pair) -> None:
    beats: list[Event | None] = [
        None,
        Progressed(replica=ME, generation=7, committed=3, calls=1),  # type: ignore[arg-type]
    ]
    pair.link.start()

    first = pair.agent.hear(Progressed)
    pair.link.attach(pair.take, lambda: beats.pop(0) if len(beats) > 1 else beats[0])
    while (second := pair.agent.hear(Progressed)) == first:
        pass

    assert first == Progressed(replica=ME, generation=0, committed=0, calls=0)  # type: ignore[arg-type]
    assert second == beats[0]


def test_sending_does_not_block_when_the_agent_reads_nothing(pair: Pair) -> None:
    pair.link.start()

    begin_s = time.monotonic()
    for number in range(20_000):
        pair.link.send(Busy(replica=ME, max_s=float(number)))

    assert time.monotonic() - begin_s < DEADLINE_S
    assert not pair.link.flush(0.2)
    for number in range(20_000):
        assert pair.agent.hear(Busy) == Busy(replica=ME, max_s=float(number))
    assert pair.link.flush(DEADLINE_S)


def test_what_is_not_urgent_follows_soon_and_in_order(pair: Pair) -> None:
    pair.link.start()
    pair.agent.hear(Progressed)

    pair.link.send(Busy(replica=ME, max_s=1.0), urgent=False)
    pair.link.send(Busy(replica=ME, max_s=2.0), urgent=False)

    assert pair.agent.hear(Busy) == Busy(replica=ME, max_s=1.0)
    assert pair.agent.hear(Busy) == Busy(replica=ME, max_s=2.0)


def test_a_worker_notices_that_its_agent_is_gone(pair: Pair) -> None:
    pair.link.start()

    pair.agent.sock.close()

    assert pair.gone.wait(DEADLINE_S)


def test_a_frame_beyond_the_limit_ends_the_link(pair: Pair) -> None:
    pair.link.start()

    pair.agent.sock.sendall(b"\xff" * 8)

    assert pair.gone.wait(DEADLINE_S)


def test_a_session_that_fails_on_a_command_ends_the_link(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Command, __: Incarnation) -> None:
        raise RuntimeError("no")

    pair.link.attach(fail)
    pair.link.start()

    pair.agent.say(calls(1))

    assert pair.gone.wait(DEADLINE_S)
    assert "the link of r1 failed" in caplog.text


def test_what_was_queued_is_written_before_the_link_closes(pair: Pair) -> None:
    pair.link.start()
    for number in range(100):
        pair.link.send(Busy(replica=ME, max_s=float(number)), urgent=False)

    pair.link.close()

    assert [pair.agent.hear(Busy) for _ in range(100)][-1] == Busy(replica=ME, max_s=99.0)
    assert not pair.gone.is_set()
