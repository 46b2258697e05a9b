"""A crew: a few real processes, each with a port, that run functions when told to.

Functions and arguments travel by pickle between parent and children of one test; a function gets
its ``Member`` first.  A crew kills its processes when it is closed, whatever state they are in.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from pliant.engine.comm.group import Group
from pliant.engine.comm.mesh import Port
from pliant.engine.comm.rendezvous import Abort, Rendezvous
from pliant.engine.comm.transport import SocketTransport
from pliant.engine.comm.windows import Address, WindowError, WindowView
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.plan import ReductionPlan
from pliant.engine.reduce.shared_memory import window_size

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "numpy", "tests.processes.crew"])


SECRET = bytes(range(32))


@dataclass
class Member:
    """One process of a crew, seen from inside."""

    rank: int
    port: Port
    nudges: Connection
    """What ``Crew.nudge`` sends; once somebody waits ``on_nudge``, one thread takes them all."""
    when_nudged: Callable[[], Any] | None = None
    """What the next nudge is to do."""
    endpoints: list[str] = field(default_factory=list)
    transport: SocketTransport = field(default_factory=SocketTransport)
    kept: dict[str, Any] = field(default_factory=dict)
    """Whatever one function leaves for the next one."""

    def tell(self, what: str) -> None:
        """Send news to ``Crew.hear`` from the middle of a function."""
        self.nudges.send(what)

    def build(
        self,
        generation: int,
        ranks: list[int] | None = None,
        *,
        layout: Layout | None = None,
        plan: ReductionPlan | None = None,
        deadline_s: float = 10.0,
        collective_s: float = 30.0,
        abort: Abort | None = None,
    ) -> Group:
        """Build a group; with ``plan`` its members read each other's windows."""
        ranks = list(range(len(self.endpoints))) if ranks is None else ranks
        layout = layout or Layout.of([])
        rendezvous = Rendezvous(
            generation=generation,
            seats=[(f"r{rank}", self.endpoints[rank]) for rank in ranks],
            replica=f"r{self.rank}",
            secret=SECRET,
            port=self.port,
            layout=layout,
            deadline_s=deadline_s,
            abort=abort,
        )
        lends = None if plan is None else window_size(layout, plan, ranks.index(self.rank))
        return self.transport.group(rendezvous, lends=lends, collective_s=collective_s)


class CrewError(Exception):
    """A function raised in a member."""


class Crew:
    """The processes, seen from the test."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pipes: list[Connection] = []
        self._nudges: list[Connection] = []
        self.processes = []
        for rank in range(size):
            mine, theirs = _context.Pipe()
            nudge, nudged = _context.Pipe()
            process = _context.Process(target=_live, args=(theirs, nudged, rank), daemon=True)
            process.start()
            theirs.close()
            nudged.close()
            self._pipes.append(mine)
            self._nudges.append(nudge)
            self.processes.append(process)
        endpoints = [self.result(rank) for rank in range(size)]
        self.everybody(_learn, endpoints)

    def start(self, rank: int, function: Callable[..., Any], *args: Any) -> None:
        self._pipes[rank].send((function, args))

    def result(self, rank: int, timeout_s: float = 60.0) -> Any:
        """Return what the member's function returned; raise CrewError if it raised."""
        if not self._pipes[rank].poll(timeout_s):
            raise TimeoutError(f"member {rank} did not answer within {timeout_s} s")
        is_good, value = self._pipes[rank].recv()
        if not is_good:
            raise CrewError(value)
        return value

    def everybody(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run a function on all members at once; return the results in rank order."""
        for rank in range(self.size):
            self.start(rank, function, *args)
        return [self.result(rank) for rank in range(self.size)]

    def divide(self, hosts: Sequence[Sequence[int]]) -> None:
        """Let members map the windows of their own host only, from now on."""
        pids = [process.pid for process in self.processes]
        for host in hosts:
            here = [pids[rank] for rank in host]
            for rank in host:
                self.start(rank, _stay_on, here)
                self.result(rank)

    def nudge(self, rank: int) -> None:
        self._nudges[rank].send(None)

    def hear(self, rank: int, timeout_s: float = 30.0) -> Any:
        """Wait for news from the middle of a member's function."""
        if not self._nudges[rank].poll(timeout_s):
            raise TimeoutError(f"no news from member {rank} within {timeout_s} s")
        return self._nudges[rank].recv()

    def signal(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(10)
            assert not process.is_alive()
            process.close()
        for pipe in self._pipes + self._nudges:
            pipe.close()


@contextlib.contextmanager
def crew(size: int) -> Iterator[Crew]:
    it = Crew(size)
    try:
        yield it
    finally:
        it.close()


def _learn(member: Member, endpoints: list[str]) -> None:
    member.endpoints = endpoints


def _stay_on(member: Member, pids: list[int]) -> None:
    reach = member.transport.window_cache.map

    def map_here(address: Address) -> WindowView:
        if address.pid not in pids:
            raise WindowError("it is elsewhere")
        return reach(address)

    member.transport.window_cache.map = map_here  # type: ignore[method-assign]


def _live(pipe: Connection, nudges: Connection, rank: int) -> None:
    torch.set_num_threads(1)
    member = Member(rank, Port(), nudges)
    pipe.send((True, member.port.endpoint))
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = (True, function(member, *args))
        except Exception:
            answer = (False, traceback.format_exc())
        pipe.send(answer)


def on_nudge(member: Member, function: Callable[[], Any]) -> None:
    """Call ``function`` on another thread when the test nudges this member, as a Reform would.

    In place of what a nudge was to do before.  One thread listens for all: of two, the one of a
    function that is over might take the nudge of the next.
    """
    is_first, member.when_nudged = member.when_nudged is None, function
    if is_first:
        background(lambda: _listen(member))


def _listen(member: Member) -> None:
    with contextlib.suppress(EOFError, OSError):  # the test is over
        while True:
            member.nudges.recv()
            assert member.when_nudged is not None
            member.when_nudged()


def background(function: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread
