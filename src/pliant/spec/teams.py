"""Teams of a file, translated into those of the core: once, for whatever allocates devices."""

from __future__ import annotations

from pliant.core import allocation
from pliant.core.allocation.values import From
from pliant.spec.pool import TeamEntry

RECLAIM_FROM: dict[str, From] = {
    "LowerPriority": "lower_priority",
    "SameTeam": "same_team",
    "Never": "never",
}


def team_of(entry: TeamEntry) -> allocation.Team:
    """Translate what a file or a person says of a team."""
    from_, by = RECLAIM_FROM[entry.reclaim.from_], entry.reclaim.by
    return allocation.Team(
        name=entry.name,
        quota=entry.quota,
        borrow_limit=entry.borrow_limit,
        reclaim=allocation.Reclaim(from_=from_, by=None if by is None else tuple(by)),
    )
