"""Sockets: who is slow, who is gone, and what a network does to a connection."""

from __future__ import annotations

import contextlib
import random
import re
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import psutil
import pytest
import torch
from tests.engine.comm import blackhole
from tests.engine.comm.circle import (
    BOUND_S,
    Cable,
    Running,
    circle,
    passing_on,
    tcp_pair,
    wait_until,
)
from tests.engine.comm.proxy import Fate, Proxy, Trouble
from tests.engine.comm.scripts import check, pattern, play, raw, script

from pliant.engine.comm import communicator, connection, sockets
from pliant.engine.comm.communicator import Communicator, GroupBroken, Transfer
from pliant.engine.comm.connection import Connection, PeerGone
from pliant.engine.comm.mesh import parse_endpoint

pytestmark = pytest.mark.timeout(60)


def test_members_of_one_host_send_to_each_other_without_pacing() -> None:
    ends: list[socket.socket] = []

    def cable(low: int, high: int) -> tuple[socket.socket, socket.socket]:
        ends.extend(pair := tcp_pair(low, high))
        return pair

    with circle(2, cable=cable):
        found = {
            end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
            for end in ends
        }

    assert found == {b"reno"}


def test_a_member_that_takes_nothing_for_long_is_not_taken_for_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It computes, or is stopped for a while; its kernel answers all the time."""
    monkeypatch.setattr(sockets, "UNREACHABLE_S", 6)
    late = threading.Event()

    def give(comm: Communicator) -> int:
        piece = torch.full((30_000_000,), comm.rank + 1, dtype=torch.uint8)
        if comm.rank == 1:
            late.wait(3 * BOUND_S)
        comm.broadcast(piece, 0)
        return int(piece[-1])

    with circle(2) as members:
        running = members.start(give)
        time.sleep(8.0)
        late.set()

        assert [each.result() for each in running] == [1, 1]


@pytest.mark.skipif(bool(blackhole.obstacle()), reason=blackhole.obstacle())
@pytest.mark.parametrize(
    ("way", "num_bytes"), [("sockets", 1000), ("sockets", 30_000_000), ("tls", 30_000_000)]
)
def test_a_network_that_swallows_everything_is_noticed_while_something_is_sent(
    monkeypatch: pytest.MonkeyPatch, way: str, num_bytes: int
) -> None:
    """The kernel does not look for it then, and tries again for a quarter of an hour."""
    monkeypatch.setattr(sockets, "UNREACHABLE_S", 6)
    with contextlib.ExitStack() as stack:
        hosts = blackhole.Blackhole()
        stack.callback(hosts.close)
        members = stack.enter_context(circle(2, way, cable=lambda *_: hosts.pair()))
        first = [each.result() for each in members.start(lambda comm: comm.share("x", b"y"))]
        hosts.cut()
        pieces = [torch.zeros(num_bytes, dtype=torch.uint8) for _ in range(4)]

        def swap(comm: Communicator) -> None:
            comm.swap(pieces[comm.rank], pieces[2 + comm.rank])

        running = members.start(swap)
        reasons = [str(each.result(45.0)) for each in running]

    assert first == [[b"y", b"y"]] * 2
    for reason in reasons:
        assert re.search("connection to rank [01] has ended: connection timed out", reason)


@pytest.mark.parametrize(("sent", "is_whole"), [(9000, True), (8999, False)])
def test_of_what_came_before_a_reset_only_a_whole_piece_is_read(sent: int, is_whole: bool) -> None:
    """To read megabytes of a piece that stays incomplete would delay the end."""
    mine, theirs = tcp_pair()
    transfer, target = Transfer(), torch.zeros(9000, dtype=torch.uint8)
    connection = Connection(mine, 1)
    connection.await_piece(target, transfer)
    theirs.sendall(struct.pack("<QQQ", 1, 1, 9000))
    time.sleep(0.05)
    connection.pull()
    theirs.sendall(b"x" * sent)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    time.sleep(0.05)

    with contextlib.ExitStack() as stack:
        stack.callback(connection.close)
        if not is_whole:
            stack.enter_context(pytest.raises(PeerGone, match="rank 1 has ended: connection reset"))
        connection.serve(select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP)

    assert (transfer.pending, int(target.count_nonzero())) == ((0, 9000) if is_whole else (1, 0))


# Abandoned at every line

FILES = tuple(module.__file__ for module in (sockets, connection, communicator))


class Stepper:
    """Abandons a communicator when its thread comes to the n-th line of the code under test."""

    def __init__(self, comm: Communicator, at_line: int) -> None:
        self.comm = comm
        self.at_line = at_line
        self.num_lines = 0
        self.abandoning: Running | None = None

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            self.num_lines += 1
            if self.num_lines == self.at_line:
                self.abandoning = Running(self.abandon)
                self.abandoning.ends_within(0.003)  # as far as it gets
        return self

    def abandon(self) -> list[bytes]:
        self.comm.abandon("at a line")
        return [raw(target) for target in TARGETS[self.comm]]


TARGETS: dict[Communicator, list[torch.Tensor]] = {}


def a_bit_of_everything(comm: Communicator) -> None:
    other = comm.others[0]
    large, small, late = TARGETS[comm]
    comm.share("first", b"x" * 40)
    comm.swap(pattern(len(large), comm.rank), large)
    posted = comm.post(sends=[(other, pattern(len(late), 1, comm.rank))], receives=[(other, late)])
    comm.swap(pattern(len(small), 2, comm.rank), small)
    comm.share("second", b"y" * 20_000)
    comm.wait(posted)


def abandon_at(way: str, line: int) -> int:
    """Abandon rank 0 there; return how many lines there are, as far as it came."""
    with circle(2, way) as members:
        comm, other = members.members
        for each in (comm, other):
            TARGETS[each] = [torch.zeros(n, dtype=torch.uint8) for n in (700_000, 13, 9000)]
        stepper = Stepper(comm, line)

        def traced() -> None:
            sys.settrace(stepper)
            try:
                a_bit_of_everything(comm)
            finally:
                sys.settrace(None)

        running = Running(traced, f"line {line}"), Running(lambda: a_bit_of_everything(other))
        end = running[0].result()
        if stepper.abandoning is None:
            members.abandon("the end")
            running[1].result()
            return stepper.num_lines
        found = stepper.abandoning.result()
        end_there = running[1].result()
        assert end is None or end.reason == "at a line", f"line {line}: {end}"
        if end is None:  # it was past all of it
            assert end_there is None or "has ended" in end_there.reason
        assert [raw(target) for target in TARGETS.pop(comm)] == found, f"line {line}: written"
        TARGETS.pop(other)
        return stepper.num_lines


@pytest.mark.parametrize("way", ["sockets", "tls"])
def test_abandoned_at_any_line_it_ends_for_both_and_writes_no_more(way: str) -> None:
    num_lines = abandon_at(way, -1)
    assert num_lines > 200

    for line in range(1, num_lines, max(1, num_lines // 120)):
        abandon_at(way, line)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ["sockets", "tls"])
def test_abandoned_at_every_line_it_ends_for_both_and_writes_no_more(way: str) -> None:
    for line in range(1, abandon_at(way, -1) + 5):
        abandon_at(way, line)


# What a network does


@contextlib.contextmanager
def cable_through(fate_of: Callable[[int], Fate]) -> Iterator[Cable]:
    """Connect members through proxies; the n-th connection gets the n-th fate."""
    with contextlib.ExitStack() as stack:
        count = 0

        def connect(low: int, high: int) -> tuple[socket.socket, socket.socket]:
            nonlocal count
            fate = fate_of(count)
            count += 1
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            proxy = Proxy(f"127.0.0.1:{listener.getsockname()[1]}", lambda _: fate)
            stack.enter_context(proxy)
            second = socket.create_connection(parse_endpoint(proxy.endpoint))
            first, _ = listener.accept()
            return first, second

        yield connect


def suffer(
    size: int, fate_of: Callable[[int], Fate], seed: int, what: str, patience_s: float = 0.4
) -> list[Any]:
    """Play a script while the network does that; nothing is wrong, hangs or stays."""
    steps = script(seed, size, 60_000)
    got: list[dict[int, Any]] = [{} for _ in range(size)]
    process = psutil.Process()
    before = process.num_fds()
    with cable_through(fate_of) as cable, circle(size, cable=cable) as members:
        act = passing_on(lambda comm: play(comm, steps, seed, got[comm.rank]))
        running = members.start(act)
        deadline_at = time.monotonic() + patience_s
        for each in running:
            each.ends_within(max(0.0, deadline_at - time.monotonic()))
        members.abandon("the supervisor gives up")
        ends = [each.result() for each in running]
    check(steps, got, what)
    wait_until(lambda: process.num_fds() <= before, f"{what} leaves a descriptor")
    return ends


def any_fate(seed: int) -> Fate:
    rng = random.Random(seed)
    return Fate(
        trouble=rng.choice([None, *Trouble]),
        after_bytes=rng.choice([rng.randrange(100), rng.randrange(3000), rng.randrange(500_000)]),
        forward=rng.random() < 0.5,
        slow_bytes=rng.choice([0, 0, 100, 1000]),
        delay_s=rng.choice([0, 0, 0.0001, 0.001]),
    )


@pytest.mark.parametrize("trouble", Trouble)
@pytest.mark.parametrize("forward", [True, False])
def test_a_connection_that_ends_at_any_byte_gives_the_right_result_or_an_end(
    trouble: Trouble, forward: bool
) -> None:
    """Heads, names and small pieces, cut everywhere."""
    for after_bytes in range(0, 120, 13):
        fate = Fate(trouble, after_bytes, forward)
        ends = suffer(2, lambda _, fate=fate: fate, 4, str(fate), 0.1)  # type: ignore[misc]
        assert any(isinstance(end, GroupBroken) for end in ends)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_a_network_does_the_result_is_right_or_there_is_an_end(seed: int) -> None:
    suffer(2 + seed % 3, lambda number: any_fate(1000 * seed + number), seed, f"seed {seed}")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_whatever_many_networks_do_the_result_is_right_or_there_is_an_end() -> None:
    for seed in range(100, 1100):
        suffer(2 + seed % 3, lambda n, seed=seed: any_fate(1000 * seed + n), seed, f"seed {seed}")  # type: ignore[misc]


def test_bytes_that_come_one_by_one_change_nothing() -> None:
    ends = suffer(2, lambda _: Fate(slow_bytes=3000), 6, "slow", BOUND_S)

    assert ends == [None, None]


# Two reasons


@pytest.mark.parametrize("at_line", range(1, 6))
def test_of_two_threads_that_abandon_at_once_one_gives_the_reason(at_line: int) -> None:
    """The second comes at any line of the first; what has been seen of it does not change."""
    with circle(2) as members:
        comm = members.members[0]
        second: list[Running] = []
        num_lines, seen = 0, None

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal num_lines, seen
            if frame.f_code.co_filename != communicator.__file__:
                return None
            num_lines += event == "line"
            if num_lines == at_line and not second:
                second.append(Running(lambda: comm.abandon("second")))
                second[0].ends_within(0.1)
                seen = comm.end.reason
            return trace

        def first() -> None:
            sys.settrace(trace)
            try:
                comm.abandon("first")
            finally:
                sys.settrace(None)

        Running(first).result()
        for each in second:
            each.result()

        assert seen in (None, comm.end.reason)
