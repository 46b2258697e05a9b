"""The log of a pool that never was: told what a scene says, recorded as a driver does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pliant.core.allocation import (
    Asked,
    Claim,
    DevicesSet,
    Event,
    Opened,
    Released,
    Team,
    TimePassed,
    Withdrawn,
)
from pliant.core.allocation.kinds import PoolBeginning
from pliant.machine.clock import Clock
from pliant.observe.log import Journal
from pliant.pool.allocator import Allocator

STARTED_AT = 1_767_225_600.0

BEGINNING = PoolBeginning(
    devices=4,
    teams=(Team(name="vision", quota=2),),
    is_open=False,
    events=(DevicesSet(count=4),),
)


def claim(name: str, low: int, high: int, **more: object) -> Claim:
    return Claim(name=name, min_replicas=low, ask_replicas=high, since=0.0, **more)  # type: ignore[arg-type]


SCENE: list[tuple[float, Event]] = [
    (0.0, Opened()),
    (1.25, Asked(claim=claim("gpt", 1, 8, num_slots=64))),
    (
        10.0,
        Asked(claim=claim("cnn", 2, 2, kind="fixed", team="vision", priority="low")),
    ),
    (12.0, Released(name="gpt", devices=(2, 3))),
    (90.0, TimePassed()),
    (100.0, Withdrawn(name="cnn")),
    (100.0, Released(name="cnn", devices=(2, 3))),
]
"""A job takes all, somebody of a team takes the team's own, and gives it back."""


class SceneTime:
    """Monotonic seconds that a scene sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def a_pool(
    path: Path,
    scene: Sequence[tuple[float, Event]] = SCENE,
    beginning: PoolBeginning = BEGINNING,
) -> Path:
    """Leave the log of a pool that was told this."""
    time = SceneTime()
    allocator = allocator_of(path, beginning, time)
    allocator.write_beginning()
    for at_s, event in scene:
        time.now_s = at_s
        allocator.apply(event)
    allocator.log.close()
    return path


def allocator_of(path: Path, beginning: PoolBeginning, time: SceneTime) -> Allocator:
    """Return what drives the core of a pool live, with its log."""
    log = Journal(path, job="default", wall=lambda: STARTED_AT + time.now_s, monotonic=time)
    log.write("pool_started", name="default", devices=beginning.devices)
    return Allocator(
        beginning=beginning, log=log, clock=_SceneClock(time), on_overdue=lambda overdue: None
    )


class _SceneClock(Clock):
    """One that does not take a long scene for sleep."""

    def __init__(self, time: SceneTime) -> None:
        super().__init__(time)
        self._time = time

    def now_s(self) -> float:
        return self._time.now_s
