"""The devices of a simulated cluster, as the pool's core shares them out.

Owns the order of things: one event after the other goes to ``core.allocation``, and what it says
to whom it is for, until nobody has anything to say.  Decides nothing, as ``pool.driver``.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pliant.core.allocation import (
    CLASSES,
    Action,
    Event,
    PriorityClass,
    Released,
    Team,
    TimePassed,
    kinds,
)
from pliant.core.allocation.kinds import next_deadline_of_kinds_s
from pliant.simulate.accounts import Accounts
from pliant.spec.cluster import NodeEntry


class Claimant:
    """Somebody who has a claim."""

    def __init__(self, name: str, pool: SimulatedPool) -> None:
        self.name = name
        self.pool = pool
        self.held: set[int] = set()
        """Devices that are its own: granted, not given back, and not lost."""

        self._since_s = pool.now_s
        """Up to when its accounts are."""

    def follow(self, action: Action) -> None:
        """Do what the pool says."""
        raise NotImplementedError

    def lose(self, devices: set[int]) -> None:
        """Some of its devices are gone, with what ran there."""
        raise NotImplementedError

    def account(self) -> None:
        """Bring the accounts up to now."""
        raise NotImplementedError

    def give_back(self, devices: set[int]) -> None:
        """Say that nothing runs on these any more."""
        if devices:
            self.held -= devices
            self.pool.tell(Released(name=self.name, devices=tuple(sorted(devices))))


@dataclass(slots=True)
class NodeGroup:
    """Nodes that are alike, and the numbers of their devices."""

    entry: NodeEntry
    first: int
    there: int
    bits: int
    there_device_s: float = 0.0
    gone_at_s: dict[int, float] = field(default_factory=dict)
    """Nodes on notice, with when that ends."""

    def devices(self, node: int) -> tuple[int, ...]:
        """Return those of one node."""
        begin = self.first + node * self.entry.devices
        return tuple(range(begin, begin + self.entry.devices))


class SimulatedPool:
    """Devices, claims and time."""

    def __init__(
        self,
        devices: int,
        *,
        device_kinds: tuple[str, ...] = (),
        classes: Iterable[PriorityClass] = CLASSES,
        teams: Iterable[Team] = (),
    ) -> None:
        self.now_s = 0.0
        self.devices = devices
        self.queue = EventQueue()
        self.accounts = Accounts()
        self.claimants: dict[str, Claimant] = {}
        self.groups: Sequence[NodeGroup] = ()
        beginning = kinds.PoolBeginning(
            devices=devices, kinds=device_kinds, classes=tuple(classes), teams=tuple(teams)
        )
        self.core = kinds.begun(beginning, now_s=0.0)
        self.num_events = 0
        self.listener: Callable[[Event, Sequence[Action]], None] = lambda event, actions: None
        """Hears every event that the core was told, with what it said."""

        self._untold: deque[Event] = deque()

    def tell(self, event: Event) -> None:
        """Let the core hear an event, after those that were told before."""
        self._untold.append(event)

    def settle(self) -> None:
        """Let the core answer until nobody has anything to say."""
        while self._untold:
            self.num_events += 1
            event = self._untold.popleft()
            self.core, actions = kinds.step_kinds(self.core, event, now_s=self.now_s)
            self.listener(event, actions)
            for action in actions:
                claimant = self.claimants.get(action.name)
                if claimant is not None:
                    claimant.follow(action)

    def advance(self, until_s: float) -> bool:
        """Let the next thing happen, if it is due by then; say whether one was."""
        deadline_s, next_s = next_deadline_of_kinds_s(self.core), self.queue.next_s
        due_s = min(deadline_s, next_s)
        if due_s > until_s or due_s == math.inf:
            return False
        self.pass_time(max(due_s, self.now_s))
        if deadline_s < next_s:
            self.tell(TimePassed())
        else:
            self.queue.pop()()
        self.settle()
        return True

    def pass_time(self, now_s: float) -> None:
        """Move on; nothing happens meanwhile."""
        passed_s = now_s - self.now_s
        if passed_s <= 0.0:
            return
        gone = self.gone
        for group in self.groups:
            there = group.bits.bit_count() - (group.bits & gone).bit_count()
            group.there_device_s += there * passed_s
        there = self.devices - gone.bit_count()
        self.accounts.spent["idle"] += (there - self.held) * passed_s
        self.now_s = now_s

    @property
    def held(self) -> int:
        """Devices that are somebody's."""
        return sum(one.held.bit_count() for one in self.core.pools.values())

    @property
    def gone(self) -> int:
        """Devices that are not there, as bits; a node that goes is there until it is left."""
        return sum(one.cordoned & ~one.foreign & ~one.held for one in self.core.pools.values())


Timer = list[Any]
"""``[at_s, number, call]``; the call is None once it is over or called off."""


class EventQueue:
    """Calls at moments of simulated seconds."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._number = 0

    def at(self, at_s: float, call: Callable[[], None]) -> Timer:
        """Let something happen at a moment; the timer can be called off."""
        self._number += 1
        timer: Timer = [at_s, self._number, call]
        heapq.heappush(self._heap, timer)
        return timer

    @property
    def next_s(self) -> float:
        """When the next call is due; inf: never."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def pop(self) -> Callable[[], None]:
        """Return the next call; there must be one."""
        timer = heapq.heappop(self._heap)
        call: Callable[[], None] = timer[2]
        timer[2] = None
        return call


def call_off(timer: Timer | None) -> None:
    """Let something not happen; None, or what has happened already, changes nothing."""
    if timer is not None:
        timer[2] = None
