"""Protocol runtime: one worker's side of the protocol between its threads.

Owns the ``Member`` value and its lock: commands of the coordinator change it on the link's thread,
results of builds on builder threads, votes and commits on the main thread, all through
``_become``.  Also the main thread's waiting for news.  Must not know tensors, steps or state; what
a command means is decided in ``core.membership.member``.

    link's thread      commands -> Member; starts builds; abandons groups (wakes the main thread)
    builder threads    one per generation: connect, then tell Prepared, Refused or Broken
    main thread        waits here, with the lock free, until there is something to do
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from pliant.core import commands, events
from pliant.core.commands import Command
from pliant.core.errors import EXIT_OK
from pliant.core.events import Event, ExitKind, Spare
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Abandon, Build, Member, Outcome
from pliant.core.membership.resolve import Resolution
from pliant.core.values import (
    NO_GENERATION,
    NO_INCARNATION,
    NO_LINEAGE,
    Generation,
    Incarnation,
    Order,
    ReplicaId,
)
from pliant.engine.comm.communicator import GroupBroken, WindowSize
from pliant.engine.comm.group import Group
from pliant.engine.member.followers import NO_FOLLOWERS, Followers
from pliant.engine.member.group_builds import GroupBuilds
from pliant.engine.reduce.buckets import Layout
from pliant.engine.worker.bootstrap import WorkerContext
from pliant.wire.messages import WorkerNote

LOOK_S = 1.0
"""Between two looks at the world of a waiting main thread, in seconds; news wake it at once."""


class ProtocolRuntime:
    """See the module's text; one per process.

    Methods of the main thread raise SystemExit once this replica is dismissed or has left;
    ``vote``, ``commit``, ``resolve``, ``receive``, ``enter`` and ``check`` raise GroupBroken once
    the generation is sealed (R13).
    """

    def __init__(
        self,
        context: WorkerContext,
        layout: Layout,
        window_size_for: Callable[[Order], WindowSize],
        followers: Followers = NO_FOLLOWERS,
    ) -> None:
        """``window_size_for``: how much memory this replica needs in its window as a member."""
        self._context = context
        self._followers = followers
        self._groups = GroupBuilds(
            context.replica,
            context.assignment.address,
            layout,
            window_size_for,
            on_built=self._after_build,
            committed=lambda: self._member.committed,
            tls=context.tls,
            followers=followers,
            exchange=context.assignment.work.exchange,
        )
        self._moved_by = ""
        """By what gradients on an accelerator travelled last; empty: through the host."""
        self.endpoint = self._groups.endpoint
        """Where this worker is reached while a generation is met."""
        self.released: tuple[ReplicaId, ...] = ()
        """Who was released together with this replica, who leads then first; empty before."""
        self._fall_through = 0
        self._calls_before = 0
        """Finished ``steps()`` calls when the script last came to one."""
        self._is_to_look = False
        self._asked = self.looked = (NO_INCARNATION, 0)
        self._spare: Spare | None = None
        self._publishable: set[str] = set()
        self.asked_after = -1
        """Someone wants a checkpoint of more committed steps than this; -1: nobody does."""

        self.is_register_gone = False
        """Whether only the lease tells by now whether a checkpoint may be published."""

        self._dismissed: str | None = None
        self._waiting = NO_GENERATION
        """The generation in a collective of which the main thread waits for the others."""
        self._slow = 0
        self._is_finishing = False
        """The script has said Finished."""
        self._changed = threading.Condition()
        """The lock of everything here; notified when something came from outside."""
        self._member = Member(replica=context.replica)
        context.link.attach(self._on_command, self._heartbeat)

    @property
    def member(self) -> Member:
        """The protocol's value, as of now."""
        return self._member

    def tell(self, message: Event | WorkerNote) -> None:
        """Send an event to the coordinator, or a fact for people; never blocks."""
        if isinstance(message, Spare):
            self._spare = message
        self._context.link.send(message)

    def tell_busy(self, max_s: float) -> None:
        """Tell that no step will end for a while."""
        self.tell(events.Busy(replica=self._member.replica, max_s=max_s))

    def say_slow(self, tenths: int) -> None:
        """Tell in heartbeats how many times as long as the others this replica takes."""
        self._slow = tenths

    def await_leave(self, checkpoint: str, limit_s: float) -> bool:
        """Wait for leave to publish a checkpoint; from any thread."""
        with self._changed:
            return self._changed.wait_for(lambda: checkpoint in self._publishable, limit_s)

    # --- the protocol's value -------------------------------------------------------------

    def _become(self, outcome: Outcome) -> Member:
        """Replace the value and do what that causes; the lock is held.  Return the new value."""
        self._member, tasks = outcome
        for task in tasks:
            match task:
                case Build(order=order):
                    self._groups.start(order)
                case Abandon(generation=generation):
                    self._groups.abandon(generation)
                case _:
                    self.tell(task)
        return self._member

    def vote(self, generation: Generation, step: int) -> Member:
        """Vote for ``step``, whose result is complete; return what the metadata is to say (R14)."""
        with self._changed:
            self._check_sealed(generation)
            return self._become((protocol.voted(self._member, step), ()))

    def commit(self, generation: Generation) -> Member:
        """Commit the step voted for: its metadata exchange is complete."""
        with self._changed:
            self._check_sealed(generation)
            return self._become((protocol.committed(self._member, generation), ()))

    def resolve(self, order: Order, resolution: Resolution, rank: int) -> None:
        """Take this member's part of what the members of ``order`` concluded."""
        with self._changed:
            self._check_sealed(order.generation)
            self._become((protocol.resolved(self._member, resolution, rank), ()))

    def receive(self, order: Order, resolution: Resolution) -> None:
        """Hold the state that was received, or loaded."""
        with self._changed:
            self._check_sealed(order.generation)
            self._become((protocol.received(self._member, resolution), ()))

    def enter(self, order: Order) -> None:
        """Be in ``order``."""
        with self._changed:
            self._check_sealed(order.generation)
            self._become((protocol.entered(self._member, order), ()))
            self._groups.enter(order)

    def break_group(self, generation: Generation, reason: str) -> None:
        """Take note that a collective of ``generation`` failed here."""
        with self._changed:
            outcome = protocol.on_broken(self._member, generation, reason)
            self._groups.break_connected(generation, reason)
            self._become(outcome)

    def leave(self) -> NoReturn:
        """Cross a boundary that goes on without this replica."""
        with self._changed:
            self._become((protocol.left(self._member), ()))
        self.check_leaving()
        raise AssertionError("a leaver stayed")

    def arrive(self) -> None:
        """Come to a ``steps()`` call; those before it are finished for others, too, from here on.

        Not before: behind the last one a replica without state would run what is meant for the
        trained model.
        """
        if self._calls_before != self._member.calls:
            self._calls_before = self._member.calls
            self.tell(self._heartbeat())  # a joiner must not be sent where nobody is any more

    def finish_call(self) -> None:
        """Count a ``steps()`` call as finished."""
        with self._changed:
            self._become((protocol.call_finished(self._member), ()))

    def finish(
        self, *, has_left_loop: bool, lacks_tail: bool = False, lacks_end: bool = False
    ) -> None:
        """Say Finished; a coordinator that comes later learns it from the registration."""
        with self._changed:
            me = self._member
            lineage = NO_LINEAGE if has_left_loop else me.lineage
            self.tell(
                events.Finished(
                    replica=me.replica,
                    committed=me.committed,
                    lineage=lineage,
                    lacks_tail=lacks_tail,
                    lacks_end=lacks_end,
                )
            )
            self._is_finishing = True

    # --- main thread: what holds now ------------------------------------------------------

    def check(self, generation: Generation) -> Member:
        """Return the value; GroupBroken also if the generation has failed here."""
        with self._changed:
            self._check_dismissed()
            self._check_sealed(generation)
            if self._member.broken:
                raise GroupBroken(generation, "it failed before")
            return self._member

    def _check_sealed(self, generation: Generation) -> None:
        """Make sure that a completion in ``generation`` may still be looked at (R13)."""
        if protocol.is_sealed(self._member, generation):
            raise GroupBroken(generation, f"sealed by generation {self._member.sealed}")

    def check_leaving(self) -> None:
        """Stay until Release, then leave, if a boundary or a Dismiss says so."""
        with self._changed:
            self._check_dismissed()
            if not self._member.leaving:
                return
            while not self._may_go():
                self._changed.wait(LOOK_S)
        self._go()

    def group(self, order: Order) -> Group:
        """Return the group to enter; GroupBroken if it was given up meanwhile."""
        with self._changed:
            return self._groups.connected(order)

    # --- main thread: waiting ---------------------------------------------------------------

    @contextmanager
    def waits(self, generation: Generation) -> Iterator[None]:
        """Tell in heartbeats that the main thread waits for the others, in this generation."""
        self._waiting = generation
        try:
            yield
        finally:
            self._waiting = NO_GENERATION

    def await_news(self, limit_s: float) -> None:
        """Wait until something came from outside, or ``limit_s`` has passed."""
        with self._changed:
            self._changed.wait(limit_s)

    def await_order(self) -> Order | None:
        """Wait, as a spare, for an order to enter.

        None if this call is to fall through, or if the checkpoints are to be looked at anew.
        """
        with self._changed:
            while True:
                self._check_dismissed()
                if self._is_to_look or self._fall_through > self._member.calls:
                    return None
                order = self._member.reform or self._member.ordered
                if order is not None and self._member.built:
                    return order
                self._changed.wait(LOOK_S)

    def is_to_look(self) -> bool:
        """Whether the coordinator wants to know anew which checkpoints there are; once each."""
        with self._changed:
            was, self._is_to_look = self._is_to_look, False
            self.looked = self._asked
            return was

    def await_reform(self) -> Order | None:
        """Wait for a Reform to enter; None if this replica had finished and was released."""
        with self._changed:
            while True:
                self._check_dismissed()
                if self.released:
                    if self._is_finishing:
                        return None
                    # A leaver whose last exchange broke: the others have crossed without it.
                    self._become((protocol.left(self._member), ()))
                    self._go()
                if self._member.reform is not None and self._member.built:
                    return self._member.reform
                self._changed.wait(LOOK_S)

    def await_ready(self, generation: Generation, look: Callable[[], None]) -> None:
        """Wait in a hold until ready to enter a newer one; ``look`` is called about each second."""
        with self._changed:
            while not protocol.ready_number(self._member):
                self.check(generation)
                look()
                self._changed.wait(LOOK_S)

    def await_release(self, limit_s: float | None) -> bool:
        """Wait until released, needed, or ``limit_s`` has passed; return whether released."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._may_go() or self._member.reform is not None or self._member.broken,
                limit_s,
            )
            return self._may_go()

    def _may_go(self) -> bool:
        return bool(self.released) or self._dismissed is not None

    def _check_dismissed(self) -> None:
        if self._dismissed is not None:
            self._become((protocol.dismissed(self._member), ()))
            self._go()

    def _go(self) -> NoReturn:
        self._context.end_as(ExitKind.LEFT)
        raise SystemExit(EXIT_OK)

    # --- the link's thread ------------------------------------------------------------------

    def _heartbeat(self) -> Event:
        member = self._member
        waiting, held_up_by = self._followers.look_around(self._waiting, member.current)
        return events.Progressed(
            replica=member.replica,
            generation=member.current,
            committed=member.committed if member.has_state else 0,
            calls=self._calls_before,
            waiting=waiting,
            held_up_by=held_up_by,
            slow=self._slow,
        )

    def _on_command(self, command: Command, incarnation: Incarnation) -> None:
        with self._changed:
            self._become(self._outcome(command, incarnation))
            self._changed.notify_all()

    def _outcome(self, command: Command, incarnation: Incarnation) -> Outcome:
        """Return what a command makes of the value; the rest is for the main thread to act on."""
        member = self._member
        match command:
            case commands.Prepare(order=order, secret=secret):
                self._groups.learn(order.generation, secret)
                return protocol.on_prepare(member, order, incarnation)
            case commands.Switch(order=order):
                return protocol.on_switch(member, order, incarnation)
            case commands.Reform(order=order, secret=secret):
                self._groups.learn(order.generation, secret)
                return protocol.on_reform(member, order, incarnation)
            case commands.RollCall():
                return protocol.on_roll_call(
                    member, incarnation, spare=self._spare, finished=self._is_finishing
                )
            case commands.Stop():
                return protocol.told_to_stop(member), ()
            case commands.SaveNow(after=after):
                self.asked_after = max(self.asked_after, after)
            case commands.SkipCalls(calls=calls):
                self._fall_through = max(self._fall_through, calls)
            case commands.ListCheckpoints(number=number):
                self._is_to_look, self._asked = True, (incarnation, number)
            case commands.Dismiss(reason=reason):
                self._dismissed = reason
                self._groups.abandon_all(f"dismissed: {reason}")
            case commands.Release(to=names):
                self.released = self.released or names  # said again, it changes no leader
            case commands.Publish(checkpoint=checkpoint):
                self.is_register_gone |= command.is_register_gone
                self._publishable.add(checkpoint)
            case _:
                pass  # the agent's
        return member, ()

    # --- builder threads --------------------------------------------------------------------

    def _after_build(
        self, order: Order, group: Group | None, reason: str, unreached: tuple[ReplicaId, ...]
    ) -> None:
        generation = order.generation
        with self._changed:
            awaited = protocol.entering(self._member)
            is_late = awaited is None or awaited.generation != generation
            if group is not None and is_late:
                group.abandon("no longer wanted")
                self._groups.keep(order, None)
                return
            self._groups.keep(order, group)
            if group is not None and group.moved_by != self._moved_by:
                self._moved_by = group.moved_by
                if group.rank == 0:  # one for all
                    way = f"from device to device by {self._moved_by}" * bool(self._moved_by)
                    self._context.note(f"gradients travel {way or 'through the host'}")
            if group is None:
                self._become(protocol.on_build_failed(self._member, generation, reason, unreached))
            else:
                self._become(protocol.on_built(self._member, generation))
            self._changed.notify_all()
