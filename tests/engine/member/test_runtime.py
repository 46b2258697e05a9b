"""The protocol's value has one writer, no flag is set from outside; a build has its secret."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

import pliant
from pliant.core.commands import Prepare, Reform, RollCall
from pliant.core.events import Event, Registered
from pliant.core.values import Generation, Incarnation, Order, ReplicaId, Seat
from pliant.engine.comm.communicator import WindowSize
from pliant.engine.member.group_builds import GroupBuilds
from pliant.engine.member.runtime import ProtocolRuntime
from pliant.engine.reduce.buckets import Layout

ROOMS = ("engine/member", "engine/comm")
"""Whose objects several threads use."""
OTHERS = {
    "sys",  # what the interpreter would have set
    "stop",  # an exception of the script's
    "error",
    "module",  # the script's
    "environ",  # of os, which others hold
    "spec",  # of a module, by importlib's protocol
    "watchdog",  # threads and options take some values only so
    "options",
    "ssl_context",
}
"""Names of what is no object of the package."""

R1 = ReplicaId("r1")
SECRET = "0123456789abcdef" * 4


def worker() -> tuple[ProtocolRuntime, Any, list[Event]]:
    """Return the protocol of r1, what a command is given to, and what it says."""
    handlers: list[Any] = []
    said: list[Event] = []
    link = SimpleNamespace(attach=lambda *given: handlers.extend(given), send=said.append)
    assignment = SimpleNamespace(address="127.0.0.1", work=SimpleNamespace(exchange="auto"))
    context: Any = SimpleNamespace(replica=R1, link=link, assignment=assignment, tls=None)
    layout = Layout.of(nn.Linear(1, 1).named_parameters(), extras=1)
    runtime = ProtocolRuntime(context, layout, lambda order: WindowSize(nbytes=0))
    return runtime, handlers[0], said


def assigned(path: Path) -> Iterator[ast.Attribute]:
    """Find every attribute that a module assigns to."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


@pytest.mark.parametrize("room", ROOMS)
def test_no_attribute_of_another_object_is_assigned(room: str) -> None:
    files = sorted((Path(pliant.__file__).parent / room).rglob("*.py"))
    found = [
        f"{file.name}:{node.lineno}: {ast.unparse(node)}"
        for file in files
        for node in assigned(file)
        if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", *OTHERS})
        if node.attr not in {"restype", "argtypes", "atexit"}  # as ctypes and weakref have it
    ]

    assert files
    assert found == []


def test_the_protocols_value_is_replaced_in_one_place() -> None:
    rooms = Path(pliant.__file__).parent / "engine"
    found = [
        f"{file.name}: {ast.unparse(node)}"
        for file in sorted((rooms / "member").glob("*.py"))
        for node in assigned(file)
        if node.attr in ("_member", "member")
        and file.name not in ("alone.py", "follower_membership.py")
    ]

    assert found == ["runtime.py: self._member", "runtime.py: self._member"]  # made, replaced


def test_one_that_has_finished_says_so_while_it_meets_others_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coordinator that comes then must not take the run for one that nobody has ended."""
    monkeypatch.setattr(GroupBuilds, "learn", lambda *_: None)
    monkeypatch.setattr(GroupBuilds, "start", lambda *_: None)
    runtime, command, said = worker()
    order = Order(generation=Generation(3), members=(Seat(replica=R1, endpoint="h:1"),))
    runtime.finish(has_left_loop=False)
    command(Reform(to=(R1,), order=order, secret=SECRET), Incarnation(1))

    command(RollCall(to=(R1,)), Incarnation(2))

    assert isinstance(said[-1], Registered)
    assert said[-1].finished


@pytest.mark.parametrize("kind", [Prepare, Reform])
def test_the_secret_is_there_when_the_build_starts(
    monkeypatch: pytest.MonkeyPatch, kind: type[Prepare | Reform]
) -> None:
    did: list[tuple[object, ...]] = []
    monkeypatch.setattr(GroupBuilds, "learn", lambda _, *words: did.append(("learn", *words)))
    monkeypatch.setattr(
        GroupBuilds, "start", lambda _, order: did.append(("start", order.generation))
    )
    _, command, _ = worker()
    order = Order(generation=Generation(3), members=(Seat(replica=R1, endpoint="h:1"),))

    command(kind(to=order.replicas, order=order, secret=SECRET), Incarnation(1))

    assert did == [("learn", 3, SECRET), ("start", 3)]
