"""Groups are built by all or given up by each, at any moment, and leave nothing behind."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import pytest
import torch
from tests.engine.comm.circle import BOUND_S, Running, tls_contexts, wait_until
from torch import nn

from pliant.engine.comm.communicator import Communicator, GroupBroken, WindowSize
from pliant.engine.comm.group import Group
from pliant.engine.comm.handshake import SECRET_BYTES
from pliant.engine.comm.mesh import Port
from pliant.engine.comm.rendezvous import (
    INTERVAL_S,
    Abort,
    LayoutMismatch,
    Rendezvous,
    quick_handovers,
    unreachable,
)
from pliant.engine.comm.transport import SocketTransport
from pliant.engine.reduce.buckets import Layout

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def ports() -> Iterator[list[Port]]:
    found = [Port() for _ in range(4)]
    yield found
    for port in found:
        port.close()


def build(
    ports: list[Port], rank: int, abort: Abort | None = None, *, generation: int = 1, **more: Any
) -> Running:
    transport, lends = more.pop("transport", SocketTransport()), more.pop("lends", None)
    given = {"secret": bytes(range(32)), "layout": Layout.of([]), "deadline_s": BOUND_S, **more}
    rendezvous = Rendezvous(
        generation=generation,
        seats=[(f"r{each}", port.endpoint) for each, port in enumerate(ports)],
        replica=f"r{rank}",
        port=ports[rank],
        abort=abort,
        **given,
    )
    return Running(
        lambda: transport.group(rendezvous, lends=lends, collective_s=BOUND_S), f"rank {rank}"
    )


def give_up(outcomes: list[Any]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Group):
            outcome.abandon("told to")


def test_who_is_told_to_give_up_before_it_begins_opens_nothing(ports: list[Port]) -> None:
    abort, process = Abort(), psutil.Process()
    abort.set("a newer order came")
    before = process.num_fds()
    outcome = build(ports, 0, abort).result()

    assert outcome.reason == "a newer order came"
    assert process.num_fds() == before  # also while the error and its frames are kept


@pytest.mark.parametrize("seed", range(20))
def test_an_abort_at_any_moment_leaves_nothing(ports: list[Port], seed: int) -> None:
    rng = random.Random(seed)
    tls = tls_contexts() if seed % 2 else None
    process = psutil.Process()
    before = process.num_fds(), threading.active_count()
    aborts = [Abort() for _ in ports]
    order = rng.sample(range(4), rng.choice([3, 4, 4]))
    building = [build(ports, rank, aborts[rank], tls=tls) for rank in order]
    time.sleep(rng.random() * 0.02)

    for rank in order:
        aborts[rank].set("a newer order came")
    outcomes = [each.result() for each in building]
    give_up(outcomes)

    for outcome in outcomes:
        assert isinstance(outcome, Group) or outcome.reason == "a newer order came"
    wait_until(lambda: process.num_fds() <= before[0], "a descriptor is left")
    wait_until(lambda: threading.active_count() <= before[1], "a thread is left")


@pytest.mark.parametrize("rank", [1, 2])
def test_only_the_one_whose_layout_differs_is_told(ports: list[Port], rank: int) -> None:
    three = ports[:3]
    aborts = [Abort() for _ in three]
    layouts = [Layout.of([("w", torch.empty(2, 5 if each == rank else 4))]) for each in range(3)]
    building = [build(three, each, aborts[each], layout=layouts[each]) for each in range(3)]

    with pytest.raises(LayoutMismatch, match=r"'w' is float32 \[2, 5\] on this worker"):
        building[rank].result()

    others = [each for each in range(3) if each != rank]
    assert not any(building[each].ends_within(0.05) for each in others)
    again = build(three, rank, layout=layouts[0])
    groups = [building[each].result() for each in others] + [again.result()]
    assert all(isinstance(group, Group) for group in groups)
    give_up(groups)


@pytest.mark.parametrize("seed", range(10))
def test_abandon_and_retire_from_many_threads_end_it_once(ports: list[Port], seed: int) -> None:
    rng = random.Random(seed)
    before = threading.active_count()
    groups = [each.result() for each in [build(ports, rank) for rank in range(4)]]
    tickets = [
        group.submit(lambda comm: [comm.rows(torch.ones(50_000)) for _ in range(1000)])
        for group in groups
    ]
    time.sleep(rng.random() * 0.02)
    acts = [
        (group.abandon, (f"reason {number}",)) if rng.random() < 0.7 else (group.retire, ())
        for group in groups
        for number in range(3)
    ]
    acts += [(group.abandon, ("the last",)) for group in groups]

    for each in [Running(partial(act, *args)) for act, args in acts]:
        each.result()

    for group, ticket in zip(groups, tickets, strict=True):
        with pytest.raises(GroupBroken):
            ticket.wait(BOUND_S)
        with pytest.raises(GroupBroken):
            group.share("x", b"")
    wait_until(lambda: threading.active_count() <= before, "a thread is left")


def test_a_member_that_stops_after_the_meeting_costs_no_more_than_the_deadline(
    ports: list[Port], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not say whether it could map the others' windows."""
    stopped = threading.Event()
    share = SocketTransport._share_windows

    def stop(self: SocketTransport, communicator: Communicator, *given: Any) -> Any:
        if communicator.rank == 1:
            stopped.wait(10)
            raise GroupBroken(1, "it woke")
        return share(self, communicator, *given)

    monkeypatch.setattr(SocketTransport, "_share_windows", stop)
    size = WindowSize(nbytes=4096)
    building = [build(ports[:2], rank, lends=size, deadline_s=0.5) for rank in range(2)]

    outcome = building[0].result()
    stopped.set()

    assert isinstance(outcome, GroupBroken)
    assert "no answer within" in outcome.reason
    building[1].result()


