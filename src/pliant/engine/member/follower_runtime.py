"""Follower runtime: what a follower does of the protocol, as worker 0 says.

Owns its groups with the followers of the same local rank in other replicas: their connecting in the
background, and giving them up; and what of a state's handover worker 0 is told.  Must not know
which generations are wanted, or what is exchanged.

    inner channel's thread   build, abandon
    builder threads          one per generation: connect, then answer Built or NotBuilt
    main thread              connected, enter
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pliant.core.events import Event, Refused, Unrestorable
from pliant.core.membership.follower_answers import Answer, Built, NotBuilt
from pliant.core.membership.member import Member
from pliant.core.membership.resolve import Resolution
from pliant.core.values import Generation, Order, ReplicaId
from pliant.engine.comm.group import Group
from pliant.engine.member.formed import Shape, window_size_for
from pliant.engine.member.group_builds import GroupBuilds
from pliant.engine.worker.bootstrap import WorkerContext
from pliant.wire.messages import WorkerNote


class FollowerGroups:
    """See the module's text; one per follower."""

    def __init__(
        self,
        context: WorkerContext,
        shape: Shape,
        *,
        say: Callable[[Answer], None],
        committed: Callable[[], int],
    ) -> None:
        """``say``: to worker 0; ``committed``: how many steps, for the fault points."""
        self._place = context.assignment.place
        self._say = say
        self._lock = threading.RLock()
        self._wanted: set[Generation] = set()
        self._connected: dict[Generation, Group] = {}
        """Also what was given up since: worker 0 may have entered it before it knew."""
        self._builds = GroupBuilds(
            context.replica,
            context.assignment.address,
            shape.layout,
            lambda order: window_size_for(order, shape, context.replica),
            on_built=self._after_build,
            committed=committed,
            tls=context.tls,
            exchange=context.assignment.work.exchange,
        )
        self.endpoint = self._builds.endpoint
        """Where the followers of this place in other replicas reach this one."""

    def build(self, order: Order, secret: str) -> None:
        """Connect the group of a generation, and answer."""
        with self._lock:
            self._wanted.add(order.generation)
            self._builds.learn(order.generation, secret)
            self._builds.start(order)

    def abandon(self, generation: Generation) -> None:
        """Give up a generation, whatever waits in it."""
        with self._lock:
            self._wanted.discard(generation)
            self._builds.abandon(generation)

    def connected(self, order: Order) -> Group:
        """Return the group that worker 0 goes on with; it may be of no more use."""
        with self._lock:
            return self._connected[order.generation]

    def enter(self, order: Order) -> Group:
        """Be in a generation; that its group was given up since shows at the first use of it."""
        with self._lock:
            group = self._connected[order.generation]
            if order.generation in self._wanted:
                self._builds.enter(order)
            newer = {g: one for g, one in self._connected.items() if g > order.generation}
            self._connected = newer
            return group

    def _after_build(
        self, order: Order, group: Group | None, reason: str, unreached: tuple[ReplicaId, ...]
    ) -> None:
        place, generation = self._place, order.generation
        with self._lock:
            if group is not None and generation not in self._wanted:
                group.abandon("no longer wanted")
                self._builds.keep(order, None)
                return
            self._builds.keep(order, group)
            if group is not None:
                self._connected[generation] = group
        if group is not None:
            self._say(Built(place=place, generation=generation))
        else:
            self._say(
                NotBuilt(place=place, generation=generation, reason=reason, unreached=unreached)
            )


class PartFailure(Protocol):
    """Tells worker 0 that this place's part did not come about."""

    def __call__(self, generation: Generation, reason: str, **kind: bool) -> None:
        """``kind``: as the fields of ``Failed``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerRuntime:
    """See the module's text."""

    now: Callable[[], Member]
    fail: PartFailure
    received: Callable[[Generation], None]

    @property
    def member(self) -> Member:
        """As of worker 0."""
        return self.now()

    def tell(self, message: Event | WorkerNote) -> None:
        """Tell worker 0 why this place takes no state."""
        if isinstance(message, Refused) and message.replica == self.member.replica:
            self.fail(message.generation, message.reason, is_refusal=True)
        elif isinstance(message, Unrestorable):
            self.fail(message.generation, message.reason, is_damage=True)

    def tell_busy(self, max_s: float) -> None:
        """Worker 0 tells."""

    def receive(self, order: Order, resolution: Resolution) -> None:
        """Tell that this place has its part."""
        del resolution
        self.received(order.generation)
