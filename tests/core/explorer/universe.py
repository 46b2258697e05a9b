"""What stays the same in a search: the core under test, the bounds, and the values met so far.

Owns the numbers that stand for values in a world, and forgetting what no future depends on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.core.explorer.process import Pool, Post, Process
from tests.core.explorer.world import History, World, change, is_mute, process_of

from pliant.core.commands import Command, Prepare, Reform, Switch
from pliant.core.events import Event
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.step.balance import Division
from pliant.core.values import Incarnation, NodeId, Order, Register, ReplicaId

Answer = tuple[Any, Register | None, tuple[Command, ...], tuple[Command, ...]]
"""State, register to write, commands, and what is said again to the node that has spoken."""


@dataclass
class Universe:
    """The fixed part: the core under test, bounds, and tables of values met so far."""

    decide: Callable[[Any, Event, float], Answer]
    """One step of the coordinator's core: state, event, now_s."""

    begin: Callable[[Register | None, float], tuple[Any, Register]]
    """The first moves of a coordinator: what storage holds, now_s."""

    next_deadline: Callable[[Any, float], float]
    """When, after now, silence next means something."""

    steps: int = 2
    call_ends: tuple[int, ...] = ()
    num_slots: int = 4
    nodes: tuple[int, ...] = (3,)
    """Devices of each node."""

    min_replicas: int = 1
    max_replicas: int = 3
    is_eager: bool = True
    """Let what only its own worker can notice happen at once (partial-order reduction)."""

    is_prompt: bool = False
    """Let the coordinator hear everything at once; what it says may still be late."""

    reclaims: int = 0
    """Replicas that the outside may take back, with their devices."""

    is_balanced: bool = False
    """Slots are divided by speed."""

    is_durable: bool = False
    """The script keeps checkpoints."""

    may_stop: bool = False
    """Someone may ask the job to stop."""

    states: Pool[Any] = field(default_factory=Pool)
    members: Pool[Member] = field(default_factory=Pool)
    orders: Pool[Order] = field(default_factory=Pool)
    resolutions: Pool[Resolution] = field(default_factory=Pool)
    events: Pool[Event] = field(default_factory=Pool)
    commands: Pool[tuple[Command, Incarnation]] = field(default_factory=Pool)
    registers: Pool[Register] = field(default_factory=Pool)
    divisions: Pool[Division] = field(default_factory=Pool)
    said: list[Command] = field(default_factory=list)
    """What the coordinator commanded since someone last cleared this; for telling traces."""

    _decided: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    _moved: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _needs: dict[tuple[Any, ...], frozenset[int]] = field(default_factory=dict)
    _tidy: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Of all nodes together."""
        return sum(self.nodes)

    def node_name(self, number: int) -> NodeId:
        return NodeId(f"n{number + 1}")

    def node_number(self, name: NodeId) -> int:
        return int(name[1:]) - 1

    def answer(self, state: int, event: Event, now: int) -> Answer:
        key = (state, self.events.put(event), now)
        if key not in self._decided:
            after, *rest = self.decide(self.states[state], event, float(now))
            self._decided[key] = (self.states.put(after), *rest)
        found: Answer = self._decided[key]
        return found

    def move(self, process: Process, function: Any, *args: Any) -> tuple[int, Any]:
        """Apply one transition of core.member that returns tasks."""
        key = (function, process.member, args)
        if key not in self._moved:
            moved, tasks = function(self.members[process.member], *args)
            self._moved[key] = self.members.put(moved), tasks
        number, tasks = self._moved[key]
        return number, tasks

    def apply(self, process: Process, function: Any, *args: Any) -> int:
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
            is_there = process.alive or process.unreaped
            if is_there or process.outbox or process.exit is not None or posts:
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


def recorded(universe: Universe, world: World) -> Register:
    return universe.registers[world.register]


def history_of(universe: Universe, world: World, lineage: int) -> History:
    """Return what was committed in a lineage so far."""
    for past in world.history:
        if past.lineage == lineage:
            return past
    restore = recorded(universe, world).restore
    if restore is not None and restore.lineage == lineage:
        return History(lineage, restore.committed)
    return History(lineage, 0)


def count_committed(universe: Universe, world: World) -> int:
    """Return how many steps the newest lineage has committed, those before it included."""
    return history_of(universe, world, recorded(universe, world).lineage).end


def holders_of(universe: Universe, world: World) -> list[ReplicaId]:
    """Return who holds the state of the newest lineage, can hand it over, and may yet."""
    lineage = recorded(universe, world).lineage
    return [
        process.name
        for process in world.processes
        if process.alive
        and not (process.stalled or process.is_locked or process.doomed)
        and not is_mute(world, process)
        and process.name not in world.left_behind
        and process.name not in world.given_up
        and universe.members[process.member].has_state
        and universe.members[process.member].lineage == lineage
    ]


def tell(universe: Universe, world: World, name: ReplicaId, event: Event) -> World:
    process = process_of(world, name)
    return change(world, name, outbox=(*process.outbox, universe.events.put(event)))


def _latest(posts: tuple[Post, ...], needed: frozenset[int]) -> tuple[Post, ...]:
    """Keep the posts of groups somebody is in; of repeated kinds the last two rounds."""
    kept = sorted(
        {post[:3]: post for post in posts if post[0] in needed}.values(), key=lambda p: p[:3]
    )
    last: dict[tuple[int, str], int] = {}
    for generation, kind, number, _ in kept:
        last[generation, kind] = number
    return tuple(post for post in kept if post[2] >= last[post[0], post[1]] - 1)