def test_who_refuses_has_answered_and_who_says_nothing_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pliant.engine.comm.rendezvous.PROBE_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as open_,
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.socket() as closed,
        socket.create_connection(full.getsockname()),  # nobody takes it, so the next one waits
    ):
        closed.bind(("127.0.0.1", 0))
        ways = {"open": open_, "full": full, "closed": closed}
        endpoints = {name: f"127.0.0.1:{way.getsockname()[1]}" for name, way in ways.items()}

        assert unreachable(endpoints) == ("full",)


def test_members_that_do_not_meet_say_whom_they_cannot_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pliant.engine.comm.rendezvous.PROBE_S", 0.2)
    port = Port("127.0.0.1")
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as cut_off,
        socket.create_connection(cut_off.getsockname()),
    ):
        rendezvous = Rendezvous(
            generation=1,
            seats=[
                ("r1", f"127.0.0.1:{cut_off.getsockname()[1]}"),
                ("r2", Port("127.0.0.1").endpoint),  # is there, and has given up
                ("r3", port.endpoint),
            ],
            replica="r3",
            secret=bytes(SECRET_BYTES),
            port=port,
            layout=Layout.of(nn.Linear(1, 1).named_parameters(), extras=1),
            deadline_s=0.1,
        )

        with pytest.raises(GroupBroken) as raised:
            SocketTransport().group(rendezvous)

    assert raised.value.unreached == ("r1",)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_who_reaches_everybody_speaks_after_those_who_do_not(
    monkeypatch: pytest.MonkeyPatch, is_given_up: bool
) -> None:
    """Else the first word ends the attempt, and nobody ever hears which link is cut."""
    monkeypatch.setattr("pliant.engine.comm.rendezvous.PROBE_S", 60.0 if is_given_up else 0.2)
    abort, port, gone = Abort(), Port("127.0.0.1"), Port("127.0.0.1")
    rendezvous = Rendezvous(
        generation=1,
        seats=[("r1", port.endpoint), ("r2", gone.endpoint)],
        replica="r1",
        secret=bytes(SECRET_BYTES),
        port=port,
        layout=Layout.of(nn.Linear(1, 1).named_parameters(), extras=1),
        deadline_s=0.1,
        abort=abort,
    )
    spoke: list[GroupBroken] = []

    def run() -> None:
        with pytest.raises(GroupBroken) as raised:
            SocketTransport().group(rendezvous)
        spoke.append(raised.value)

    waiting = threading.Thread(target=run)
    waiting.start()
    waiting.join(1.0)
    assert not spoke
    if is_given_up:
        abort.set("another one is tried")
    waiting.join()

    assert [one.unreached for one in spoke] == [()]


USUAL_S = 0.004


@pytest.fixture
def usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL_S)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("usual")
def test_it_is_quick_until_the_last_meeting_has_ended() -> None:
    first, second = quick_handovers(), quick_handovers()
    with first:
        second.__enter__()
        assert sys.getswitchinterval() == pytest.approx(INTERVAL_S)
    assert sys.getswitchinterval() == pytest.approx(INTERVAL_S)
    second.__exit__(None, None, None)

    assert sys.getswitchinterval() == pytest.approx(USUAL_S)


@pytest.mark.usefixtures("usual")
def test_it_is_as_usual_after_a_meeting_that_failed() -> None:
    with pytest.raises(OSError, match="nobody"), quick_handovers():
        raise OSError("nobody")

    assert sys.getswitchinterval() == pytest.approx(USUAL_S)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("own_s", [0.001, INTERVAL_S / 2])
def test_what_the_script_sets_meanwhile_stays(own_s: float) -> None:
    with quick_handovers():
        sys.setswitchinterval(own_s)

    assert sys.getswitchinterval() == pytest.approx(own_s)


@pytest.mark.usefixtures("usual")
def test_a_script_that_wants_it_quicker_is_left_alone() -> None:
    sys.setswitchinterval(INTERVAL_S / 2)

    with quick_handovers():
        assert sys.getswitchinterval() == pytest.approx(INTERVAL_S / 2)
    assert sys.getswitchinterval() == pytest.approx(INTERVAL_S / 2)
