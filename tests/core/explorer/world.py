"""Workers, channels, collectives, faults and the real coordinator's core as one transition system.

``World`` is a value: hashable, compared by content.  ``Universe.actions(world)`` lists everything
that can happen next; each action yields the next world.  What must never happen is checked where
it would happen, and raises ``Violation``.

The result of a step is modelled as the generation that computed it, as fast reduction makes it
differ between generations: two makers of one step, in one lineage, are two results.

A coordinator may die between any two of its lines: before it hears something, or after it has
written the register and sent some of its commands; the others may then still arrive.  It may also
stay alive, and be heard by the agent, while the next one has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, assert_never

from tests.core.explorer.process import Pool, Post, Process

from pliant.core.commands import (
    Command,
    Dismiss,
    EndJob,
    EndReplica,
    FallThrough,
    Prepare,
    Publish,
    Reform,
    Release,
    RollCall,
    StartReplica,
    Stop,
    Switch,
)
from pliant.core.errors import NoStateError
from pliant.core.events import (
    Broken,
    DrainRequested,
    Event,
    Exited,
    ExitKind,
    Finished,
    NodeJoined,
    Prepared,
    Progressed,
    PublishAsked,
    Refused,
    Registered,
    Saved,
    Spare,
    Switched,
    Ticked,
    Unrestorable,
)
from pliant.core.membership import member as protocol
from pliant.core.membership.member import Abandon, Build, Member
from pliant.core.membership.resolve import Resolution, resolve
from pliant.core.values import (
    NO_CHECKPOINT,
    NO_GENERATION,
    Found,
    Generation,
    Incarnation,
    Lineage,
    NodeId,
    Order,
    Register,
    ReplicaId,
)

Action = tuple[tuple[object, ...], Callable[[], "World"]]
"""What happens, as words and values for ``told``, and what computes the world after it."""

INTERRUPTIBLE = frozenset(
    {"spare", "computing", "voted", "header", "transfer", "loading", "held", "broken", "finished"}
)
"""Phases in which a Reform that is built is entered."""
PARTING = frozenset({"leaver", "finished", "broken", "spare"})
"""Phases in which a replica that was released exits."""


class Violation(AssertionError):  # noqa: N818 - it is a finding, not an error
    """An invariant of DESIGN 5.6 does not hold."""


class Faults(NamedTuple):
    """What may still go wrong."""

    kills: int = 0
    hangs: int = 0
    breaks: int = 0
    """Collectives that fail although nobody died."""

    ticks: int = 0
    """Deadlines that pass although messages are on their way."""

    repeats: int = 0
    """Messages that arrive twice."""

    restarts: int = 0
    """Coordinators that die between two events; another takes over."""

    crashes: int = 0
    """Coordinators that die after writing the register; what was not sent may arrive late."""

    overlaps: int = 0
    """Coordinators that take over while the one before them goes on."""

    damages: int = 0
    """Checkpoints that turn out not to be whole."""


NO_FAULTS = Faults()


class History(NamedTuple):
    """What was committed in one lineage."""

    lineage: int
    start: int
    makers: tuple[int, ...] = ()
    """Which generation made step ``start``, and those after it."""

    @property
    def end(self) -> int:
        """Committed steps, those before it included."""
        return self.start + len(self.makers)


class World(NamedTuple):
    """One state of everything."""

    coordinator: int
    processes: tuple[Process, ...]
    faults: Faults
    wishes: tuple[int, ...]
    """Events from people that are still to come, in this order."""

    now: int = 0
    history: tuple[History, ...] = ()
    """Ghost: which generation made each committed step of each lineage, whoever committed it."""

    register: int = -1
    """Number of the register that storage holds."""

    old: int = -1
    """Number of the state of a coordinator that does not know yet that another has begun, and to
    which the agent still speaks; -1: none."""

    unsent: tuple[int, ...] = ()
    """What a dead coordinator had written and not sent; it may arrive now, in order, or never."""

    storage: tuple[Found, ...] = ()
    """Published checkpoints."""

    damaged: frozenset[str] = frozenset()
    """Those of them that cannot be loaded."""

    saves: int = 0
    """Checkpoints that may still be written."""

    used: tuple[ReplicaId, ...] = ()
    """Names given to replicas so far."""

    expected: frozenset[ReplicaId] = frozenset()
    """Replicas that may be ended: drained, left behind, hung, or of a job that is over."""

    left_behind: frozenset[ReplicaId] = frozenset()
    """Leavers of a generation that was recorded: no Reform may contain them (R12)."""

    late: bool = False
    """A deadline passed although messages were on their way: the slow may be dropped."""

    ended: int | None = None


@dataclass
class Universe:
    """The fixed part: the core under test, bounds, and tables of values met so far."""

    decide: Callable[[Any, Event, float], tuple[Any, Register | None, tuple[Command, ...]]]
    """One step of the coordinator's core: state, event, now_s."""

    begin: Callable[[Register | None, float], tuple[Any, Register]]
    """The first moves of a coordinator: what storage holds, now_s."""

    next_deadline: Callable[[Any, float], float]
    """When, after now, silence next means something."""

    steps: int = 2
    call_ends: tuple[int, ...] = ()
    num_slots: int = 4
    node: NodeId = NodeId("n1")  # noqa: RUF009 - a string
    devices: int = 3
    min_replicas: int = 1
    max_replicas: int = 3
    is_eager: bool = True
    """Let what only its own worker can notice happen at once (partial-order reduction)."""

    is_prompt: bool = False
    """Let the coordinator hear everything at once; what it says may still be late."""

    may_stop: bool = False
    """Someone may ask the job to stop."""

    states: Pool[Any] = field(default_factory=Pool)
    members: Pool[Member] = field(default_factory=Pool)
    orders: Pool[Order] = field(default_factory=Pool)
    resolutions: Pool[Resolution] = field(default_factory=Pool)
    events: Pool[Event] = field(default_factory=Pool)
    commands: Pool[tuple[Command, Incarnation]] = field(default_factory=Pool)
    registers: Pool[Register] = field(default_factory=Pool)
    said: list[Command] = field(default_factory=list)
    """What the coordinator commanded since someone last cleared this; for telling traces."""

    _decided: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    _moved: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _needs: dict[tuple[Any, ...], frozenset[int]] = field(default_factory=dict)
    _tidy: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    # -- the coordinator ------------------------------------------------------------

    def hear(self, world: World, event: Event) -> World:
        """Let the coordinator take one event; write its register, then send its commands."""
        if world.old >= 0:
            return self._heard_by_old(world, event)
        world, commands = self._decide(world, event)
        return self._send_all(world, commands)

    def _send_all(self, world: World, commands: tuple[Command, ...]) -> World:
        if any(isinstance(command, EndJob) for command in commands):
            world = world._replace(expected=world.expected | set(world.used))
        incarnation = self._recorded(world).incarnation
        for command in commands:
            world = self._send(world, command, incarnation)
        return world

    def _decide(self, world: World, event: Event) -> tuple[World, tuple[Command, ...]]:
        """Let the coordinator take one event and write its register."""
        state, register, commands = self._answer(world.coordinator, event, world.now)
        world = world._replace(coordinator=state)
        return (world if register is None else self._write(world, register)), commands

    def _answer(
        self, state: int, event: Event, now: int
    ) -> tuple[int, Register | None, tuple[Command, ...]]:
        key = (state, self.events.put(event), now)
        if key not in self._decided:
            after, register, commands = self.decide(self.states[state], event, float(now))
            self._decided[key] = (self.states.put(after), register, commands)
        found: tuple[int, Register | None, tuple[Command, ...]] = self._decided[key]
        return found

    def _heard_by_old(self, world: World, event: Event) -> World:
        """Let the coordinator act that does not know of the next one; a write is a conflict."""
        state, register, commands = self._answer(world.old, event, world.now)
        if register is not None or any(isinstance(c, Publish) for c in commands):
            return self._met(world._replace(old=-1))
        incarnation = Incarnation(self._recorded(world).incarnation - 1)
        world = world._replace(old=state)
        if any(isinstance(command, EndJob) for command in commands):
            world = world._replace(expected=world.expected | set(world.used))
        for command in commands:
            world = self._send(world, command, incarnation)
        return world

    def take_over(self, world: World, *, is_old_alive: bool = False) -> World:
        """Let another coordinator begin; the agent comes to it, at once or later."""
        job, register = self.begin(self._recorded(world), float(world.now))
        old = world.coordinator if is_old_alive else -1
        world = world._replace(coordinator=self.states.put(job), old=old)
        world = self._write(world, register)
        return world if is_old_alive else self._met(world)

    def _met(self, world: World) -> World:
        """Bring the agent to the newest coordinator, with what it runs."""
        running = tuple(process.name for process in world.processes if process.alive)
        joined = NodeJoined(node=self.node, devices=self.devices, replicas=running)
        return self.hear(world, joined)

    def _recorded(self, world: World) -> Register:
        return self.registers[world.register]

    def _write(self, world: World, register: Register) -> World:
        if world.register >= 0:
            self._check_register(self._recorded(world), register)
        return world._replace(
            register=self.registers.put(register),
            left_behind=world.left_behind.union(register.leavers),
        )

    def _check_register(self, before: Register, after: Register) -> None:
        """Numbers only grow, also over restarts."""
        for name in ("incarnation", "number", "lineage", "named"):
            if getattr(after, name) < getattr(before, name):
                raise Violation(f"the register's {name} went back: {before}, {after}")
        if before.newest is None:
            return
        if after.newest is None and after.lineage == before.lineage:
            raise Violation(f"the register forgot its newest generation: {before}")
        if after.newest is not None and after.newest.generation < before.newest.generation:
            raise Violation(f"the register's newest generation went back: {before}, {after}")
        if before.restore is not None and after.restore is None:
            raise Violation(f"the register forgot its restore: {before}")

    def _send(self, world: World, command: Command, incarnation: Incarnation) -> World:
        self.said.append(command)
        match command:
            case StartReplica(replica=name):
                return self._start(world, name)
            case EndReplica():
                return self._doom(world, command, incarnation)
            case EndJob(exit_code=code):
                return self._end_job(world, code)
            case Prepare(order=order) | Switch(order=order) | Reform(order=order):
                self._check_order(world, command, order)
                world = _with_leavers(world, command)
            case Dismiss(to=names) | Release(to=names):
                for name in names:
                    if isinstance(command, Dismiss):
                        self._require_expected(world, name, "dismissed")
                    self._check_holder(world, name)
            case Publish():
                self._check_publish(world, command)
            case FallThrough() | Stop() | RollCall():
                pass
            case _:
                assert_never(command)
        number = self.commands.put((command, incarnation))
        for name in command.to:
            process = _find(world, name)
            if process is not None and process.alive:
                world = self._change(world, name, inbox=(*process.inbox, number))
        return world

    def _doom(self, world: World, command: EndReplica, incarnation: Incarnation) -> World:
        # A drain is forgotten with its coordinator: then it is the newest that goes.
        if command.reason != "more than the target" or incarnation == 1:
            self._require_expected(world, command.replica, "ended")
        return self._change(world, command.replica, doomed=True)

    def _start(self, world: World, name: ReplicaId) -> World:
        if name in world.used:
            raise Violation(f"the name {name} was given twice")
        running = sum(process.alive for process in world.processes)
        if running >= self.devices:
            raise Violation(f"{name} started while all {self.devices} devices run a process")
        process = Process(name=name, member=self.members.put(Member(replica=name)))
        return world._replace(processes=(*world.processes, process), used=(*world.used, name))

    def _end_job(self, world: World, code: int) -> World:
        holders = self._holders(world)
        if code == 0 and self._count(world) < self.steps and not self.may_stop:
            raise Violation(f"the job ends well after {self._count(world)} steps")
        if code == 4 and holders and not world.late:
            raise Violation(f"the job ends for want of state, which {holders} hold")
        whole = [found.name for found in world.storage if found.name not in world.damaged]
        if code == 4 and whole:
            raise Violation(f"the job ends for want of state, which is in {whole}")
        if code not in (0, 4) and not (code == 3 and self.may_stop):
            raise Violation(f"the job ends with code {code}")
        return world._replace(ended=code)

    def _holders(self, world: World) -> list[ReplicaId]:
        """Return who holds the state of the newest lineage and may still be in a generation."""
        lineage = self._recorded(world).lineage
        return [
            process.name
            for process in world.processes
            if process.alive
            and not process.hung
            and process.name not in world.left_behind
            and self.members[process.member].has_state
            and self.members[process.member].lineage == lineage
        ]

    def _check_publish(self, world: World, command: Publish) -> None:
        lineage = self._recorded(world).lineage
        if not command.checkpoint.endswith(f"/{lineage}"):
            raise Violation(f"{command.checkpoint} is published in lineage {lineage}")

    def _check_order(self, world: World, command: Prepare | Switch | Reform, order: Order) -> None:
        register = self._recorded(world)
        newest = register.newest.generation if register.newest else 0
        if order.restore is not None and order.restore != register.restore:
            raise Violation(f"{order.restore} is used before it is in the register")
        if (order.restore is None) != (order.origin is None or register.restore is None):
            raise Violation(f"generation {order.generation} has an origin without its restore")
        if order.generation > register.number:
            raise Violation(f"generation {order.generation} is used before it is in the register")
        if isinstance(command, Reform) and world.left_behind & set(order.replicas):
            raise Violation(f"Reform {order.generation} contains a leaver")
        if not isinstance(command, Prepare) and order.generation != newest:
            raise Violation(f"{type(command).__name__} {order.generation} is not in the register")
        size = len(order.members)
        if size > min(self.max_replicas, self.num_slots, self.devices):
            raise Violation(f"generation {order.generation} has {size} members")
        if size < self.min_replicas and not order.hold:
            raise Violation(f"generation {order.generation} trains with {size} members")
        if order.host not in order.replicas:
            raise Violation(f"generation {order.generation} is hosted by {order.host}")

    def _require_expected(self, world: World, name: ReplicaId, verb: str) -> None:
        process = _find(world, name)
        if process is None or not process.alive or process.hung or world.late:
            return
        mine = self.members[process.member]
        if mine.has_state and mine.lineage < self._recorded(world).lineage:
            return
        is_over = self._count(world) >= self.steps or process.stop_seen
        if name not in world.expected and not is_over:
            raise Violation(f"the healthy replica {name} is {verb}")

    def _check_holder(self, world: World, name: ReplicaId) -> None:
        process = _find(world, name)
        mine = self.members[process.member] if process is not None else None
        if mine is None or not mine.has_state or self._count(world) >= self.steps:
            return
        if mine.lineage < self._recorded(world).lineage:
            return
        if any(other.stop_seen for other in world.processes):
            return
        # A holder whose death nobody could know of yet counts.
        known = [p for p in world.processes if p.name != name and (p.alive or p.exit is not None)]
        others = [self.members[p.member] for p in known]
        if not any(other.has_state and other.committed >= mine.committed for other in others):
            raise Violation(f"{name} is told to exit and is the only holder of its state")

    # -- everything that can happen ----------------------------------------------------

    def actions(self, world: World) -> Iterator[Action]:
        """Yield what can happen next, with its name; the fair scheduler takes the first."""
        if world.ended is not None:
            return
        if self.is_eager and (action := self._eager(world)) is not None:
            yield action
            return
        for process in world.processes:
            yield from self._messages(world, process)
        able = [process for process in world.processes if process.alive and not process.hung]
        for process in able:
            yield from self._work(world, process)
        for process in able:
            if process.phase == "computing" and self.members[process.member].reform is None:
                yield self._next(world, process, self.members[process.member])
        yield from self._checkpointing(world, able)
        if world.old >= 0:
            yield (
                ("the agent comes to the new coordinator",),
                partial(self._met, world._replace(old=-1)),
            )
        if world.unsent:
            yield from self._arriving(world)
        if world.wishes:
            event = self.events[world.wishes[0]]
            rest = world._replace(wishes=world.wishes[1:])
            if isinstance(event, DrainRequested):
                rest = rest._replace(expected=rest.expected | {event.replica})
            yield ("someone asks:", event), partial(self.hear, rest, event)
        if any(world.faults):
            yield from self._go_wrong(world)

    def _eager(self, world: World) -> Action | None:
        """Return an action that may as well happen now: waiting changes nothing for others.

        What it tells the coordinator may still arrive at any time, and what a dead replica had
        sent is stale once its exit is known.
        """
        for process in world.processes:
            is_known_dead = not process.alive and process.exit is None
            if (self.is_prompt or is_known_dead) and (process.outbox or process.exit is not None):
                return next(self._messages(world, process))
            if process.alive and not process.hung:
                if self._is_behind(process, self.members[process.member]):
                    return next(self._work(world, process))
                if process.phase == "starting":
                    return (process.name, "is spare"), partial(self._report_spare, world, process)
                if process.released and process.phase in PARTING:
                    return next(self._work(world, process))
                mine = self.members[process.member]
                order = protocol.entering(mine)
                if order is not None and not mine.built:
                    for action in self._building(world, process, mine):
                        return action
        return None

    def _messages(self, world: World, process: Process) -> Iterator[Action]:
        name = process.name
        if process.outbox:
            event = self.events[process.outbox[0]]
            rest = self._change(world, name, outbox=process.outbox[1:])
            yield ("coordinator hears", event), partial(self.hear, rest, event)
        if process.exit is not None:
            event = Exited(replica=name, kind=process.exit, detail=_detail(process))
            rest = self._change(world, name, exit=None)
            yield ("coordinator hears", event), partial(self.hear, rest, event)
        if process.doomed and process.alive:
            yield ("the agent ends", name), partial(self._die, world, process, ExitKind.SIGNAL)
        if process.inbox and process.alive and not process.hung:
            command, incarnation = self.commands[process.inbox[0]]
            yield (
                (name, "gets", command),
                partial(self._obey, world, process, command, incarnation),
            )

    def tick(self, world: World) -> World:
        """Let time pass until silence next means something; the living are heard from."""
        speaking = world.old if world.old >= 0 else world.coordinator
        deadline = self.next_deadline(self.states[speaking], float(world.now))
        world = world._replace(now=max(world.now + 1, int(-(-deadline // 1))))
        for process in world.processes:
            if process.alive and not process.hung and process.phase != "starting":
                mine = self.members[process.member]
                world = self.hear(world, self._progressed(process, mine))
        return self.hear(world, Ticked())

    def _progressed(self, process: Process, mine: Member) -> Progressed:
        return Progressed(
            replica=process.name,
            generation=mine.current,
            committed=mine.committed if mine.has_state else 0,
            calls=mine.calls,
            waiting=self._waiting(process),
        )

    def _waiting(self, process: Process) -> Generation:
        if process.phase in ("header", "transfer"):
            return self.orders[process.going].generation
        return NO_GENERATION

    def _go_wrong(self, world: World) -> Iterator[Action]:
        faults = world.faults
        for process in world.processes:
            name = process.name
            if not process.alive or process.hung:
                continue
            if faults.kills:
                spent = world._replace(faults=faults._replace(kills=faults.kills - 1))
                yield (name, "is killed"), partial(self._die, spent, process, ExitKind.SIGNAL)
            if faults.hangs:
                spent = world._replace(
                    faults=faults._replace(hangs=faults.hangs - 1),
                    expected=world.expected | {name},
                )
                yield (name, "hangs"), partial(self._change, spent, name, hung=True)
            if faults.breaks and process.phase in ("voted", "header", "transfer"):
                spent = world._replace(faults=faults._replace(breaks=faults.breaks - 1))
                yield (
                    (name, "'s collective fails, nobody died"),
                    partial(self._fail, spent, process),
                )
            if faults.repeats:
                spent = world._replace(faults=faults._replace(repeats=faults.repeats - 1))
                for box in ("inbox", "outbox"):
                    if sent := getattr(process, box):
                        twice = {box: (sent[0], *sent)}
                        yield (name, box, "repeats"), partial(self._change, spent, name, **twice)
        yield from self._lose_coordinator(world)
        if faults.ticks:
            spent = world._replace(faults=faults._replace(ticks=faults.ticks - 1), late=True)
            yield ("a deadline passes",), partial(self.tick, spent)

    def _lose_coordinator(self, world: World) -> Iterator[Action]:
        faults = world.faults
        if world.old >= 0:
            return
        if faults.restarts:
            spent = world._replace(faults=faults._replace(restarts=faults.restarts - 1))
            yield ("the coordinator dies; another takes over",), partial(self.take_over, spent)
        if faults.overlaps:
            spent = world._replace(faults=faults._replace(overlaps=faults.overlaps - 1))
            label = ("another coordinator takes over; the old one lives",)
            yield label, partial(self.take_over, spent, is_old_alive=True)
        if faults.crashes:
            spent = world._replace(faults=faults._replace(crashes=faults.crashes - 1))
            for process in world.processes:
                if heard := self._next_heard(spent, process):
                    yield from self._crashing(*heard)

    def _next_heard(self, world: World, process: Process) -> tuple[World, Event] | None:
        if process.outbox:
            rest = self._change(world, process.name, outbox=process.outbox[1:])
            return rest, self.events[process.outbox[0]]
        if process.exit is not None:
            event = Exited(replica=process.name, kind=process.exit, detail=_detail(process))
            return self._change(world, process.name, exit=None), event
        return None

    def _crashing(self, world: World, event: Event) -> Iterator[Action]:
        """Die after writing the register and sending the first so many commands."""
        written, commands = self._decide(world, event)
        for count in range(len(commands)):
            label = ("coordinator hears", event, "and dies after", count, "commands")
            yield label, partial(self._crash, written, commands, count)

    def _crash(self, world: World, commands: tuple[Command, ...], count: int) -> World:
        incarnation = self._recorded(world).incarnation
        if any(isinstance(command, EndJob) for command in commands):
            world = world._replace(expected=world.expected | set(world.used))
        for command in commands[:count]:
            world = self._send(world, command, incarnation)
        late = [c for c in commands[count:] if isinstance(c, Prepare | Switch | Reform)]
        unsent = tuple(self.commands.put((command, incarnation)) for command in late)
        return self.take_over(world._replace(unsent=unsent))

    def _arriving(self, world: World) -> Iterator[Action]:
        """The last orders of a dead coordinator arrive: they were recorded, so they may."""
        command, incarnation = self.commands[world.unsent[0]]
        rest = world._replace(unsent=world.unsent[1:])
        assert not isinstance(command, StartReplica | EndReplica | EndJob)
        for name in command.to:
            rest = self._delivered(rest, name, self.commands.put((command, incarnation)))
        yield ("late:", command), lambda: rest

    def _delivered(self, world: World, name: ReplicaId, number: int) -> World:
        process = _find(world, name)
        if process is None or not process.alive:
            return world
        return self._change(world, name, inbox=(*process.inbox, number))

    # -- checkpoints ---------------------------------------------------------------------

    def _checkpointing(self, world: World, able: list[Process]) -> Iterator[Action]:
        for process in able:
            mine = self.members[process.member]
            if process.phase == "loading" and not protocol.is_sealed(
                mine, self.orders[process.going].generation
            ):
                label = (process.name, "loads in", self.orders[process.going].generation)
                yield label, partial(self._load, world, process)
                if world.faults.damages:
                    yield (process.name, "finds it damaged"), partial(self._damage, world, process)
            if world.saves and process.phase == "computing" and self._all_have(world, process):
                spent = world._replace(saves=world.saves - 1)
                yield (
                    (process.name, "has saved", mine.committed),
                    partial(self._ask_to_publish, spent, process, mine),
                )

    def _all_have(self, world: World, process: Process) -> bool:
        """Whether it leads its generation, and all members have committed what it has."""
        mine = self.members[process.member]
        order = self.orders[process.home]
        if order.replicas[0] != process.name or process.saving or not mine.committed:
            return False
        peers = [_find(world, name) for name in order.replicas]
        counts = [self.members[p.member].committed for p in peers if p is not None and p.alive]
        return len(counts) == len(order.replicas) and min(counts) >= mine.committed

    def _ask_to_publish(self, world: World, process: Process, mine: Member) -> World:
        name = f"{mine.committed}/{mine.lineage}"
        event = PublishAsked(
            replica=process.name, lineage=mine.lineage, committed=mine.committed, checkpoint=name
        )
        return self._tell(self._change(world, process.name, saving=True), process.name, event)

    def _publish(self, world: World, process: Process, name: str) -> World:
        committed, _, lineage = name.partition("/")
        found = Found(name=name, committed=int(committed), lineage=Lineage(int(lineage)))
        if found not in world.storage:
            world = world._replace(storage=(*world.storage, found))
        event = Saved(
            replica=process.name,
            lineage=found.lineage,
            committed=found.committed,
            checkpoint=name,
        )
        return self._tell(self._change(world, process.name, saving=False), process.name, event)

    def _load(self, world: World, process: Process) -> World:
        resolution = self.resolutions[process.resolution]
        order = self.orders[process.going]
        assert resolution.restore is not None
        name = resolution.restore.checkpoint
        if name in world.damaged:
            event = Unrestorable(
                replica=process.name, generation=order.generation, checkpoint=name, reason="damaged"
            )
            gone = (*process.abandoned, int(order.generation))
            world = self._change(world, process.name, phase="broken", abandoned=gone)
            return self._tell(world, process.name, event)
        there = {found.name for found in world.storage}
        if name == NO_CHECKPOINT and there:
            raise Violation(f"the run begins again at step 0, though {min(there)} was published")
        if name != NO_CHECKPOINT and name not in there:
            raise Violation(f"{name} is restored and was never published")
        moved = self._plain(process, protocol.received, resolution)
        world = self._change(world, process.name, member=moved)
        post: Post = (order.generation, "send", 0, None)
        world = self._post(world, _get(world, process.name), post)
        return self._entered(world, process.name, process.going)

    def _damage(self, world: World, process: Process) -> World:
        restore = self.resolutions[process.resolution].restore
        assert restore is not None
        faults = world.faults._replace(damages=world.faults.damages - 1)
        damaged = world.damaged | {restore.checkpoint}
        return self._load(world._replace(faults=faults, damaged=damaged), process)

    # -- one worker ------------------------------------------------------------------------

    def _work(self, world: World, process: Process) -> Iterator[Action]:
        """Yield what this worker's threads can do now."""
        name, mine = process.name, self.members[process.member]
        yield from self._building(world, process, mine)
        if process.phase == "starting":
            yield (name, "is spare"), partial(self._report_spare, world, process)
        elif process.released and process.phase in PARTING:
            kind = ExitKind.FINISHED if process.phase == "finished" else ExitKind.LEFT
            yield (name, "exits"), partial(self._die, world, process, kind)
        elif self._is_behind(process, mine):
            yield (name, "passes through a call"), partial(self._next_call, world, process)
        elif self._may_enter(process, mine):
            order = protocol.entering(mine)
            assert order is not None
            label = (name, "enters", order.generation)
            yield label, partial(self._enter, world, process, mine, order)
        elif mine.reform is not None and process.phase not in ("header", "transfer", "loading"):
            return
        elif self._is_left_out(process, mine):
            yield (name, "is left out"), partial(self._change, world, name, phase="starting")
        elif process.phase == "held" and not self._posted_null(process, mine):
            if number := protocol.ready_number(mine):
                post: Post = (mine.current, "null", process.round, number)
                yield (name, "is ready, held"), partial(self._post, world, process, post)
        elif process.phase in ("voted", "header", "transfer", "held"):
            yield from self._collective(world, process, mine)

    def _is_left_out(self, process: Process, mine: Member) -> bool:
        """Whether a joiner is in a collective that a Reform without it has ended."""
        if process.phase not in ("header", "transfer", "loading"):
            return False
        if mine.has_state or mine.reform is not None:
            return False
        return protocol.is_sealed(mine, self.orders[process.going].generation)

    def _is_behind(self, process: Process, mine: Member) -> bool:
        """Whether a joiner is to pass through the ``steps()`` call in which it waits."""
        waits = process.phase in ("spare", "broken") and not mine.has_state
        return waits and process.fall_through > mine.calls

    def _next_call(self, world: World, process: Process) -> World:
        """Come to the next ``steps()`` call: a spare reports there, a member goes on training."""
        moved = self._plain(process, _called)
        mine = self.members[moved]
        phase = process.phase if mine.has_state else "starting"
        changed = self._change(world, process.name, member=moved, phase=phase)
        return self._tell(changed, process.name, self._progressed(process, mine))

    def _report_spare(self, world: World, process: Process) -> World:
        name = process.name
        event = Spare(
            replica=name,
            calls=self.members[process.member].calls,
            num_slots=self.num_slots,
            layout="l",
            endpoint=f"{name}:1",
            checkpoints=world.storage,
        )
        changed = self._change(world, name, phase="spare", spare=self.events.put(event))
        return self._tell(changed, name, event)

    def _building(self, world: World, process: Process, mine: Member) -> Iterator[Action]:
        """The builder thread: groups come up once every member has begun."""
        order = protocol.entering(mine)
        if order is None or mine.built or process.name not in order.replicas:
            return
        generation = order.generation
        if not _has_posted(process, generation, "build", 0) or generation in process.abandoned:
            return
        if self._all_posted(world, order, "build", 0) is not None:
            label = (process.name, "has built", generation)
            yield label, partial(self._built, world, process, generation)
        if self._peer_is_gone(world, process, order):
            label = (process.name, "cannot build", generation)
            yield label, partial(self._not_built, world, process, generation)

    def _built(self, world: World, process: Process, generation: Generation) -> World:
        moved, tasks = self._move(process, protocol.on_built, generation)
        changed = self._change(world, process.name, member=moved)
        return self._perform(changed, process.name, tasks)

    def _not_built(self, world: World, process: Process, generation: Generation) -> World:
        moved, tasks = self._move(process, protocol.on_build_failed, generation, "peer gone")
        posts = _without(process.posts, generation)
        changed = self._change(world, process.name, member=moved, posts=posts)
        return self._perform(changed, process.name, tasks)

    def _may_enter(self, process: Process, mine: Member) -> bool:
        if not mine.built or process.phase not in INTERRUPTIBLE:
            return False
        if mine.reform is not None:
            return not _has_posted(process, mine.reform.generation, "header", 0)
        # A joiner is in no generation, so it has no boundary to wait for.
        return process.phase == "spare" and mine.ordered is not None

    def _enter(self, world: World, process: Process, mine: Member, order: Order) -> World:
        changed = self._change(
            world, process.name, phase="header", going=self.orders.put(order), boundary=0
        )
        post: Post = (order.generation, "header", 0, protocol.header(mine))
        return self._post(changed, _get(changed, process.name), post)

    def _next(self, world: World, process: Process, mine: Member) -> Action:
        """Tail, boundary, and the next step up to its vote."""
        name = process.name
        if process.boundary:
            return (name, "crosses to", process.boundary), partial(
                self._cross, world, process, mine
            )
        if mine.calls < sum(end <= mine.committed for end in self.call_ends):
            return (name, "comes to its next call"), partial(self._next_call, world, process)
        if mine.committed >= self.steps or process.stop_seen:
            return (name, "finishes"), partial(self._finish, world, process, mine)
        number = protocol.ready_number(mine)
        label = (name, "votes for", mine.committed, "in", mine.current, "ready for", number)
        return label, partial(self._vote, world, process, mine, number)

    def _cross(self, world: World, process: Process, mine: Member) -> World:
        name, order = process.name, mine.ordered
        if order is None or order.generation != process.boundary:
            raise Violation(f"{name} is to cross into {process.boundary} and has lost it")
        if name in order.replicas:
            return self._enter(world, process, mine, order)
        moved = self._plain(process, protocol.left)
        return self._change(world, name, member=moved, phase="leaver", boundary=0)

    def _finish(self, world: World, process: Process, mine: Member) -> World:
        changed = self._change(world, process.name, phase="finished")
        event = Finished(replica=process.name, committed=mine.committed)
        return self._tell(changed, process.name, event)

    def _vote(self, world: World, process: Process, mine: Member, number: Generation) -> World:
        step = mine.committed
        moved = self._plain(process, protocol.voted, step)
        post: Post = (mine.current, "metadata", step, (number, mine.stopping))
        posts = (*process.posts, post)
        return self._change(world, process.name, member=moved, phase="voted", posts=posts)

    def _collective(self, world: World, process: Process, mine: Member) -> Iterator[Action]:
        """The collective it waits in completes here, or fails here; maybe either can happen."""
        order = self.orders[_place(process)]
        if protocol.is_sealed(mine, order.generation):
            return
        name, generation = process.name, order.generation
        completed = self._completion(world, process, mine, order)
        if completed is not None:
            label = (name, "completes", process.phase, mine.committed, "in", generation)
            yield label, completed
        if self._peer_is_gone(world, process, order):
            label = (name, "fails", process.phase, mine.committed, "in", generation)
            yield label, partial(self._fail, world, process)

    def _completion(
        self, world: World, process: Process, mine: Member, order: Order
    ) -> Callable[[], World] | None:
        """Return what completing its collective does, if all have posted."""
        if process.phase == "transfer":
            resolution = self.resolutions[process.resolution]
            senders = [order.replicas[rank] for rank in resolution.survivors]
            if all(self._sent(world, sender, order.generation) for sender in senders):
                return partial(self._receive, world, process, resolution)
            return None
        kind, number = {
            "voted": ("metadata", mine.committed),
            "held": ("null", process.round),
            "header": ("header", 0),
        }[process.phase]
        values = self._all_posted(world, order, kind, number)
        if values is None:
            return None
        if process.phase == "voted":
            return partial(self._commit, world, process, mine, values)
        if process.phase == "held":
            return partial(self._end_null_round, world, process, mine, values)
        return partial(self._resolve, world, process, order, values)

    def _receive(self, world: World, process: Process, resolution: Resolution) -> World:
        moved = self._plain(process, protocol.received, resolution)
        changed = self._change(world, process.name, member=moved)
        return self._entered(changed, process.name, process.going)

    def _commit(
        self, world: World, process: Process, mine: Member, values: tuple[Any, ...]
    ) -> World:
        moved = self._plain(process, protocol.committed, mine.current)
        number = protocol.boundary(self.members[moved], [ready for ready, _ in values])
        return self._change(
            self._record(world, self.members[moved]),
            process.name,
            member=moved,
            phase="computing",
            boundary=int(number),
            stop_seen=any(stop for _, stop in values),
        )

    def _end_null_round(
        self, world: World, process: Process, mine: Member, values: tuple[Any, ...]
    ) -> World:
        number = protocol.boundary(mine, values)
        if not number:
            return self._change(world, process.name, round=process.round + 1)
        process = process._replace(boundary=int(number), round=0)
        return self._cross(_replaced(world, process), process, mine)

    def _resolve(
        self, world: World, process: Process, order: Order, headers: tuple[Any, ...]
    ) -> World:
        origin = None if order.origin is None else order.replicas.index(order.origin)
        try:
            resolution = resolve(headers, origin, order.restore)
        except NoStateError as error:
            holders = self._holders(world)
            if holders:
                raise Violation(f"{order.generation}: {error}; {holders} hold it") from error
            spent = world._replace(expected=world.expected | set(world.used))
            return self._fail(spent, process)
        rank = order.replicas.index(process.name)
        moved = self._plain(process, protocol.resolved, resolution, rank)
        mine = self.members[moved]
        if rank in resolution.commits:
            world = self._record(world, mine)
        met = [headers[place] for place in (*resolution.survivors, *resolution.joiners)]
        calls = {header.calls for header in met}
        if resolution.joiners and len(calls) > 1:
            process = process._replace(member=moved)
            return self._keep_apart(world, process, order, resolution, max(calls))
        if rank not in resolution.survivors or resolution.restore is not None:
            number = self.resolutions.put(resolution)
            phase = "loading" if rank in resolution.survivors else "transfer"
            return self._change(world, process.name, member=moved, phase=phase, resolution=number)
        if (mine.committed, mine.made_by) != (resolution.committed, resolution.made_by):
            raise Violation(f"{process.name} survives with {mine.committed} made by {mine.made_by}")
        changed = self._change(world, process.name, member=moved)
        post: Post = (order.generation, "send", 0, None)
        changed = self._post(changed, _get(changed, process.name), post)
        return self._entered(changed, process.name, process.going)

    def _keep_apart(
        self, world: World, process: Process, order: Order, resolution: Resolution, calls: int
    ) -> World:
        """Not all are in the same ``steps()`` call: nobody gets state."""
        world = _replaced(world, process)
        for rank in resolution.joiners:
            event = Refused(
                replica=order.replicas[rank],
                generation=order.generation,
                reason="another call",
                joiner=True,
                calls=calls,
            )
            world = self._tell(world, process.name, event)
        return self._fail(world, _get(world, process.name))

    def _entered(self, world: World, name: ReplicaId, where: int) -> World:
        process, order = _get(world, name), self.orders[where]
        before = self.members[process.member].current
        moved = self._plain(process, protocol.entered, order)
        mine = self.members[moved]
        past = self._history(world, mine.lineage)
        if mine.committed > past.start:
            if past.makers[mine.committed - 1 - past.start] != mine.made_by:
                raise Violation(f"{name} enters with a step {mine.committed - 1} of {mine.made_by}")
        elif mine.committed < past.start:
            raise Violation(f"{name} enters lineage {mine.lineage} with {mine.committed} steps")
        gone = (*process.abandoned, int(before)) if before else process.abandoned
        changed = self._change(
            world,
            name,
            member=moved,
            phase="held" if order.hold and mine.committed < self.steps else "computing",
            home=where,
            going=-1,
            resolution=-1,
            round=0,
            boundary=0,
            abandoned=gone,
        )
        changed = self._check_counts(changed, mine)
        event = Switched(replica=name, generation=order.generation, step=mine.committed)
        return self._tell(changed, name, event)

    def _fail(self, world: World, process: Process) -> World:
        generation = self.orders[_place(process)].generation
        moved, tasks = self._move(process, protocol.on_broken, generation, "peer gone")
        gone = (*process.abandoned, int(generation))
        changed = self._change(
            world, process.name, member=moved, phase="broken", boundary=0, abandoned=gone
        )
        changed = self._perform(changed, process.name, tasks)
        if self.members[moved].has_state:
            return changed
        return self._change(changed, process.name, phase="starting")  # asks again

    def _registered(self, process: Process, incarnation: Incarnation) -> tuple[int, Any]:
        said = self.events[process.spare] if process.spare >= 0 else None
        moved, tasks = protocol.on_roll_call(
            self.members[process.member],
            incarnation,
            spare=said if isinstance(said, Spare) else None,
            finished=process.phase == "finished",
        )
        return self.members.put(moved), tasks

    def _obey(
        self, world: World, process: Process, command: Command, incarnation: Incarnation
    ) -> World:
        """The link thread: one command of the coordinator."""
        name = process.name
        world = self._change(world, name, inbox=process.inbox[1:])
        process = _get(world, name)
        match command:
            case Prepare(order=order):
                moved, tasks = self._move(process, protocol.on_prepare, order, incarnation)
            case Switch(order=order):
                moved, tasks = self._move(process, protocol.on_switch, order, incarnation)
            case Reform(order=order):
                moved, tasks = self._move(process, protocol.on_reform, order, incarnation)
            case RollCall():
                moved, tasks = self._registered(process, incarnation)
            case _ if incarnation < self.members[process.member].incarnation:
                return world
            case Publish(checkpoint=checkpoint):
                return self._publish(world, process, checkpoint)
            case Dismiss():
                return self._die(world, process, ExitKind.LEFT)
            case Release():
                return self._change(world, name, released=True)
            case FallThrough(calls=calls):
                told = max(process.fall_through, calls)
                return self._change(world, name, fall_through=told)
            case Stop():
                moved, tasks = self._move(process, _stopping)
            case _:
                return world
        return self._perform(self._change(world, name, member=moved), name, tasks)

    def _perform(self, world: World, name: ReplicaId, tasks: tuple[protocol.Task, ...]) -> World:
        for task in tasks:
            process = _get(world, name)
            match task:
                case Build(order=order):
                    world = self._post(world, process, (order.generation, "build", 0, None))
                case Abandon(generation=generation):
                    gone = (*process.abandoned, int(generation))
                    world = self._change(world, name, abandoned=gone)
                case Prepared() | Refused() | Broken() | Registered():
                    world = self._tell(world, name, task)
                case _:
                    assert_never(task)
        return world

    def _die(self, world: World, process: Process, kind: ExitKind) -> World:
        """The process is gone; what it had sent is still on its way."""
        mine = self.members[process.member]
        stub = Member(replica=process.name, has_state=mine.has_state, committed=mine.committed)
        dead = Process(
            name=process.name,
            member=self.members.put(stub),
            phase="dead",
            posts=process.posts,
            outbox=process.outbox,
            exit=kind,
        )
        return _replaced(world, dead)

    # -- helpers -----------------------------------------------------------------------------

    def _record(self, world: World, mine: Member) -> World:
        """Note who made the step just committed; a second maker is a second result."""
        step, maker = mine.committed - 1, int(mine.made_by)
        past = self._history(world, mine.lineage)
        if past.start <= step < past.end:
            if past.makers[step - past.start] != maker:
                raise Violation(
                    f"{mine.replica} commits step {step} made by {maker}; "
                    f"it was committed as made by {past.makers[step - past.start]}"
                )
            return world
        if step != past.end:
            raise Violation(f"{mine.replica} commits step {step} after {past.end} steps")
        others = tuple(h for h in world.history if h.lineage != mine.lineage)
        longer = past._replace(makers=(*past.makers, maker))
        return world._replace(history=tuple(sorted((*others, longer))))

    def _history(self, world: World, lineage: int) -> History:
        """Return what was committed in a lineage so far."""
        for past in world.history:
            if past.lineage == lineage:
                return past
        restore = self._recorded(world).restore
        if restore is not None and restore.lineage == lineage:
            return History(lineage, restore.committed)
        return History(lineage, 0)

    def _count(self, world: World) -> int:
        """Return how many steps the newest lineage has committed, those before it included."""
        return self._history(world, self._recorded(world).lineage).end

    def _check_counts(self, world: World, entered: Member) -> World:
        counts = [entered.committed]
        for process in world.processes:
            mine = self.members[process.member]
            is_same = (mine.current, mine.lineage) == (entered.current, entered.lineage)
            if process.alive and mine.has_state and is_same:
                counts.append(mine.committed)
        if max(counts) - min(counts) > 1:
            raise Violation(f"members of {entered.current} have committed {sorted(counts)} steps")
        return world

    def _all_posted(
        self, world: World, order: Order, kind: str, number: int
    ) -> tuple[Any, ...] | None:
        """Return what the members posted, in replica_rank order, or None if one has not."""
        values = []
        for name in order.replicas:
            process = _find(world, name)
            if process is None:
                return None
            for generation, what, turn, value in process.posts:
                if generation == order.generation and what == kind and turn == number:
                    values.append(value)
                    break
            else:
                return None
        return tuple(values)

    def _sent(self, world: World, name: ReplicaId, generation: Generation) -> bool:
        process = _find(world, name)
        return process is not None and _has_posted(process, generation, "send", 0)

    def _posted_null(self, process: Process, mine: Member) -> bool:
        return _has_posted(process, mine.current, "null", process.round)

    def _peer_is_gone(self, world: World, process: Process, order: Order) -> bool:
        for name in order.replicas:
            if name != process.name:
                peer = _find(world, name)
                if peer is None or not peer.alive or order.generation in peer.abandoned:
                    return True
        return False

    def _tell(self, world: World, name: ReplicaId, event: Event) -> World:
        process = _get(world, name)
        return self._change(world, name, outbox=(*process.outbox, self.events.put(event)))

    def _post(self, world: World, process: Process, post: Post) -> World:
        return self._change(world, process.name, posts=(*process.posts, post))

    def _change(self, world: World, name: ReplicaId, **fields: Any) -> World:
        process = _find(world, name)
        return world if process is None else _replaced(world, process._replace(**fields))

    def _move(self, process: Process, function: Any, *args: Any) -> tuple[int, Any]:
        """Apply one transition of core.member that returns tasks."""
        key = (function, process.member, args)
        if key not in self._moved:
            moved, tasks = function(self.members[process.member], *args)
            self._moved[key] = self.members.put(moved), tasks
        number, tasks = self._moved[key]
        return number, tasks

    def _plain(self, process: Process, function: Any, *args: Any) -> int:
        """Apply one transition of core.member that returns the member alone."""
        return self.members.put(function(self.members[process.member], *args))

    def tidy(self, world: World) -> World:
        """Forget what no future step can depend on, so that equal futures are equal worlds."""
        needed = frozenset().union(*(self._needed(p) for p in world.processes if p.alive))
        late = (self.commands[number][0] for number in world.unsent)
        needed |= {
            int(c.order.generation) for c in late if isinstance(c, Prepare | Switch | Reform)
        }
        kept = []
        for process in world.processes:
            posts, abandoned = process.posts, process.abandoned
            if posts or abandoned:
                posts, abandoned = self._tidied(posts, abandoned, needed)
                if posts is not process.posts or abandoned is not process.abandoned:
                    process = process._replace(posts=posts, abandoned=abandoned)
            if process.alive or process.outbox or process.exit is not None or posts:
                kept.append(process)
        return world._replace(processes=tuple(kept))

    def _needed(self, process: Process) -> frozenset[int]:
        """Return the generations whose collectives this worker may still take part in."""
        key = (process.member, process.home, process.going, process.inbox)
        found = self._needs.get(key)
        if found is None:
            mine = self.members[process.member]
            orders = [self.orders[n] for n in (process.home, process.going) if n >= 0]
            orders += [o for o in (mine.prepared, mine.ordered, mine.reform) if o is not None]
            sent = (self.commands[number][0] for number in process.inbox)
            orders += [c.order for c in sent if isinstance(c, Prepare | Switch | Reform)]
            found = self._needs[key] = frozenset(int(order.generation) for order in orders)
        return found

    def _tidied(
        self, posts: tuple[Post, ...], abandoned: tuple[int, ...], needed: frozenset[int]
    ) -> tuple[tuple[Post, ...], tuple[int, ...]]:
        key = (posts, abandoned, needed)
        found = self._tidy.get(key)
        if found is None:
            found = _latest(posts, needed), tuple(sorted(needed.intersection(abandoned)))
            self._tidy[key] = found
        return found


def told(label: tuple[object, ...]) -> str:
    """One action as a line."""
    return " ".join(
        brief(part) if hasattr(part, "__dataclass_fields__") else str(part) for part in label
    )


def brief(value: Any) -> str:
    """One event or command on part of a line."""
    name = type(value).__name__
    if isinstance(value, Prepare | Switch | Reform):
        restore = value.order.restore
        held = f" restore {restore.checkpoint}/{restore.lineage}" if restore else ""
        held += " hold" if value.order.hold else ""
        return f"{name}({value.order.generation}: {' '.join(value.order.replicas)}{held})"
    words = [
        str(part if not isinstance(part, tuple) else " ".join(map(str, part)))
        for slot in type(value).__dataclass_fields__
        if slot not in ("layout", "endpoint", "identity", "has_state", "reason", "spare")
        for part in [getattr(value, slot)]
    ]
    return f"{name}({' '.join(word for word in words if word)})"


def _with_leavers(world: World, command: Prepare | Switch | Reform) -> World:
    """Note who is left behind; whom a Reform leaves out is a joiner, which comes again."""
    left = set(command.to) - set(command.order.replicas)
    if isinstance(command, Reform):
        return world
    if isinstance(command, Switch):
        world = world._replace(left_behind=world.left_behind | left)
    return world._replace(expected=world.expected | left)


def _called(mine: Member) -> Member:
    return replace(mine, calls=mine.calls + 1)


def _stopping(mine: Member) -> tuple[Member, tuple[()]]:
    return replace(mine, stopping=True), ()


def _detail(process: Process) -> str:
    return "SIGKILL" if process.exit is ExitKind.SIGNAL else ""


def _place(process: Process) -> int:
    """Return the number of the order whose collective it waits in."""
    return process.home if process.phase in ("voted", "held") else process.going


def _find(world: World, name: ReplicaId) -> Process | None:
    for process in world.processes:
        if process.name == name:
            return process
    return None


def _get(world: World, name: ReplicaId) -> Process:
    process = _find(world, name)
    assert process is not None
    return process


def _replaced(world: World, changed: Process) -> World:
    return world._replace(
        processes=tuple(changed if p.name == changed.name else p for p in world.processes)
    )


def _has_posted(process: Process, generation: int, kind: str, number: int) -> bool:
    return any(post[:3] == (generation, kind, number) for post in process.posts)


def _without(posts: tuple[Post, ...], generation: int) -> tuple[Post, ...]:
    return tuple(post for post in posts if post[0] != generation)


def _latest(posts: tuple[Post, ...], needed: frozenset[int]) -> tuple[Post, ...]:
    """Keep the posts of groups somebody is in; of repeated kinds the last two rounds."""
    kept = sorted(
        {post[:3]: post for post in posts if post[0] in needed}.values(), key=lambda p: p[:3]
    )
    last: dict[tuple[int, str], int] = {}
    for generation, kind, number, _ in kept:
        last[generation, kind] = number
    return tuple(post for post in kept if post[2] >= last[post[0], post[1]] - 1)
