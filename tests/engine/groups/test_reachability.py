"""Which members answer at all."""

from __future__ import annotations

import socket
import threading

import pytest
from torch import nn

from pliant.engine.groups.build import GroupBuild
from pliant.engine.groups.ending import Abort, GroupBroken
from pliant.engine.groups.handshake import SECRET_BYTES
from pliant.engine.groups.port import Port
from pliant.engine.groups.reachability import unreachable
from pliant.engine.reduce.buckets import Layout


def test_who_refuses_has_answered_and_who_says_nothing_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pliant.engine.groups.reachability.PROBE_S", 0.2)
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
    monkeypatch.setattr("pliant.engine.groups.reachability.PROBE_S", 0.2)
    port = Port("127.0.0.1")
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as cut_off,
        socket.create_connection(cut_off.getsockname()),
    ):
        build = GroupBuild(
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
            build.run()

    assert raised.value.unreached == ("r1",)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_who_reaches_everybody_speaks_after_those_who_do_not(
    monkeypatch: pytest.MonkeyPatch, is_given_up: bool
) -> None:
    """Else the first word ends the attempt, and nobody ever hears which link is cut."""
    monkeypatch.setattr("pliant.engine.groups.reachability.PROBE_S", 0.2)
    monkeypatch.setattr("pliant.engine.groups.build.PROBE_S", 60.0 if is_given_up else 0.2)
    abort, port, gone = Abort(), Port("127.0.0.1"), Port("127.0.0.1")
    build = GroupBuild(
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
            build.run()
        spoke.append(raised.value)

    waiting = threading.Thread(target=run)
    waiting.start()
    waiting.join(1.0)
    assert not spoke
    if is_given_up:
        abort.set("another one is tried")
    waiting.join()

    assert [one.unreached for one in spoke] == [()]
