"""Who may do what with a pool that several users of a machine share, and how much of it.

Owns the rules: whose a claim is, what only the pool's owner may do, which teams and classes are for
whom, how many claims one user has and how often it may change its mind.  Must not know how a user
is recognised (the kernel says it), nor what anybody gets: that is ``core.allocation``'s.

    ada: claim gpt          -> ada/gpt: hers alone, whatever bob calls his own
    bob: team vision        -> refused, if the team is for ada and cy
    bob: pool stop          -> refused: the pool is its owner's
    bob: claim after claim  -> after some dozen changes: wait
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

MOST_CLAIMS = 64
"""Claims of one user at once; a person with a script has a few dozen jobs at most."""

BURST = 60
"""Changes of claims that one user makes without waiting: each is a line of the log."""

REST_S = 2.0
"""Seconds after which one more is possible."""

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
    visitor: Visitor, *, team: str, priority: str, teams: Access, classes: Access
) -> str:
    """Say why somebody may not claim for this team and with this class; nothing if it may."""
    if visitor.is_owner:
        return ""
    for what, name, access in (("team", team, teams), ("class", priority, classes)):
        users = access.get(name)
        if users is not None and visitor.user not in users:
            whose = ", ".join(users) or "nobody but its owner"
            return f"{what} {name} is for {whose}, and you are {visitor.user}"
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
