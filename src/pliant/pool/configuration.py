"""What is set for a pool: how many devices, which are out of use, teams and classes.

Owns the core as it is before anybody has a claim.  Decides nothing; the values themselves are a
``SavedPool``, of which a request makes another.
"""

from __future__ import annotations

from pliant.core import allocation
from pliant.core.allocation import (
    Cordoned,
    DevicesSet,
    Drained,
    Event,
    PriorityClass,
    Reclaim,
    Team,
)
from pliant.core.allocation.values import From
from pliant.pool.state import SavedPool
from pliant.spec.pool import TeamEntry

RECLAIM_FROM: dict[str, From] = {
    "LowerPriority": "lower_priority",
    "SameTeam": "same_team",
    "Never": "never",
}


def numbered(saved: SavedPool) -> SavedPool:
    """Return the same with the number of devices that there ever were."""
    held = [device for claim in saved.claims for device in claim.devices]
    number = max([saved.number, saved.size, saved.devices, *(device + 1 for device in held)])
    return saved.model_copy(
        update={
            "number": number,
            "cordoned": tuple(device for device in saved.cordoned if device < number),
            "drained": tuple(device for device in saved.drained if device < number),
        }
    )


def classes_of(saved: SavedPool) -> dict[str, int]:
    """Return all priority classes with their values, most important first."""
    known = {one.name: one.value for one in allocation.CLASSES} | saved.classes
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def core_of(saved: SavedPool, *, now_s: float) -> allocation.Pool:
    """Return a pool that is set like this, and gives and takes nothing before it is opened."""
    core = allocation.new_pool(
        saved.number,
        classes=[PriorityClass(name=name, value=v) for name, v in classes_of(saved).items()],
        teams=[team_of(entry) for entry in saved.teams],
        is_open=False,
    )
    events: list[Event] = [DevicesSet(count=saved.devices)]
    events += [Cordoned(devices=saved.cordoned)] if saved.cordoned else []
    events += [Drained(devices=saved.drained)] if saved.drained else []
    for event in events:
        core, _ = allocation.step(core, event, now_s=now_s)
    return core


def team_of(entry: TeamEntry) -> Team:
    """Translate what a file or a person says of a team."""
    by = entry.reclaim.by
    return Team(
        name=entry.name,
        quota=entry.quota,
        borrow_limit=entry.borrow_limit,
        reclaim=Reclaim(
            from_=RECLAIM_FROM[entry.reclaim.from_], by=None if by is None else tuple(by)
        ),
    )
