"""Who gets which devices of a pool: claims, teams and devices in; grants and takings out.

The whole interface of the package.  ``step`` is the only way to change a pool:

    pool = new_pool(8)
    pool, actions = step(pool, Asked(claim=Claim(name="a", ask_replicas=8)), now_s=0.0)

Read one claim with ``standing``, why it has no more with ``why``, everything with ``summary``.
"""

from __future__ import annotations

from pliant.core.allocation.decide import new_pool, next_deadline_s, step
from pliant.core.allocation.standings import (
    Standing,
    Summary,
    TeamUse,
    claims,
    standing,
    summary,
    why,
)
from pliant.core.allocation.state import Pool
from pliant.core.allocation.values import (
    CLASSES,
    Action,
    Asked,
    Claim,
    ClassSet,
    Cordoned,
    DevicesSet,
    Drained,
    Event,
    Grant,
    Opened,
    Overdue,
    PoolRules,
    PriorityClass,
    Reclaim,
    Recovered,
    Refuse,
    Released,
    Shrink,
    Suspend,
    Team,
    TeamRemoved,
    TeamSet,
    TimePassed,
    Uncordoned,
    Withdrawn,
)

__all__ = [
    "CLASSES",
    "Action",
    "Asked",
    "Claim",
    "ClassSet",
    "Cordoned",
    "DevicesSet",
    "Drained",
    "Event",
    "Grant",
    "Opened",
    "Overdue",
    "Pool",
    "PoolRules",
    "PriorityClass",
    "Reclaim",
    "Recovered",
    "Refuse",
    "Released",
    "Shrink",
    "Standing",
    "Summary",
    "Suspend",
    "Team",
    "TeamRemoved",
    "TeamSet",
    "TeamUse",
    "TimePassed",
    "Uncordoned",
    "Withdrawn",
    "claims",
    "new_pool",
    "next_deadline_s",
    "standing",
    "step",
    "summary",
    "why",
]
