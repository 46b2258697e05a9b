"""The restart worker: one process for each replica, which speaks the protocol in place of a script.

Owns a ``Member`` value and what it means here: in a generation the processes of the script run, at
a planned change they are let go, at a fault they are ended at once, and in the next generation they
are started anew.  It holds no state of the training: the script's own checkpoint does.  Coordinator
and core treat it as a worker whose size changes in place.  Must not know torch.

    Spare --> Prepare: connect --> Switch --> all stop together (``stopping``) --> meet --> start
    a process has failed: Broken, told to the others --> Reform: end all --> meet --> start
    all have ended with code 0: Finished --> Release --> exit

One thread and one loop: whatever comes from the link or from a builder is put into it.  Every wait
is a look at the state after each piece of news.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pliant.core import commands, events
from pliant.core.commands import Command
from pliant.core.errors import NoStateError
from pliant.core.events import ExitKind
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Abandon, Build, Member, Outcome
from pliant.core.membership.resolve import Header, resolve
from pliant.core.values import NO_GENERATION, NO_LINEAGE, Generation, Incarnation, Order, ReplicaId
from pliant.engine.comm.mesh import Port
from pliant.engine.worker.link import Link
from pliant.machine import run_files
from pliant.machine.event_loop import within
from pliant.machine.tls import TlsContexts
from pliant.restart import stopping
from pliant.restart.links import Building, Links, Unreached
from pliant.restart.output import Logs
from pliant.restart.processes import Processes, Ranks, end, free_port, surroundings
from pliant.restart.stopping import Stop
from pliant.wire.launch import Assignment
from pliant.wire.messages import Committed, Noted, Traceback

STEPS_S = 0.1
"""Between two looks how far the script is, in seconds."""

FORCED_S = 8.0
"""Before a replica is ended as overdue its processes are, in seconds."""

MIN_S = 1.0
"""Shortest time that scripts get to save, in seconds."""

MOST_REPLICAS = 1 << 16
"""What it says of the micro-batches of a step, of which each replica needs one: no limit."""

T = TypeVar("T")


class Interrupted(Exception):  # noqa: N818
    """What was waited for does not come: the generation is over."""


class Left(Exception):  # noqa: N818
    """This replica is to end."""

    def __init__(self, kind: ExitKind, detail: str = "") -> None:
        super().__init__(detail)
        self.kind = kind


class RestartWorker:
    """See the module's text; one per process."""

    def __init__(self, assignment: Assignment, link: Link) -> None:
        work = assignment.work
        self.member = Member(replica=assignment.replica)
        self.assignment = assignment
        self.processes: Processes | None = None
        """Those of the generation it is in, ended or not; None: they were let go, or in a hold."""

        self.links: Links | None = None
        """Of the generation it is in, or enters."""

        self.news = asyncio.Event()
        self.is_stopping = False
        """What ends now was told to, or is near to that: it is no fault."""

        self._link = link
        self._loop = asyncio.get_running_loop()
        self._tls = None if work.tls is None else TlsContexts.of(work.tls)
        self._port = Port(assignment.address)
        self._secrets: dict[Generation, bytes] = {}
        self._building: Building | None = None
        self._built: Links | None = None
        self._spare: events.Spare | None = None
        self._asked = (Incarnation(0), 0)
        self._is_to_look = self._is_released = self._is_finished = False
        self._dismissed: str | None = None
        self._waiting = NO_GENERATION
        self._is_over = False
        """The script had ended in all processes when the size was to change."""

        self._restarts = 0
        self._calls = self._told = 0
        """Calls of elastic_event before this generation, and those that were told of."""

        self._told_s = time.monotonic()
        self._notice_s: float | None = None
        """What is left before the replicas that go are ended, if that is from outside."""

    # --- what comes in --------------------------------------------------------------------

    def _post(self, command: Command, incarnation: Incarnation) -> None:
        """Hand a command to the loop; on the link's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._obey, command, incarnation)

    def _obey(self, command: Command, incarnation: Incarnation) -> None:
        self._become(self._outcome(command, incarnation))
        self.news.set()

    def _outcome(self, command: Command, incarnation: Incarnation) -> Outcome:
        member = self.member
        match command:
            case commands.Prepare(order=order, secret=secret):
                self._secrets[order.generation] = bytes.fromhex(secret)
                return protocol.on_prepare(member, order, incarnation)
            case commands.Switch(order=order, within_s=within_s):
                self._notice_s = within_s
                return protocol.on_switch(member, order, incarnation)
            case commands.Reform(order=order, secret=secret):
                self._secrets[order.generation] = bytes.fromhex(secret)
                return protocol.on_reform(member, order, incarnation)
            case commands.RollCall():
                return protocol.on_roll_call(
                    member, incarnation, spare=self._spare, finished=self._is_finished
                )
            case commands.Stop():
                return protocol.told_to_stop(member), ()
            case commands.ListCheckpoints(number=number):
                self._is_to_look, self._asked = True, (incarnation, number)
            case commands.Dismiss(reason=reason):
                self._dismissed = reason
            case commands.Release():
                self._is_released = True
            case _:
                pass  # not for a script that is started again
        return member, ()

    def _become(self, outcome: Outcome) -> None:
        """Replace the member and do what that causes."""
        self.member, tasks = outcome
        for task in tasks:
            match task:
                case Build(order=order):
                    self._build(order)
                case Abandon(generation=generation):
                    self._abandon(generation)
                case _:
                    self._link.send(task)

    def _heartbeat(self) -> events.Event:
        return events.Progressed(
            replica=self.member.replica,
            generation=self.member.current,
            committed=0,
            calls=0,
            waiting=self._waiting,
        )

    # --- connections ----------------------------------------------------------------------

    def _build(self, order: Order) -> None:
        secret = self._secrets.pop(order.generation, b"")
        tls = None if self._tls is None else self._tls.renewed()
        building = Building(order, self.member.replica, secret, self._port, tls)
        self._building = building

        def connect() -> None:
            try:
                done = building.connect()
            except Exception as error:  # a thread boundary: silence costs a deadline
                unreached = error.replicas if isinstance(error, Unreached) else ()
                call = partial(self._not_built, building, str(error), unreached)
            else:
                call = partial(self._connected, building, done)
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call)

        threading.Thread(target=connect, name=f"build-g{order.generation}", daemon=True).start()

    def _connected(self, building: Building, socks: dict[int, socket.socket]) -> None:
        order = building.order
        links = Links(order, building.rank, socks, self.news.set)
        awaited = protocol.entering(self.member)
        if building is not self._building or awaited != order:
            links.close()
            return
        self._built, self._building = links, None
        self._become(protocol.on_built(self.member, order.generation))
        self.news.set()

    def _not_built(self, building: Building, reason: str, unreached: tuple[ReplicaId, ...]) -> None:
        if building is self._building:
            self._building = None
            generation = building.order.generation
            self._become(protocol.on_build_failed(self.member, generation, reason, unreached))
            self.news.set()

    def _abandon(self, generation: Generation) -> None:
        if self._building is not None and self._building.order.generation == generation:
            self._building.give_up()
            self._building = None
        for links in (self._built, self.links):
            if links is not None and links.order.generation == generation:
                links.close()
        if self._built is not None and self._built.order.generation == generation:
            self._built = None

    # --- the loop -------------------------------------------------------------------------

    async def serve(self) -> None:
        """Do what is due, until this replica is to end.

        Raises:
            Left: always.
        """
        self._say_spare()
        self._link.attach(self._post, self._heartbeat)
        while True:
            self.news.clear()
            try:
                is_done = await self._turn()
            except Interrupted as error:
                self._break(str(error))
                continue
            while not (is_done or self.news.is_set()):
                await within(self.news.wait(), STEPS_S)
                self._tell_steps()

    def close(self) -> None:
        """End what runs, and hang up."""
        if self.processes is not None:
            self.processes.close()
        for links in (self._built, self.links):
            if links is not None:
                links.close()

    async def _turn(self) -> bool:
        """Do one thing that is due; False: nothing is."""
        member = self.member
        if self._dismissed is not None:
            await self._end_all()
            raise Left(ExitKind.LEFT)
        if self._is_to_look:
            self._is_to_look = False
            self._say_spare()
            return True
        if member.reform is not None:
            if await self._end_all():
                return True
            if not member.built:
                return False
            await self._enter(member.reform)
            return True
        if member.leaving or (self._is_released and not self._is_finished):
            await self._end_all()
            if not self._is_released:
                return False
            raise Left(ExitKind.LEFT)
        if self._is_released and not self._is_running:
            raise Left(ExitKind.FINISHED)
        if not member.broken and member.current and (done := await self._in_generation()):
            return done
        if member.ordered is not None and member.built and not member.current:
            await self._enter(member.ordered)
            return True
        return False

    async def _in_generation(self) -> bool:
        """Do what is due in the generation that this replica is in; False: nothing is."""
        links, member = self.links, self.member
        if links is None or self._has_failed(links):
            return links is not None
        if links.rank and (asked := links.next_of(0, stopping.ASK)) is not None:
            stop = Stop.of(asked)
            self._is_over = await stopping.follow(self, links, stop)
            return await self._after(stop)
        ordered = member.ordered is not None and member.built
        if links.rank == 0 and (ordered or (member.stopping and not self._is_finished)):
            stop = self._planned(links)
            self._is_over = await stopping.lead(self, links, stop)
            return await self._after(stop)
        if not self._is_finished and self.processes is not None and not self._is_running:
            self._finish()
        return False

    @property
    def _is_running(self) -> bool:
        return self.processes is not None and bool(self.processes.running)

    def _planned(self, links: Links) -> Stop:
        """Return why all are to stop: for another size, or for good."""
        order, old = self.member.ordered, len(links.order.members)
        new = 0 if order is None else len(order.members)
        graceful_s = self.assignment.work.graceful_s
        if order is not None and self._notice_s is not None:  # from outside it may be less
            graceful_s = max(MIN_S, min(graceful_s, self._notice_s - FORCED_S))
        return Stop(
            reason="resize" if order else "stop",
            generation=NO_GENERATION if order is None else order.generation,
            old_size=old * self.assignment.workers_per_replica,
            new_size=new * self.assignment.workers_per_replica,
            staying=() if order is None else order.replicas,
            graceful_s=graceful_s,
        )

    async def _after(self, stop: Stop) -> bool:
        """Go on as all had agreed, once nothing runs any more."""
        self._let_go()
        if self.links is not None:
            self.links.close()
            self.links = None
        if not stop.generation:
            self._finish()
            return True
        order = await self.until(self._ordered_as(stop.generation), stop.generation)
        if self.member.replica in order.replicas:
            await self._enter(order)
        else:
            self._become((protocol.left(self.member), ()))
        return True

    def _ordered_as(self, generation: Generation) -> Callable[[], Order | None]:
        def ordered() -> Order | None:
            order = self.member.ordered
            return order if order is not None and order.generation == generation else None

        return ordered

    async def until(
        self, look: Callable[[], T | None], generation: Generation, limit_s: float | None = None
    ) -> T:
        """Wait until there is something to see.

        Raises:
            Interrupted: a newer generation has begun meanwhile, this replica is to end, a
                connection has ended.
            TimeoutError: ``limit_s`` has passed.
        """
        until_s = None if limit_s is None else time.monotonic() + limit_s
        while True:
            self.news.clear()
            if self._dismissed is not None or protocol.is_sealed(self.member, generation):
                raise Interrupted("a newer generation has begun")
            if (found := look()) is not None:
                return found
            if self.links is not None and self.links.broken:
                raise Interrupted(self.links.broken)
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            await within(self.news.wait(), STEPS_S if left_s is None else min(STEPS_S, left_s))
            self._tell_steps()

    # --- a generation ---------------------------------------------------------------------

    async def _enter(self, order: Order) -> None:
        """Meet the members of ``order``, and start the processes of the script.

        Raises:
            Interrupted: somebody is gone, or a newer generation has begun.
        """
        if self._built is None or self._built.order != order:
            raise Interrupted("it was given up")
        if self.links is not None and self.links is not self._built:
            self.links.close()
        self.links = links = self._built
        self._built, self.is_stopping = None, False
        self._waiting = order.generation
        try:
            start = await self._meet(links)
        finally:
            self._waiting = NO_GENERATION
        headers = [Header.from_ints(row) for row in start["headers"]]
        origin = None if order.origin is None else order.replicas.index(order.origin)
        try:
            resolution = resolve(headers, origin, order.restore)
        except NoStateError as error:
            raise Interrupted(str(error)) from error
        self._become((protocol.resolved(self.member, resolution, links.rank), ()))
        if not self.member.has_state or resolution.restore is not None:
            self._become((protocol.received(self.member, resolution), ()))
        self._become((protocol.entered(self.member, order), ()))
        self._restarts, self._calls = start["restarts"], start["calls"]
        replica, committed = self.member.replica, self.member.committed
        self._link.send(
            events.Switched(replica=replica, generation=order.generation, step=committed)
        )
        if start["is_over"]:
            self._finish()
        elif not order.hold:
            self._start(order, links, (start["master"][0], start["master"][1]))

    async def _meet(self, links: Links) -> dict[str, Any]:
        """Exchange where everybody stands; rank 0 says where the processes meet."""
        generation = links.order.generation
        mine = {"header": protocol.header(self.member).to_ints(), "restarts": self._restarts}
        mine |= {"calls": self._calls, "is_over": self._is_over}
        if links.rank:
            links.tell(0, "here", **mine)
            return await self.until(lambda: links.next_of(0, "start"), generation)
        said: dict[int, dict[str, Any]] = {0: mine}

        def all_are_here() -> bool | None:
            for rank in links.others:
                if rank not in said and (one := links.next_of(rank, "here")) is not None:
                    said[rank] = one
            return len(said) == len(links.order.members) or None

        await self.until(all_are_here, generation)
        host = self.assignment.address
        start = {
            "headers": [said[rank]["header"] for rank in sorted(said)],
            "restarts": max(one["restarts"] for one in said.values()),
            "calls": max(one["calls"] for one in said.values()),
            "is_over": any(one["is_over"] for one in said.values()),
            "master": [host, free_port(host)],
        }
        links.tell_all("start", **start)
        return start

    def _start(self, order: Order, links: Links, master: tuple[str, int]) -> None:
        work, here = self.assignment.work, self.assignment.workers_per_replica
        ranks = Ranks(
            replica=self.member.replica,
            group_rank=links.rank,
            group_world_size=len(order.members),
            local_world_size=here,
            first_rank=links.rank * here,
            world_size=len(order.members) * here,
            master=master,
            role=os.environ.get("PET_ROLE") or "default",
            restarts=self._restarts,
        )
        out = Path(work.out) / run_files.LOGS / self.member.replica
        self.processes = Processes(
            work.command,
            ranks,
            job=work.job,
            max_restarts=work.max_restarts,
            environ=surroundings(),
            directory=Path(self.assignment.inner) / f"g{order.generation}",
            logs=Logs.of(os.environ, job=work.job, restarts=self._restarts, default=out),
            on_exit=self.news.set,
        )

    def _let_go(self) -> None:
        if self.processes is not None:
            self._calls += max(one.page.calls for one in self.processes.all)
            self.processes.close()
            self.processes = None

    async def _end_all(self) -> bool:
        """End what runs at once; False: there was nothing."""
        if self.processes is None:
            return False
        await end(self.processes, self.news)
        self._let_go()
        self._restarts += 1
        self._is_finished = False
        return True

    def _tell_steps(self) -> None:
        """Tell people how far the script is, as its first process counts: once for all replicas."""
        if self.processes is None or self.links is None or self.links.rank:
            return
        calls = self._calls + self.processes.all[0].page.calls
        if calls <= self._told:
            return
        now_s, since = time.monotonic(), calls - self._told
        self._link.send(
            Committed(
                replica=self.member.replica,
                generation=self.member.current,
                step=calls - 1,
                mono_s=now_s,
                loss=None,
                grad_norm=None,
                samples=0,
                step_s=(now_s - self._told_s) / since,
            ),
            urgent=False,
        )
        self._told, self._told_s = calls, now_s

    def _finish(self) -> None:
        """Say that the script is done here; others may be at it for long."""
        self._is_finished = True
        me = self.member
        self._link.send(
            events.Finished(replica=me.replica, committed=me.committed, lineage=NO_LINEAGE)
        )

    # --- faults ---------------------------------------------------------------------------

    def _has_failed(self, links: Links) -> bool:
        """Tell of a process that has failed, here or elsewhere; False: none has."""
        failed = None if self.processes is None else self.processes.failed
        if self.processes is not None and failed is not None and not self.is_stopping:
            last, traceback = failed.error()
            what = f"rank {failed.rank} ({self.member.replica}) {failed.how}"
            reason = f"{what}: {last}" if last else what
            links.tell_all("failed", reason=reason)
            if traceback:
                self._link.send(Traceback(replica=self.member.replica, text=traceback))
            self.note(f"{reason}; all processes end, and start again if --max-restarts lets them")
            kind = ExitKind.SIGNAL if (failed.code or 0) < 0 else ExitKind.SCRIPT
            self._break(reason, kind)
            return True
        if (said := links.next_of_any("failed")) is not None:
            if links.rank == 0:
                links.tell_all("failed", reason=said["reason"])
            self._break(said["reason"])
            return True
        if links.broken and not self._is_finished:
            self._break(links.broken)
            return True
        return False

    def _break(self, reason: str, failure: ExitKind | None = None) -> None:
        """Say that the generation is over; a Reform follows."""
        entering = protocol.entering(self.member)
        links = self.links
        generation = links.order.generation if links is not None else NO_GENERATION
        if entering is not None and links is None:
            generation = entering.generation
        member, tasks = protocol.on_broken(self.member, generation, reason)
        told = [
            one if not isinstance(one, events.Broken) else replace(one, failure=failure)
            for one in tasks
        ]
        self._become((member, tuple(told)))
        if self.processes is not None:
            self.processes.signal_all(signal.SIGTERM)

    # --- words ----------------------------------------------------------------------------

    def note(self, text: str, *, lasting: bool = False) -> None:
        """Pass on one sentence for people."""
        self._link.send(Noted(replica=self.member.replica, text=text, lasting=lasting))

    def _say_spare(self) -> None:
        asked_by, looked = self._asked
        self._spare = events.Spare(
            replica=self.member.replica,
            calls=0,
            num_slots=MOST_REPLICAS,
            layout="restart mode",
            endpoint=self._port.endpoint,
            identity=(("processes", str(self.assignment.workers_per_replica)),),
            is_durable=True,  # as the script says by being started like this
            asked_by=asked_by,
            looked=looked,
        )
        self._link.send(self._spare)
