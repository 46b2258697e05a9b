"""What people have ordered of a pool: how many devices, which are out of use, teams and classes.

Owns these values, and the core as it is before anybody has a claim.  Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pliant.core import allocation
from pliant.core.allocation import Cordoned, DevicesSet, Drained, Event, PriorityClass
from pliant.pool.claims import team_of
from pliant.pool.state import Given, SavedPool
from pliant.spec.pool import TeamEntry


@dataclass(slots=True, kw_only=True)
class Orders:
    """Everything that is set by people, files and traces."""

    given: Given
    """What it was started with."""

    size: int
    """Devices that the pool has when all are there."""

    limit: int
    """Devices that may be in use now."""

    number: int
    """Devices that there ever were, and whose locks are looked at."""

    follows: str = ""
    """What sets the limit, if not people: a file, a trace."""

    trace_began_at: float | None = None
    cordoned: set[int] = field(default_factory=set)
    drained: set[int] = field(default_factory=set)
    teams: dict[str, TeamEntry] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    """Those that were set, beside the ones that every pool has."""

    @classmethod
    def of(cls, saved: SavedPool, *, follows: str = "") -> Orders:
        """Return those that an earlier life, or the command line, has left."""
        held = [device for claim in saved.claims for device in claim.devices]
        number = max([saved.number, saved.size, saved.devices, *(device + 1 for device in held)])
        return cls(
            given=saved.given,
            size=saved.size,
            limit=saved.devices,
            number=number,
            follows=follows,
            trace_began_at=saved.trace_began_at,
            cordoned={device for device in saved.cordoned if device < number},
            drained={device for device in saved.drained if device < number},
            teams={team.name: team for team in saved.teams},
            classes=dict(saved.classes),
        )

    @property
    def all_classes(self) -> dict[str, int]:
        """Return the priority classes with their values, most important first."""
        known = {one.name: one.value for one in allocation.CLASSES} | self.classes
        return dict(sorted(known.items(), key=lambda item: -item[1]))

    def core(self, *, now_s: float) -> allocation.Pool:
        """Return a pool that has these orders, and gives and takes nothing before it is opened."""
        core = allocation.new_pool(
            self.number,
            classes=[PriorityClass(name=name, value=v) for name, v in self.all_classes.items()],
            teams=[team_of(entry) for entry in self.teams.values()],
            is_open=False,
        )
        events: list[Event] = [DevicesSet(count=self.limit)]
        events += [Cordoned(devices=tuple(sorted(self.cordoned)))] if self.cordoned else []
        events += [Drained(devices=tuple(sorted(self.drained)))] if self.drained else []
        for event in events:
            core, _ = allocation.step(core, event, now_s=now_s)
        return core
