"""What a pool cannot do: claims that can never be met, and settings that contradict each other.

Owns the sentences.  A claimant's mistake is the reason of a ``Refuse``; an operator's is a
``ConfigError``, and the pool stays as it is.  What one number or name may be by itself those check
who read it: ``wire.offers``, ``spec.pool``, ``pool.admin``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pliant.core.allocation import demand
from pliant.core.allocation.state import Pool
from pliant.core.allocation.values import Claim, Team
from pliant.core.errors import ConfigError
from pliant.core.tenancy import DEFAULT_TEAM
from pliant.core.text import counted

MOST_LISTED = 16
"""Sizes of a claim that a sentence repeats; it may have thousands."""


def refusal(pool: Pool, claim: Claim) -> str:
    """Return why this claim can never be met, or nothing."""
    return _contradiction(claim) or _misfit(pool, claim)


def require_team(pool: Pool, team: Team) -> None:
    """Refuse a team that names an unknown class, or cannot hold a minimum; looks at every claim."""
    for name in team.reclaim.by or ():
        if name not in pool.classes:
            raise ConfigError(
                f"team {team.name}: reclaim.by names {name!r}, which is no priority class; "
                f"there are {_names(pool.classes)}"
            )
    for name, entry in sorted(pool.entries.items()):
        if entry.claim.team == team.name and not entry.is_withdrawn and entry.base > team.limit:
            raise ConfigError(
                f"team {team.name}: {_limit(team)} is below the minimum of {entry.base} "
                f"of its claim {name}; raise it to {entry.base} or withdraw the claim"
            )


def require_no_claims(pool: Pool, team: str) -> None:
    """Refuse that a team goes that is not there, is the default, or has claims."""
    if team not in pool.teams:
        raise ConfigError(f"there is no team {team!r} to remove; there are {_names(pool.teams)}")
    if team == DEFAULT_TEAM:
        raise ConfigError("the team default cannot be removed; set another quota for it")
    used = sorted(name for name, entry in pool.entries.items() if entry.claim.team == team)
    if used:
        raise ConfigError(f"team {team} still has claims: {', '.join(used[:5])}; withdraw them")


def _contradiction(claim: Claim) -> str:
    low, ask, sizes = claim.min_replicas, claim.ask_replicas, claim.sizes
    if 0 < ask < low:
        return f"it asks for {ask}, which is below its minimum of {low}"
    if claim.kind == "fixed" and ask not in (0, low):
        return f"a fixed claim asks for exactly its minimum, got min {low} and ask {ask}"
    if claim.num_slots is not None and claim.num_slots < low:
        return f"its minimum of {low} is above the {claim.num_slots} micro-batches of its step"
    if sizes is None:
        return ""
    if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
        return f"sizes must be ascending numbers from 1 on, got {_listed(sizes)}"
    if not any(low <= size <= (ask or size) for size in sizes):
        return f"none of its sizes {_listed(sizes)} lies between {low} and the {ask} it asks for"
    return ""


def _listed(sizes: tuple[int, ...]) -> str:
    """Return the first few."""
    more = ", ..." if len(sizes) > MOST_LISTED else ""
    return f"[{', '.join(map(str, sizes[:MOST_LISTED]))}{more}]"


def _misfit(pool: Pool, claim: Claim) -> str:
    if claim.priority not in pool.classes:
        return f"there is no priority class {claim.priority!r}; there are {_names(pool.classes)}"
    if claim.team not in pool.teams:
        return f"there is no team {claim.team!r}; there are {_names(pool.teams)}"
    low, team = demand.base(claim), pool.teams[claim.team]
    if low > pool.size:
        return f"it needs at least {counted(low)}, and the pool has {pool.size}"
    if low > team.limit:
        return f"it needs at least {counted(low)}, and team {team.name} has {_limit(team)}"
    return ""


def _limit(team: Team) -> str:
    return f"a limit of {team.limit} (quota {team.quota or 0}, borrow_limit {team.borrow_limit})"


def _names(known: Iterable[str]) -> str:
    return ", ".join(sorted(known))
