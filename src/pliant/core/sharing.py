"""Who may do what with a pool that several users of a machine share, and how much of it.

Owns the rules: whose a claim is, what only the pool's owner may do, which teams and classes are for
whom, how long a claim may take to give back, how many claims one user has and how often it may
change its mind.  Must not know how a user
is recognised (the kernel says it), nor what anybody gets: that is ``core.allocation``'s.

    ada: claim gpt          -> ada/gpt: hers alone, whatever bob calls his own
    bob: team vision        -> refused, if the team is for ada and cy
    bob: pool stop          -> refused: the pool is its owner's
    bob: claim after claim  -> after some dozen changes: wait
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pliant.core.tenancy import Demand

MOST_CLAIMS = 64
"""Claims of one user at once; a person with a script has a few dozen jobs at most."""

BURST = 60
"""Changes of claims that one user makes without waiting: each is a line of the log."""

REST_S = 2.0
"""Seconds after which one more is possible."""

MOST_NOTICE_S = 3600.0
"""Longest notice of a claim in a pool of several users, in seconds: it is the claimant who sets it,
and the others who wait meanwhile.  No checkpoint takes an hour."""

Access = Mapping[str, tuple[str, ...]]
"""Who may use a team or a class, by its name; everybody may use those that are not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who asks something of a shared pool, by the kernel's word."""

    uid: int
    pid: int
    user: str
    is_owner: bool = False
    """It started the pool, or is root: it may do all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How many changes a user may still make now; a plain value."""

    left: float = BURST
    at_s: float = 0.0


def claim_name(user: str, name: str) -> str:
    """Return what a user's claim is called in the pool; no other user's can be called like it."""
    return f"{user}/{name}"


def is_of(user: str, claim: str) -> bool:
    """Whether a claim of the pool is this user's."""
    return claim.startswith(f"{user}/")


def administration_refusal(visitor: Visitor, *, owner: str) -> str:
    """Say why somebody may not change what is everybody's; nothing if it may."""
    if visitor.is_owner:
        return ""
    return f"only {owner}, whose pool it is, and root may do this; you are {visitor.user}"


def claim_refusal(
    visitor: Visitor, wanted: Demand, *, before: Demand | None, teams: Access, classes: Access
) -> str:
    """Say why somebody may not claim this; nothing if it may.

    What it has asked for ``before`` it may go on to ask for, whatever was changed since: else its
    reports were refused, and it could neither be told what to give back nor say that it has.
    """
    if visitor.is_owner:
        return ""
    team, priority = (before.team, before.priority) if before else (None, None)
    for what, name, had, access in (
        ("team", wanted.team, team, teams),
        ("class", wanted.priority, priority, classes),
    ):
        users = access.get(name)
        if name != had and users is not None and visitor.user not in users:
            whose = ", ".join(users) or "nobody but its owner"
            return f"{what} {name} is for {whose}, and you are {visitor.user}"
    most_s = max(MOST_NOTICE_S, before.notice_s if before else 0.0)
    if wanted.notice_s > most_s:
        return (
            f"a notice of {wanted.notice_s:g} s is too long for a pool that users share; ask for"
            f" {most_s:g} s at most"
        )
    return ""


def crowd_refusal(visitor: Visitor, *, claims: int) -> str:
    """Say why somebody may have no further claim; nothing if it may."""
    if claims < MOST_CLAIMS:
        return ""
    return f"{visitor.user} has {claims} claims, and may have no more than {MOST_CLAIMS} at once"


def spend(allowance: Allowance, *, now_s: float) -> tuple[Allowance, float]:
    """Make one change; return what is left, and 0, or in how many seconds it is possible.

    ``now_s`` is monotonic.
    """
    passed_s = max(0.0, now_s - allowance.at_s)
    left = min(float(BURST), allowance.left + passed_s / REST_S)
    allowance = replace(allowance, left=left, at_s=max(now_s, allowance.at_s))
    if left < 1.0:
        return allowance, (1.0 - left) * REST_S
    return replace(allowance, left=left - 1.0), 0.0
