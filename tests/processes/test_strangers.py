"""Strangers at the ports of members: nobody else gets them, gets in, learns anything or delays."""

from __future__ import annotations

import contextlib
import resource
import socket
import time

import psutil
import pytest
import torch
from tests.live.harassing import EVERY_WAY, harassed, is_another_user
from tests.live.neighbour import Address
from tests.processes.crew import SECRET, Crew, Member, background, crew

from pliant.engine.comm.handshake import Handshake, connecting
from pliant.engine.comm.mesh import Mesh, Port, parse_endpoint
from pliant.engine.comm.rendezvous import Abort

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

GENEROUS_S = 10.0
"""For a machine where others compete; the pages of the measurements say what it should be."""


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_no_other_user_gets_a_port_whether_it_listens_or_not(address: str) -> None:
    port = Port(address)

    with harassed(["steal"], known=[parse_endpoint(port.endpoint)]) as found:
        if not is_another_user(found):
            pytest.skip("only root may become another user")
        for _ in range(50):
            listener = port.listen()  # raises if somebody else does
            time.sleep(0.005)
            port.stop_listening(listener)
            time.sleep(0.005)
    port.close()

    assert found.counts["steal"] == 0


# Meetings


def settle(member: Member, limit: int) -> tuple[int, int]:
    """Allow the process so many descriptors; return how many it has, and its memory."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, hard), hard))
    process = psutil.Process()
    return process.num_fds(), process.memory_info().rss


def meet_again(member: Member, first: int, count: int) -> float:
    """Build one group after the other; return how long the slowest took."""
    slowest = 0.0
    for generation in range(first, first + count):
        began_at = time.monotonic()
        group = member.build(generation, deadline_s=30)
        slowest = max(slowest, time.monotonic() - began_at)
        rows = group.all_gather(torch.tensor([group.rank]))
        assert rows.tolist() == [[rank] for rank in range(group.size)]
        group.retire()
    return slowest


def endpoints(member: Member) -> list[str]:
    return member.endpoints


def addresses(members: Crew) -> list[Address]:
    members.start(0, endpoints)
    return [parse_endpoint(each) for each in members.result(0)]


def is_open(address: Address) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(address) == 0


@pytest.mark.parametrize(
    "neighbours",
    [
        [["idle"], ["idle"]],
        [["garbage", "half"]],
        [["wrong", "drip"]],
        [["burst"], ["burst"]],
        [EVERY_WAY],
    ],
    ids=str,
)
def test_members_with_few_descriptors_meet_whatever_strangers_do(
    neighbours: list[list[str]],
) -> None:
    with crew(3) as members:
        known = addresses(members)
        members.everybody(meet_again, 1, 3)
        before = members.everybody(settle, 256)

        with harassed(*neighbours, known=known) as found:
            slowest = max(members.everybody(meet_again, 10, 60))

        after = members.everybody(settle, 256)
        assert not any(is_open(address) for address in known)
    assert slowest < GENEROUS_S
    assert found.counts["tries"] > 100
    assert found.counts["steal"] == 0 or not is_another_user(found)
    assert found.heard == b""
    for (descriptors, memory), (more, larger) in zip(before, after, strict=True):
        assert more <= descriptors + 4  # those of its last group may be on their way
        assert larger < memory + 64 * 2**20


def test_who_has_greeted_in_vain_is_soon_there_when_a_full_queue_has_room_again() -> None:
    """Where a full queue drops the first packet of a connection, the kernel waits for a second.

    No try is shorter than that then; of ours some are longer, where others compute.
    """
    assert min(waits_in_a_full_queue() for _ in range(3)) < 0.6


def waits_in_a_full_queue() -> float:
    """Say hello where the queue is full; return how long it takes once there is room."""
    port, mine = Port(), Port()
    over = Abort()
    thread = background(lambda: hello_until(over, port, mine))
    time.sleep(0.3)  # nobody listens

    with socket.socket() as listener, socket.socket() as stranger:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(parse_endpoint(port.endpoint))
        listener.listen(0)  # full with one
        stranger.settimeout(5)
        stranger.connect(parse_endpoint(port.endpoint))
        time.sleep(0.15)
        listener.settimeout(5)
        began_at = time.monotonic()
        accepted = [listener.accept()[0] for _ in range(2)]
        waited_s = time.monotonic() - began_at
    over.set("enough")
    thread.join(10)
    for sock in accepted:
        sock.close()

    port.close()
    return waited_s


def hello_until(over: Abort, port: Port, mine: Port) -> None:
    """Be rank 1 of two, and say hello at the other one's port."""

    def check() -> None:
        if over.reason is not None:
            raise TimeoutError

    mesh = Mesh(
        generation=1,
        secret=SECRET,
        rank=1,
        endpoints=[port.endpoint, mine.endpoint],
        port=mine,
        greeting=b"",
        greet=lambda greeting: b"",
    )
    with contextlib.suppress(TimeoutError):
        mesh.connect(check)
    mine.close()


def recorded_hello(generation: int, peer: int, rank: int) -> bytes:
    """Return what a member says first, as somebody who can listen in has it."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        handshake = Handshake(
            sock=mine, generation=generation, secret=SECRET, size=3, rank=peer, peer=rank
        )
        steps = connecting(handshake, b"")
        mine.setblocking(False)
        next(steps)
        next(steps)
        return theirs.recv(4096)


def meet_late(member: Member, late_s: float) -> float:
    """Come later than the others; return how long the meeting took from then."""
    time.sleep(late_s)
    return meet_again(member, 7, 1)


def test_a_recorded_hello_played_back_a_thousand_times_gets_one_answer_and_delays_nobody() -> None:
    with crew(3) as members:
        known = addresses(members)
        members.everybody(meet_again, 1, 1)
        members.everybody(settle, 256)
        hello = recorded_hello(7, 1, 0)

        with harassed(["replay"], ["replay", "idle"], known=known[:1], recorded=hello) as found:
            for rank in range(3):
                members.start(rank, meet_late, 1.5 * (rank > 0))
            waited = [members.result(rank) for rank in range(3)]

    assert found.counts["replay"] > 100
    assert len(found.heard) <= 64  # the one that came first is as good as its original
    assert max(waited[1:]) < 3.0
