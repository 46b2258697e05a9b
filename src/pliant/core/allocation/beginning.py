"""What a pool is before anybody has a claim, as a value: its core is made of it, live and replayed.

Owns the order in which what is set takes effect.  Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.allocation import kinds
from pliant.core.allocation.kinds import KindedPool
from pliant.core.allocation.values import CLASSES, Event, PoolRules, PriorityClass, Team


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBeginning:
    """All that the core of a pool begins with."""

    devices: int
    """As many as there ever were."""

    kinds: tuple[str, ...] = ()
    """Of each device, by its number; empty: none has a kind."""

    classes: tuple[PriorityClass, ...] = CLASSES
    teams: tuple[Team, ...] = ()
    rules: PoolRules = PoolRules()  # noqa: RUF009 - frozen
    is_open: bool = True
    """False: nothing is given or taken before ``Opened``."""

    events: tuple[Event, ...] = ()
    """What is set besides."""


def begun(beginning: PoolBeginning, *, now_s: float) -> KindedPool:
    """Return the pool that begins like this.

    Raises:
        ConfigError: something of it is impossible.
    """
    pool = kinds.new_kinded_pool(
        beginning.devices,
        kinds=beginning.kinds,
        classes=beginning.classes,
        teams=beginning.teams,
        rules=beginning.rules,
        is_open=beginning.is_open,
    )
    for event in beginning.events:
        pool, _ = kinds.step_kinds(pool, event, now_s=now_s)
    return pool
