"""Elastic: the membership of a worker that an agent started.

Owns the worker's half of a resize (DESIGN 5): it keeps the protocol's value, builds
and abandons groups in the background, and moves the main thread from one generation to the next.
What is decided, and when, is in ``core.member`` and ``core.recovery``; this module carries it out.
Must not know what is trained: it calls back (``Trainee``).

    link's thread      commands -> Member; starts builds; abandons groups (wakes the main thread)
    builder threads    one per generation: connect, then tell Prepared
    main thread        everything else, while the script is inside an engine call

    arrive --Spare--> wait --Switch--> enter --> steps: decide, settle --boundary--> enter ...
                        |                           |
                        +--FallThrough              +--GroupBroken--> recover: Reform --> enter
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch

from pliant.core import member as protocol
from pliant.core.errors import ConfigError, NoStateError, UsageError
from pliant.core.member import Abandon, Build, Member, Task
from pliant.core.recovery import Header, Resolution, resolve
from pliant.core.vocabulary import (
    NO_GENERATION,
    Broken,
    Busy,
    Command,
    Dismiss,
    Event,
    ExitKind,
    FallThrough,
    Finished,
    Generation,
    Incarnation,
    Order,
    Prepare,
    Prepared,
    Progressed,
    Reform,
    Refused,
    Release,
    ReplicaId,
    Spare,
    Stop,
    Switch,
    Switched,
)
from pliant.engine import probe
from pliant.engine.bootstrap import WorkerContext
from pliant.engine.codec import CodecError
from pliant.engine.groups import Abort, Group, GroupBroken, StoreServer
from pliant.engine.layout import Layout
from pliant.engine.membership import Formed, Shape, Trainee, Verdict, form
from pliant.engine.transfer import Stamp, TransferRefused, receive_state, send_state
from pliant.wire.notes import Committed, Logged, Noted, Planned

LOOK_S = 1.0
"""Between two looks at the world of a waiting main thread, in seconds; news wake it at once."""

LEFT_EARLY_S = 30.0
"""How long one replica that left the loop with ``break`` waits for the others to do the same."""

MAX_LAYOUT_CHARACTERS = 100_000
"""Longest description of a layout that a registration carries; a message has at most 1 MB."""

_HEADER_INTS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """What the members of a new generation learned of each other."""

    resolution: Resolution
    is_stopped: bool
    """A survivor knows that all have agreed to stop after the last committed step."""

    loops_differ: bool
    """Some survivors left the loop early and others did not."""


class Elastic:
    """See the module's text; one per process."""

    def __init__(
        self,
        context: WorkerContext,
        shape: Shape,
        trainee: Trainee,
        identity: tuple[tuple[str, str], ...],
    ) -> None:
        self._context = context
        self._shape = shape
        self._trainee = trainee
        self._identity = identity
        self._server = StoreServer(context.address)
        self._changed = threading.Condition()
        self._member = Member(replica=context.replica)
        self._builds: dict[Generation, Abort] = {}
        self._groups: dict[Generation, Group] = {}
        self._formed: Formed | None = None
        self._crossing: Order | None = None
        self._handover: Callable[[], None] | None = None
        self._fall_through = 0
        self._dismissed: str | None = None
        self._is_released = False
        self._is_stopped = False
        self._has_left_loop = False
        self._is_finishing = False
        self._waiting = NO_GENERATION
        context.link.attach(self._on_command, self._heartbeat)

    @property
    def member(self) -> Member:
        """The protocol's state, as of now."""
        return self._member

    @property
    def leads(self) -> bool:
        """Whether it is the first member of the generation it is in."""
        return self._formed is not None and self._formed.group.rank == 0

    # --- membership.Membership --------------------------------------------------------

    def arrive(self) -> bool:
        """Be a member that holds state; False if the job has finished this ``steps()`` call.

        A new replica says Spare here and waits, for as long as the coordinator has no use for it.
        """
        self._check_leaving()
        while not self._member.has_state:
            self._tell(self._spare())
            order = self._await_order()
            if order is None:
                with self._changed:
                    self._member = replace(self._member, calls=self._member.calls + 1)
                return False
            try:
                self._enter(order)
            except GroupBroken as broken:
                self._hear_broken(order.generation, broken.reason)
                if self._member.has_state:
                    self.recover(broken.reason)
        return True

    def formed(self) -> Formed:
        """Return the generation to compute in; a hold ends first."""
        while True:
            self._check_leaving()
            formed = self._current()
            if not formed.order.hold:
                return formed
            self._hold(formed)

    def decide(self, step: int, *, wants_stop: bool) -> Verdict:
        """Vote, exchange metadata, commit."""
        formed = self._current()
        generation = formed.order.generation
        with self._changed:
            self._check_sealed(generation)
            self._member = protocol.voted(self._member, step)
            numbers = self._metadata(wants_stop=wants_stop)
        probe.at("vote", step)
        rows = formed.group.all_gather(numbers).tolist()
        with self._changed:
            self._check_sealed(generation)
            self._member = protocol.committed(self._member, generation)
            self._learn(rows)
        return Verdict(generation=generation, is_leader=formed.group.rank == 0)

    def recover(self, reason: str) -> None:
        """Wait for the Reform that follows a fault, and enter it; until one succeeds."""
        formed = self._formed
        if formed is not None:
            self._hear_broken(formed.order.generation, reason)
        while True:
            order = self._await_reform()
            if order is None:
                return
            probe.at("reform", self._member.committed)
            try:
                self._enter(order)
            except GroupBroken as broken:
                self._hear_broken(order.generation, broken.reason)
            else:
                return

    def settle(self, *, is_over: bool) -> bool:
        """Between steps: hand over state, serve a Reform, cross a boundary."""
        if is_over:
            with self._changed:
                self._member = replace(self._member, calls=self._member.calls + 1)
            return self._is_stopped
        while True:
            self._check_leaving()
            try:
                self._current()
                self._hand_over()
                if self._is_stopped:
                    return True
                if self._crossing is not None:
                    self._cross(self._crossing)
                self.formed()
            except GroupBroken as broken:
                self.recover(broken.reason)
            else:
                return False

    def finish(self, *, has_left_loop: bool) -> None:
        """Say Finished and stay until Release: others may need this replica's state."""
        self._check_leaving()
        if not self._member.has_state and not self._member.calls:
            raise UsageError(
                "the session ended before its first step; train inside it with "
                "`for step in session.steps(total):`"
            )
        self._has_left_loop = has_left_loop
        self._tell(Finished(replica=self._member.replica, committed=self._member.committed))
        self._is_finishing = True
        while not self._await_release(LEFT_EARLY_S if has_left_loop else None):
            self.recover("this replica left the loop over steps early")
        self._context.ending = ExitKind.FINISHED

    def tell_busy(self, max_s: float) -> None:
        """Pass on that no step will end for a while."""
        self._tell(Busy(replica=self._member.replica, max_s=max_s))

    # --- entering a generation ----------------------------------------------------------

    def _enter(self, order: Order) -> None:
        """Meet the members of ``order``, agree on the state, hand it over, be in.

        Raises:
            GroupBroken: somebody failed, or a newer Reform has come.
        """
        with self._changed:
            if order.generation not in self._groups:
                raise GroupBroken(order.generation, "it was given up")
            group = self._groups[order.generation]
        meeting = self._meet(order, group)
        resolution = meeting.resolution
        self._is_stopped = self._is_stopped or meeting.is_stopped
        if meeting.loops_differ:
            raise UsageError(
                "one replica left the loop over session.steps() early and another did not; call "
                "step.stop(), which all replicas obey after the same step"
            )
        self._act_on(order, group, resolution)
        with self._changed:
            self._check_sealed(order.generation)
            self._member = protocol.entered(self._member, order)
            del self._groups[order.generation]
            previous = None if self._formed is None else self._formed.reduction
            self._formed = form(
                order, group, self._shape, replica=self._member.replica, previous=previous
            )
            self._crossing = None
            committed = self._member.committed
        self._tell(
            Switched(replica=self._member.replica, generation=order.generation, step=committed)
        )

    def _meet(self, order: Order, group: Group) -> _Meeting:
        """Exchange headers and take this member's part of the resolution."""
        header = protocol.header(self._member)
        flags = [int(self._is_stopped), int(self._has_left_loop)]
        row = torch.tensor([*header.to_ints(), *flags], dtype=torch.int64)
        self._waiting = order.generation
        try:
            rows = group.all_gather(row).tolist()
        finally:
            self._waiting = NO_GENERATION
        headers = [Header.from_ints(row[:_HEADER_INTS]) for row in rows]
        origin = None if order.origin is None else order.replicas.index(order.origin)
        try:
            resolution = resolve(headers, origin)
        except NoStateError as error:
            raise GroupBroken(order.generation, str(error)) from error
        with self._changed:
            self._check_sealed(order.generation)
            self._member = protocol.resolved(self._member, resolution, group.rank)
        settled = [rank for rank in resolution.survivors if rank not in resolution.commits]
        return _Meeting(
            resolution=resolution,
            is_stopped=any(rows[rank][_HEADER_INTS] for rank in resolution.survivors),
            loops_differ=len({rows[rank][_HEADER_INTS + 1] for rank in settled}) > 1,
        )

    def _act_on(self, order: Order, group: Group, resolution: Resolution) -> None:
        """Commit or redo, then give or take state."""
        rank = group.rank
        if rank in resolution.commits:
            self._trainee.commit_voted(self._late_verdict(order, resolution))
        elif self._member.reform is not None:
            self._trainee.give_up_attempt(buffers_may_be_written=True)
        self._handover = None
        if not resolution.joiners:
            return
        stamp = Stamp(
            generation=order.generation, step=resolution.committed, lineage=resolution.lineage
        )
        if rank in resolution.joiners:
            self._receive(order, group, resolution, stamp)
            return

        def hand_over() -> None:
            self._send(order, group, resolution, stamp)

        if rank in resolution.commits:
            self._handover = hand_over  # its tail comes first: extra_state moves there
        else:
            hand_over()

    def _send(self, order: Order, group: Group, resolution: Resolution, stamp: Stamp) -> None:
        probe.at("transfer", resolution.committed)
        try:
            send_state(
                group,
                stamp=stamp,
                survivors=resolution.survivors,
                joiners=resolution.joiners,
                value=self._trainee.state_to_send(),
            )
        except CodecError as error:  # the script put something into its state since it began
            for rank in resolution.joiners:
                self._refuse(order, order.replicas[rank], f"the state cannot be sent: {error}")
            raise GroupBroken(order.generation, str(error)) from error

    def _receive(self, order: Order, group: Group, resolution: Resolution, stamp: Stamp) -> None:
        probe.at("transfer", resolution.committed)
        try:
            state = receive_state(
                group,
                stamp=stamp,
                survivors=resolution.survivors,
                joiners=resolution.joiners,
                allocate=self._trainee.allocate,
            )
            self._trainee.take_state(state)
        except (TransferRefused, ConfigError) as error:
            self._refuse(order, self._member.replica, str(error))
            raise GroupBroken(order.generation, str(error)) from error
        with self._changed:
            self._check_sealed(order.generation)
            self._member = protocol.received(self._member, resolution)

    def _refuse(self, order: Order, joiner: ReplicaId, reason: str) -> None:
        self._tell(Refused(replica=joiner, generation=order.generation, reason=reason, joiner=True))

    def _late_verdict(self, order: Order, resolution: Resolution) -> Verdict:
        """Say under what a step is recorded that is committed after its generation broke."""
        formed = self._formed
        survivors = {order.replicas[rank] for rank in resolution.survivors}
        leader = (
            next((r for r in formed.order.replicas if r in survivors), None) if formed else None
        )
        return Verdict(
            generation=resolution.made_by, is_leader=leader in (None, self._member.replica)
        )

    def _hand_over(self) -> None:
        """Send the state that had to wait for this replica's tail."""
        handover, self._handover = self._handover, None
        if handover is not None:
            handover()

    def _cross(self, order: Order) -> None:
        """Enter the generation that all members named, or leave if it goes on without this one."""
        probe.at("boundary", self._member.committed)
        self._crossing = None
        old = self._current().group
        if self._member.replica not in order.replicas:
            with self._changed:
                self._member = protocol.left(self._member)
            self._check_leaving()
        self._enter(order)
        old.retire()

    def _hold(self, formed: Formed) -> None:
        """Wait below the minimum for a Switch, then agree on the boundary by a null round."""
        with self._changed:
            while not protocol.ready_number(self._member):
                self._check_current(formed)
                self._changed.wait(LOOK_S)
            numbers = self._metadata(wants_stop=False)
        rows = formed.group.all_gather(numbers).tolist()
        with self._changed:
            self._check_current(formed)
            self._learn(rows)
        if self._crossing is not None:
            self._cross(self._crossing)

    # --- waiting --------------------------------------------------------------------------

    def _await_order(self) -> Order | None:
        """Wait, as a spare, for an order to enter; None if this call is to fall through."""
        with self._changed:
            while True:
                self._check_dismissed()
                if self._fall_through > self._member.calls:
                    return None
                order = self._member.reform or self._member.ordered
                if order is not None and self._member.built:
                    return order
                self._changed.wait(LOOK_S)

    def _await_reform(self) -> Order | None:
        """Wait for a Reform to enter; None if this replica was released instead."""
        with self._changed:
            while True:
                self._check_dismissed()
                if self._is_released:
                    if self._is_finishing:
                        return None
                    # A leaver whose last exchange broke: the others have crossed without it.
                    self._member = protocol.left(self._member)
                    self._go()
                if self._member.reform is not None and self._member.built:
                    return self._member.reform
                self._changed.wait(LOOK_S)

    def _await_release(self, limit_s: float | None) -> bool:
        """Wait until released, needed, or ``limit_s`` has passed; return whether released."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_released
                    or self._dismissed is not None
                    or self._member.reform is not None
                    or self._member.broken
                ),
                limit_s,
            )
            return self._is_released or self._dismissed is not None

    def _check_leaving(self) -> None:
        """Stay until Release, then leave, if a boundary or a Dismiss says so."""
        with self._changed:
            self._check_dismissed()
            if not self._member.leaving:
                return
            while not (self._is_released or self._dismissed is not None):
                self._changed.wait(LOOK_S)
        self._go()

    def _check_dismissed(self) -> None:
        if self._dismissed is not None:
            self._member = replace(self._member, leaving=True)
            self._go()

    def _go(self) -> NoReturn:
        self._context.ending = ExitKind.LEFT
        raise SystemExit(0)

    # --- the protocol's value; the lock is held from here on ------------------------------

    def _current(self) -> Formed:
        """Return the generation this replica is in.

        Raises:
            GroupBroken: it has failed or is sealed.
        """
        formed = self._formed
        if formed is None:
            raise GroupBroken(0, "no generation was entered")
        self._check_current(formed)
        return formed

    def _check_current(self, formed: Formed) -> None:
        self._check_dismissed()
        self._check_sealed(formed.order.generation)
        if self._member.broken:
            raise GroupBroken(formed.order.generation, "it failed before")

    def _check_sealed(self, generation: Generation) -> None:
        if protocol.is_sealed(self._member, generation):
            raise GroupBroken(generation, f"sealed by generation {self._member.sealed}")

    def _metadata(self, *, wants_stop: bool) -> torch.Tensor:
        number = protocol.ready_number(self._member)
        return torch.tensor([number, int(wants_stop or self._member.stopping)], dtype=torch.int64)

    def _learn(self, rows: Sequence[Sequence[int]]) -> None:
        """Take what the members said beside their votes."""
        self._is_stopped = self._is_stopped or any(row[1] for row in rows)
        number = protocol.boundary(self._member, [Generation(row[0]) for row in rows])
        self._crossing = self._member.ordered if number else None

    def _hear_broken(self, generation: Generation, reason: str) -> None:
        with self._changed:
            self._member, tasks = protocol.on_broken(self._member, generation, reason)
            if generation in self._groups:
                self._groups.pop(generation).abandon(reason)
            self._do(tasks)

    def _spare(self) -> Spare:
        return Spare(
            replica=self._member.replica,
            calls=self._member.calls,
            num_slots=self._shape.num_slots,
            layout=describe(self._shape.layout),
            endpoint=self._server.endpoint,
            identity=self._identity,
        )

    def _tell(self, event: Event) -> None:
        self._context.link.send(event)

    # --- the link's thread ------------------------------------------------------------------

    def _heartbeat(self) -> Event:
        member = self._member
        return Progressed(
            replica=member.replica,
            generation=member.current,
            committed=member.committed if member.has_state else 0,
            calls=member.calls,
            waiting=self._waiting,
        )

    def _on_command(self, command: Command, incarnation: Incarnation) -> None:
        with self._changed:
            match command:
                case Prepare(order=order):
                    self._member, tasks = protocol.on_prepare(self._member, order, incarnation)
                case Switch(order=order):
                    self._member, tasks = protocol.on_switch(self._member, order, incarnation)
                case Reform(order=order):
                    self._member, tasks = protocol.on_reform(self._member, order, incarnation)
                case _:
                    self._take(command)
                    tasks = ()
            self._do(tasks)
            self._changed.notify_all()

    def _take(self, command: Command) -> None:
        """Remember what the main thread acts on when it comes by."""
        match command:
            case FallThrough(calls=calls):
                self._fall_through = max(self._fall_through, calls)
            case Dismiss(reason=reason):
                self._dismissed = reason
                if self._formed is not None:
                    self._formed.group.abandon(f"dismissed: {reason}")
            case Release():
                self._is_released = True
            case Stop():
                self._member = replace(self._member, stopping=True)
            case _:
                pass  # the agent's

    def _do(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            match task:
                case Build(order=order):
                    self._start_build(order)
                case Abandon(generation=generation):
                    self._abandon(generation)
                case Prepared() | Refused() | Broken():
                    self._tell(task)

    def _abandon(self, generation: Generation) -> None:
        reason = f"generation {generation} was given up"
        if generation in self._builds:
            self._builds.pop(generation).set(reason)
        if generation in self._groups:
            self._groups.pop(generation).abandon(reason)
        if self._formed is not None and self._formed.order.generation == generation:
            self._formed.group.abandon(reason)

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
            probe.at("build", self._member.committed)
            group = Group.build(
                generation=generation,
                seats=[(seat.replica, seat.endpoint) for seat in order.members],
                replica=self._member.replica,
                host=order.host,
                server=self._server,
                layout=self._shape.layout,
                abort=abort,
            )
            probe.at("prepared", self._member.committed)
        except Exception as error:  # a thread boundary: silence would cost the others a deadline
            reason = error.reason if isinstance(error, GroupBroken) else str(error)
            self._after_build(generation, None, reason)
        else:
            self._after_build(generation, group, "")

    def _after_build(self, generation: Generation, group: Group | None, reason: str) -> None:
        with self._changed:
            self._builds.pop(generation, None)
            awaited = protocol.entering(self._member)
            if group is None:
                self._member, tasks = protocol.on_build_failed(self._member, generation, reason)
            elif awaited is None or awaited.generation != generation:
                group.abandon("no longer wanted")
                return
            else:
                self._groups[generation] = group
                self._member, tasks = protocol.on_built(self._member, generation)
            self._do(tasks)
            self._changed.notify_all()


def describe(layout: Layout) -> str:
    """Return a layout as the coordinator compares it: a line per parameter, then the digest.

    The first line that differs is what the one who is refused gets to read.
    """
    lines = [
        f"{name} {dtype.removeprefix('torch.')} {list(shape)}"
        for name, dtype, shape, _ in layout.parameters
    ]
    text = "\n".join(lines)
    if len(text) > MAX_LAYOUT_CHARACTERS:
        return f"layout {layout.digest}"
    return f"{text}\nlayout {layout.digest}"


class WireReporter:
    """Sends what a session has to say to the agent; never blocks."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def planned(self, planned: Planned) -> None:
        """Pass on what a step consists of."""
        self._context.link.send(planned)

    def committed(self, committed: Committed) -> None:
        """Pass on a commit; it may wait for company."""
        self._context.link.send(committed, urgent=False)

    def logged(self, step: int, values: Mapping[str, float]) -> None:
        """Pass on what the script logged."""
        note = Logged(replica=self._context.replica, step=step, values=dict(values))
        self._context.link.send(note, urgent=False)

    def noted(self, text: str) -> None:
        """Pass on one sentence for people."""
        self._context.link.send(Noted(replica=self._context.replica, text=text), urgent=False)
