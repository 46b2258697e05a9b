"""Workers of a replica hear each other in order, and hear the end of each other."""

from __future__ import annotations

import os
import queue
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pliant.core.errors import PermanentError
from pliant.core.membership.follower_answers import Failed, NotBuilt, Voted
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.values import (
    FIRST_LINEAGE,
    Generation,
    Lineage,
    Order,
    ReplicaId,
    Restore,
    Seat,
)
from pliant.engine.member import inner_channel
from pliant.engine.member.inner_channel import (
    BuildPlace,
    CallReturned,
    FollowerCame,
    HandOver,
    InnerConnection,
    InnerListener,
    InnerMessage,
    LeaveNow,
    MemberStanding,
    connect_to_worker_0,
    pack_message,
    unpack_message,
)
from pliant.wire.launch import CHANNEL_SOCKET

WAIT_S = 20.0


def came(place: int, letters: int = 0) -> FollowerCame:
    return FollowerCame(place=place, endpoint="x" * letters, traits=())


def test_messages_of_any_size_arrive_in_order_and_then_the_end(tmp_path: Path) -> None:
    heard: queue.Queue[InnerMessage | None] = queue.Queue()
    held: list[InnerConnection] = []

    def accept(sock: socket.socket) -> None:
        held.append(InnerConnection(sock, heard.put, lambda: heard.put(None)))
        held[0].start()

    listener = InnerListener(tmp_path, accept)
    follower = InnerConnection(connect_to_worker_0(tmp_path, WAIT_S), heard.put, lambda: None)
    follower.start()
    for message in (came(1), came(2, 3_000_000), came(3)):
        follower.send(message)
    follower.close()

    said = [heard.get(timeout=WAIT_S) for _ in range(4)]
    assert said == [came(1), came(2, 3_000_000), came(3), None]
    held[0].send(came(4))  # nobody is there: dropped
    listener.close()


def test_a_follower_that_is_first_waits_for_worker_0(tmp_path: Path) -> None:
    found: queue.Queue[socket.socket] = queue.Queue()
    thread = threading.Thread(target=lambda: found.put(connect_to_worker_0(tmp_path, WAIT_S)))
    thread.start()

    listener = InnerListener(tmp_path, lambda sock: sock.close())

    found.get(timeout=WAIT_S).close()
    thread.join(WAIT_S)
    listener.close()


def test_a_worker_0_that_never_comes_is_told(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="worker 0 of this replica has made no session"):
        connect_to_worker_0(tmp_path, 0.0)


def test_another_user_gets_no_word(tmp_path: Path, monkeypatch: Any) -> None:
    accepted: list[socket.socket] = []
    stranger = SimpleNamespace(uid=os.getuid() + 1)
    monkeypatch.setattr(inner_channel, "peer_of", lambda sock: stranger)
    listener = InnerListener(tmp_path, accepted.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(str(tmp_path / CHANNEL_SOCKET))
        assert sock.recv(1) == b""

    with pytest.raises(PermanentError, match="another user listens"):
        connect_to_worker_0(tmp_path, WAIT_S)
    listener.close()
    assert accepted == []


@pytest.mark.timeout(120)
def test_a_message_that_is_not_taken_ends_the_connection(monkeypatch: Any) -> None:
    monkeypatch.setattr(inner_channel, "SEND_S", 1.0)
    gate, ended, (one, other) = threading.Event(), threading.Event(), socket.socketpair()
    sender = InnerConnection(one, lambda _: None, lambda: None)

    def hold(_: InnerMessage) -> None:
        gate.wait(WAIT_S)

    held = InnerConnection(other, hold, ended.set)
    held.start()
    sender.send(came(1))

    sender.send(came(1, letters=1_000_000))
    gate.set()

    assert ended.wait(WAIT_S)
    one.close()


ORDER = Order(
    generation=Generation(3),
    members=(Seat(replica=ReplicaId("r1"), endpoint="127.0.0.1:1"),),
    origin=ReplicaId("r1"),
    restore=Restore(checkpoint="c", committed=4, lineage=Lineage(2)),
)
STANDING = MemberStanding.of(Member(replica=ReplicaId("r1"), committed=4, leaving=True))


@pytest.mark.parametrize(
    "message",
    [
        FollowerCame(place=1, endpoint="127.0.0.1:1", traits=(("seed", "0"),)),
        BuildPlace(order=ORDER, secret="00"),
        HandOver(
            order=ORDER,
            resolution=Resolution(
                survivors=(0,),
                commits=(),
                committed=4,
                made_by=Generation(2),
                lineage=FIRST_LINEAGE,
                calls=1,
                joiners=(1,),
                restore=ORDER.restore,
            ),
            owes_tail=True,
            standing=STANDING,
        ),
        CallReturned(
            call="exchange",
            standing=STANDING,
            parts=(bytes(range(256)).decode("latin-1"), ""),
        ),
        CallReturned(call="exchange", standing=STANDING, parts=None),
        LeaveNow(),
        Voted(place=1, generation=Generation(3), step=4, stop=True, digests=((1 << 63) - 1, 0)),
        Failed(place=1, generation=Generation(3), reason="ä\n", is_refusal=True),
        NotBuilt(place=1, generation=Generation(3), reason="", unreached=(ReplicaId("r2"),)),
    ],
)
def test_a_message_is_read_as_it_was_written(message: InnerMessage) -> None:
    assert unpack_message(pack_message(message)) == message
