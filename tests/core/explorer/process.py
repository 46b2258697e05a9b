"""A small model of one worker: what the engine's threads would do, around the real core.member.

Abstract steps only: a step is *compute and vote*, *metadata completes here*, *tail and boundary*.
A collective is a set of posts: it completes on a member once all members have posted, on each at a
moment of its own; it fails on a member when a peer died or abandoned the group, even if all had
posted.  So it may complete on some and fail on others.

Values are interned to small integers (``Pool``), which keeps worlds cheap to hash.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from pliant.core.events import ExitKind
from pliant.core.values import NO_INCARNATION, Incarnation, ReplicaId

T = TypeVar("T", bound=Hashable)


class Pool(Generic[T]):
    """Numbers values as they are met; equal values have one number."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self._values: list[T] = []

    def put(self, value: T) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._values)
            self._values.append(value)
        return number

    def __getitem__(self, number: int) -> T:
        return self._values[number]


Post = tuple[int, str, int, object]
"""Generation, kind of collective, round in it, and what this member contributes."""


class Process(NamedTuple):
    """One worker as the world sees it."""

    name: ReplicaId
    member: int
    """Number of its core.member value."""
    phase: str = "starting"
    """starting, spare, computing (tail included), voted, header, transfer, loading, held, broken,
    leaver, finished, dead."""

    home: int = -1
    """Number of the order it trains in; -1 for none."""

    going: int = -1
    """Number of the order it is entering."""

    boundary: int = 0
    """Generation that the last metadata said to enter before the next step."""

    round: int = 0
    """Null rounds it took part in, held."""

    resolution: int = -1
    posts: tuple[Post, ...] = ()
    abandoned: tuple[int, ...] = ()
    inbox: tuple[int, ...] = ()
    outbox: tuple[int, ...] = ()
    exit: ExitKind | None = None
    """How it ended, until the coordinator has heard of it."""

    finishing: bool = False
    """Its script has done the last step: once released it comes to its end."""

    released: bool = False
    stop_seen: bool = False
    """It knows that all stop after the step it has committed last."""

    asked: bool = False
    """Whether its last vote asked for that."""

    doomed: bool = False
    """The agent was told to end it and has not yet."""

    hung: bool = False
    locked_at: int = -1
    """Since when its script keeps the interpreter lock, so that its agent speaks for it."""

    stalled: bool = False
    """One of its workers never comes to what the others wait for: it lives, and says so."""

    slow: int = 0
    """How many times as long as the others it takes, in tenths; 0: it does not."""

    paces: tuple[int, ...] = ()
    """What the members of the generation it is entering have said of their times."""

    division: int = -1
    """Number of the division of slots it goes by, where they are divided by speed."""

    spare: int = -1
    """Number of the Spare it said last."""

    looked: tuple[Incarnation, int] = (NO_INCARNATION, 0)
    """Whose ListCheckpoints, and which, it has heard last."""

    saving: bool = False
    """Has asked whether a checkpoint may be published, and waits for the answer."""

    saved_calls: int = 0
    """Finished ``steps()`` calls when that checkpoint was taken."""

    skip_calls: int = 0
    """Number of ``steps()`` calls it was told to pass through."""

    node: int = 0
    """Number of the node that runs it."""

    unreaped: bool = False
    """It is dead, and its agent never hears of that: its device stays taken."""

    @property
    def is_locked(self) -> bool:
        """Whether its threads come to do nothing, though it lives, and its agent says so."""
        return self.locked_at >= 0

    @property
    def alive(self) -> bool:
        return self.phase != "dead"
