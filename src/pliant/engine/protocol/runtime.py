"""Protocol runtime: one worker's side of the protocol between its threads.

Owns the ``Member`` value under its lock: commands of the coordinator change it on the link's
thread, results of builds on builder threads, votes and commits on the main thread.  Also the
groups that are being built or wait to be entered, and the main thread's waiting for news.  Must
not know tensors, steps or state; what a command means is decided in ``core.membership.member``.

    link's thread      commands -> Member; starts builds; abandons groups (wakes the main thread)
    builder threads    one per generation: connect, then tell Prepared, Refused or Broken
    main thread        waits here, with the lock free, until there is something to do
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from pliant.core.commands import (
    Command,
    Dismiss,
    FallThrough,
    Prepare,
    Publish,
    Reform,
    Release,
    RollCall,
    Stop,
    Switch,
)
from pliant.core.events import (
    Broken,
    Event,
    ExitKind,
    Prepared,
    Progressed,
    Refused,
    Registered,
    Spare,
)
from pliant.core.exits import EXIT_OK
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Abandon, Build, Member, Task
from pliant.core.values import NO_GENERATION, Generation, Incarnation, Order, ReplicaId
from pliant.engine import probe
from pliant.engine.groups.build import GroupBuild
from pliant.engine.groups.ending import Abort, GroupBroken
from pliant.engine.groups.gloo import StoreServer
from pliant.engine.groups.group import Group
from pliant.engine.reduce.buckets import Layout
from pliant.engine.reduce.windows import WindowCache, WindowSize
from pliant.engine.worker.bootstrap import WorkerContext
from pliant.wire.messages import WorkerNote

LOOK_S = 1.0
"""Between two looks at the world of a waiting main thread, in seconds; news wake it at once."""


class ProtocolRuntime:
    """See the module's text; one per process.

    Methods of the main thread raise SystemExit once this replica is dismissed or has left.
    """

    def __init__(
        self, context: WorkerContext, layout: Layout, window_size_for: Callable[[Order], WindowSize]
    ) -> None:
        """``window_size_for``: how much memory this replica needs in its window as a member."""
        self._context = context
        self._layout = layout
        self._window_size_for = window_size_for
        self._window_cache = WindowCache()
        self._server = StoreServer(context.address)
        self._builds: dict[Generation, Abort] = {}
        self._groups: dict[Generation, Group] = {}
        self._entered: Group | None = None
        self._fall_through = 0
        self._spare: Spare | None = None
        self._publishable: set[str] = set()
        self._dismissed: str | None = None
        self.released: tuple[ReplicaId, ...] = ()
        """Who was released together with this replica; empty before."""
        self.changed = threading.Condition()
        """The lock of everything here; notified when something came from outside."""
        self.member = Member(replica=context.replica)
        """The protocol's value; replaced, under the lock, never changed."""
        self.waiting = NO_GENERATION
        """The generation in a collective of which the main thread waits for the others."""
        self.is_finishing = False
        """The script has said Finished."""
        context.link.attach(self._on_command, self._heartbeat)

    @property
    def endpoint(self) -> str:
        """Where this worker's store is reached."""
        return self._server.endpoint

    def tell(self, event: Event) -> None:
        """Send an event to the coordinator; never blocks."""
        if isinstance(event, Spare):
            self._spare = event
        self._context.link.send(event)

    def note(self, note: WorkerNote) -> None:
        """Pass on a fact for people; never blocks."""
        self._context.link.send(note)

    def await_leave(self, checkpoint: str, limit_s: float) -> bool:
        """Wait for leave to publish a checkpoint; from any thread."""
        with self.changed:
            self.changed.wait_for(lambda: checkpoint in self._publishable, limit_s)
            return checkpoint in self._publishable

    # --- main thread: what holds now ------------------------------------------------------

    def check(self, generation: Generation) -> None:
        """Make sure that the main thread may go on in the generation it is in.

        Raises:
            GroupBroken: it is sealed, or has failed.
        """
        with self.changed:
            self._check_dismissed()
            self.check_sealed(generation)
            if self.member.broken:
                raise GroupBroken(generation, "it failed before")

    def check_sealed(self, generation: Generation) -> None:
        """Make sure that a completion in ``generation`` may still be looked at (R13)."""
        with self.changed:
            if protocol.is_sealed(self.member, generation):
                raise GroupBroken(generation, f"sealed by generation {self.member.sealed}")

    def check_leaving(self) -> None:
        """Stay until Release, then leave, if a boundary or a Dismiss says so."""
        with self.changed:
            self._check_dismissed()
            if not self.member.leaving:
                return
            while not (self.released or self._dismissed is not None):
                self.changed.wait(LOOK_S)
        self._go()

    def leave(self) -> NoReturn:
        """Cross a boundary that goes on without this replica."""
        with self.changed:
            self.member = protocol.left(self.member)
        self.check_leaving()
        raise AssertionError("a leaver stayed")

    def hear_broken(self, generation: Generation, reason: str) -> None:
        """Take note that a collective of ``generation`` failed here."""
        with self.changed:
            self.member, tasks = protocol.on_broken(self.member, generation, reason)
            if generation in self._groups:
                self._groups.pop(generation).abandon(reason)
            self._do(tasks)

    def group(self, order: Order) -> Group:
        """Return the connected group of an order that is being entered.

        Raises:
            GroupBroken: it was given up meanwhile.
        """
        with self.changed:
            if order.generation not in self._groups:
                raise GroupBroken(order.generation, "it was given up")
            return self._groups[order.generation]

    def enter(self, order: Order) -> None:
        """Be in ``order``.

        Raises:
            GroupBroken: a newer Reform was accepted meanwhile.
        """
        with self.changed:
            self.check_sealed(order.generation)
            self.member = protocol.entered(self.member, order)
            self._entered = self._groups.pop(order.generation)

    def finish_call(self) -> None:
        """Count a ``steps()`` call as finished."""
        with self.changed:
            self.member = protocol.call_finished(self.member)
        self.tell(self._heartbeat())  # a joiner must not be sent where the members no longer are

    # --- main thread: waiting ---------------------------------------------------------------

    @contextmanager
    def waits(self, generation: Generation) -> Iterator[None]:
        """Tell in heartbeats that the main thread waits for the others, in this generation."""
        self.waiting = generation
        try:
            yield
        finally:
            self.waiting = NO_GENERATION

    def await_order(self) -> Order | None:
        """Wait, as a spare, for an order to enter; None if this call is to fall through."""
        with self.changed:
            while True:
                self._check_dismissed()
                if self._fall_through > self.member.calls:
                    return None
                order = self.member.reform or self.member.ordered
                if order is not None and self.member.built:
                    return order
                self.changed.wait(LOOK_S)

    def await_reform(self) -> Order | None:
        """Wait for a Reform to enter; None if this replica had finished and was released."""
        with self.changed:
            while True:
                self._check_dismissed()
                if self.released:
                    if self.is_finishing:
                        return None
                    # A leaver whose last exchange broke: the others have crossed without it.
                    self.member = protocol.left(self.member)
                    self._go()
                if self.member.reform is not None and self.member.built:
                    return self.member.reform
                self.changed.wait(LOOK_S)

    def await_ready(self, generation: Generation, look: Callable[[], None]) -> None:
        """Wait in a hold until this replica is ready to enter a newer generation.

        ``look`` is called about once a second.
        """
        with self.changed:
            while not protocol.ready_number(self.member):
                self.check(generation)
                look()
                self.changed.wait(LOOK_S)

    def await_release(self, limit_s: float | None) -> bool:
        """Wait until released, needed, or ``limit_s`` has passed; return whether released."""
        with self.changed:
            self.changed.wait_for(
                lambda: (
                    bool(self.released)
                    or self._dismissed is not None
                    or self.member.reform is not None
                    or self.member.broken
                ),
                limit_s,
            )
            return bool(self.released) or self._dismissed is not None

    def _check_dismissed(self) -> None:
        if self._dismissed is not None:
            self.member = protocol.dismissed(self.member)
            self._go()

    def _go(self) -> NoReturn:
        self._context.ending = ExitKind.LEFT
        raise SystemExit(EXIT_OK)

    # --- the link's thread ------------------------------------------------------------------

    def _heartbeat(self) -> Event:
        member = self.member
        return Progressed(
            replica=member.replica,
            generation=member.current,
            committed=member.committed if member.has_state else 0,
            calls=member.calls,
            waiting=self.waiting,
        )

    def _on_command(self, command: Command, incarnation: Incarnation) -> None:
        with self.changed:
            match command:
                case Prepare(order=order):
                    self.member, tasks = protocol.on_prepare(self.member, order, incarnation)
                case Switch(order=order):
                    self.member, tasks = protocol.on_switch(self.member, order, incarnation)
                case Reform(order=order):
                    self.member, tasks = protocol.on_reform(self.member, order, incarnation)
                case RollCall():
                    self.member, tasks = protocol.on_roll_call(
                        self.member, incarnation, spare=self._spare, finished=self.is_finishing
                    )
                case _:
                    self._remember(command)
                    tasks = ()
            self._do(tasks)
            self.changed.notify_all()

    def _remember(self, command: Command) -> None:
        """Remember what the main thread acts on when it comes by."""
        match command:
            case FallThrough(calls=calls):
                self._fall_through = max(self._fall_through, calls)
            case Dismiss(reason=reason):
                self._dismissed = reason
                for generation in [*self._builds, *self._groups]:
                    self._abandon(generation)
                if self._entered is not None:
                    self._entered.abandon(f"dismissed: {reason}")
            case Release(to=names):
                self.released = names
            case Publish(checkpoint=checkpoint):
                self._publishable.add(checkpoint)
            case Stop():
                self.member = protocol.told_to_stop(self.member)
            case _:
                pass  # the agent's

    def _do(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            match task:
                case Build(order=order):
                    self._start_build(order)
                case Abandon(generation=generation):
                    self._abandon(generation)
                case Prepared() | Refused() | Broken() | Registered():
                    self.tell(task)

    def _abandon(self, generation: Generation) -> None:
        reason = f"generation {generation} was given up"
        if generation in self._builds:
            self._builds.pop(generation).set(reason)
        if generation in self._groups:
            self._groups.pop(generation).abandon(reason)
        if self._entered is not None and self._entered.generation == generation:
            self._entered.abandon(reason)

    # --- builder threads --------------------------------------------------------------------

    def _start_build(self, order: Order) -> None:
        abort = Abort()
        self._builds[order.generation] = abort
        threading.Thread(
            target=self._build, args=(order, abort), name=f"build-g{order.generation}", daemon=True
        ).start()

    def _build(self, order: Order, abort: Abort) -> None:
        """Connect the members of ``order``; runs on a thread of its own."""
        generation = order.generation
        try:
            probe.at("build", self.member.committed)
            group = GroupBuild(
                generation=generation,
                seats=[(seat.replica, seat.endpoint) for seat in order.members],
                replica=self.member.replica,
                host=order.host,
                server=self._server,
                layout=self._layout,
                abort=abort,
                window_cache=self._window_cache,
                window_size=self._window_size_for(order),
            ).run()
            probe.at("prepared", self.member.committed)
        except Exception as error:  # a thread boundary: silence would cost the others a deadline
            reason = error.reason if isinstance(error, GroupBroken) else str(error)
            self._after_build(generation, None, reason)
        else:
            self._after_build(generation, group, "")

    def _after_build(self, generation: Generation, group: Group | None, reason: str) -> None:
        with self.changed:
            self._builds.pop(generation, None)
            awaited = protocol.entering(self.member)
            if group is None:
                self.member, tasks = protocol.on_build_failed(self.member, generation, reason)
            elif awaited is None or awaited.generation != generation:
                group.abandon("no longer wanted")
                return
            else:
                self._groups[generation] = group
                self.member, tasks = protocol.on_built(self.member, generation)
            self._do(tasks)
            self.changed.notify_all()
