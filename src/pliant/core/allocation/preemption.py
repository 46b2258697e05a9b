"""What a claim may take from others, and from whom it does.

Owns the rules of preemption: who may take what (``objection`` says which rule stands in the way),
the order of victims, and that no more is taken than is needed.  Knows nothing of single devices.

It mirrors a cluster in which every job has one workload for its minimum and one for each further
replica (Kueue's ClusterQueues): a quota is a nominal quota, all teams are one cohort, and a victim
that turns out not to be needed is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

from pliant.core.allocation.draft import Draft
from pliant.core.allocation.state import CUTTABLE, DROPPABLE, NEVER, ClaimEntry, Key

Rank = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeRequest:
    """Something that one claim wants next."""

    entry: ClaimEntry
    count: int
    is_minimum: bool
    """Whether the claim is below its minimum without it."""

    gain: float
    """What each device of it is worth; for increments only."""

    is_owed: bool
    """Whether its team stays within its quota with it."""

    @property
    def rank(self) -> Rank:
        """Its place in the queue."""
        claim = self.entry.claim
        key = (claim.since if self.is_minimum else -self.gain, claim.since, claim.name)
        return rank(self.entry.value, key, is_owed=self.is_owed, is_minimum=self.is_minimum)


def rank(value: int, key: Key, *, is_owed: bool, is_minimum: bool) -> Rank:
    """Return the place of a request in the queue; the smallest is served first.

    What a team is owed goes before what it would borrow; then the class; then minimums before
    increments; then, by the ``key`` in WAITING or GROWING, the older minimum, or the increment
    that is worth more.
    """
    return (not is_owed, -value, not is_minimum, key[0], *key[-2:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A victim before and after."""

    before: ClaimEntry
    after: ClaimEntry

    @property
    def count(self) -> int:
        """Devices that it gives."""
        return self.before.share - self.after.share


def is_owed(draft: Draft, team: str, count: int) -> bool:
    """Say whether so many more devices would be the team's own."""
    return draft.teams[team].quota is not None and draft.owed(team) >= count


class Bar(StrEnum):
    """The rule that keeps a request from taking of some claims."""

    NONE = "none"
    NEVER = "reclaim.from=never"
    BY = "reclaim.by"
    MINIMUM = "a minimum for a minimum"
    SAME_TEAM = "reclaim.from=same_team"
    QUOTA = "quota"
    CLASS = "priority class"


def bar(
    draft: Draft,
    request: TakeRequest,
    kind: str,
    team: str,
    value: int,
    *,
    among_equals: bool = False,
) -> Bar:
    """Return the rule that keeps the request from taking of such claims, if there is one.

    Of what is above a minimum (``kind`` CUTTABLE) or of minimums (DROPPABLE), in this team and
    class.  ``among_equals``: an increment may take from its own class, because that pays.
    """
    claim, asks = request.entry.claim, request.entry.value
    reclaim = draft.teams[claim.team].reclaim
    if reclaim.from_ == "never":
        return Bar.NEVER
    if reclaim.by is not None and claim.priority not in reclaim.by:
        return Bar.BY
    if kind == DROPPABLE and not request.is_minimum:
        return Bar.MINIMUM
    if team != claim.team:
        if reclaim.from_ == "same_team":
            return Bar.SAME_TEAM
        if draft.teams[team].quota is not None and draft.owed(team) >= 0:
            return Bar.QUOTA
        if request.is_owed:
            return Bar.NONE
    may_equal = kind == CUTTABLE and (request.is_minimum or among_equals)
    if value < asks or (value == asks and may_equal):
        return Bar.NONE
    return Bar.CLASS


def objection(draft: Draft, request: TakeRequest, kind: str, team: str, value: int) -> str:
    """Return ``bar`` as a sentence, or nothing if the request may take."""
    claim = request.entry.claim
    match bar(draft, request, kind, team, value):
        case Bar.NONE:
            return ""
        case Bar.NEVER:
            return f"team {claim.team} never takes (reclaim.from=never)"
        case Bar.BY:
            classes = ", ".join(draft.teams[claim.team].reclaim.by or ()) or "nobody"
            return f"team {claim.team} lets only {classes} take, not {claim.priority} (reclaim.by)"
        case Bar.MINIMUM:
            return "they are a minimum, which only another claim's minimum may preempt"
        case Bar.SAME_TEAM:
            return f"team {claim.team} takes from its own claims only (reclaim.from=same_team)"
        case Bar.QUOTA:
            used, quota = draft.used.get(team, 0), draft.teams[team].quota
            return f"team {team} is within its quota ({used} of {quota})"
        case Bar.CLASS:
            theirs = (one.name for one in draft.classes.values() if one.value == value)
            return f"{min(theirs, default='theirs')} is not below {claim.priority}"
        case unknown:
            assert_never(unknown)


def take_from_others(draft: Draft, request: TakeRequest) -> tuple[Cut, ...] | None:
    """Cut others until the request fits, or return None and leave everything as it was.

    Increments go first: lowest class, then newest claim.  A minimum goes only if that is not
    enough, and only for a minimum: first of those that hold nothing yet, then of those that can be
    suspended.  Where a team is at its limit, it makes room itself.
    """
    short = Shortage(draft, request)
    own, anywhere = reach(draft, request)
    if own < short.own or anywhere < short.anywhere:
        return None
    cuts: list[Cut] = []
    for kind in (CUTTABLE, DROPPABLE):
        while short.is_left:
            victim = _next_victim(draft, request, kind, short)
            if victim is None:
                break
            cuts.append(_cut(draft, request, victim, kind, short))
    if short.is_left:
        undo(draft, cuts)
        return None
    return _spared(draft, cuts, short)


def take_singly(draft: Draft, request: TakeRequest) -> tuple[Cut, ...]:
    """Cut others by up to what is asked for, as far as each gives neither more nor less than that.

    Ends before a victim that only takes certain sizes, or whose team is at a limit of its own.
    """
    short = Shortage(draft, request)
    cuts: list[Cut] = []
    while short.is_left:
        victim = _next_victim(draft, request, CUTTABLE, short)
        if victim is None or victim.claim.sizes is not None:
            break
        team = victim.claim.team
        if team != short.team and draft.teams[team].borrow_limit is not None:
            break
        cuts.append(_cut(draft, request, victim, CUTTABLE, short))
    return tuple(cuts)


def undo(draft: Draft, cuts: list[Cut]) -> None:
    """Leave everything as it was before these."""
    for cut in reversed(cuts):
        draft.put(cut.before)


class Shortage:
    """What is still missing for a request: in the pool, and within its team's limit."""

    def __init__(self, draft: Draft, request: TakeRequest) -> None:
        self.draft, self.request = draft, request
        self.team = request.entry.claim.team

    @property
    def anywhere(self) -> int:
        """Devices missing in the pool; negative: so many are left over."""
        return self.request.count - self.draft.slack

    @property
    def own(self) -> float:
        """Devices missing below the limit of the team; negative: so many are left over."""
        return self.request.count - self.draft.room(self.team)

    @property
    def is_left(self) -> bool:
        """Whether anything is missing."""
        return self.anywhere > 0 or self.own > 0


def reach(draft: Draft, request: TakeRequest) -> tuple[int, int]:
    """Return how many devices a request could take at most, of its own team and in all.

    Costs what there are lists, once for all requests of one team, class and kind.
    """
    claim = request.entry.claim
    key = (claim.team, claim.priority, request.is_minimum, request.is_owed)
    known = draft.reach.get(key)
    if known is not None:
        return known
    own = anywhere = 0
    for (kind, team, value), count in draft.takeable.items():
        if bar(draft, request, kind, team, value) is Bar.NONE:
            anywhere += count
            own += count if team == claim.team else 0
    draft.reach[key] = own, anywhere
    return own, anywhere


def shed(draft: Draft, team: str | None, reason: str) -> None:
    """Cut claims until their team is within its limit, or until the pool has what it promised.

    Borrowed devices first, then the order of ``take_from_others``.  What cannot be cut any further
    stays.  Without a team: all claims.
    """

    def excess() -> float:
        return -draft.slack if team is None else -draft.room(team)

    cuts: list[Cut] = []
    for kind in (CUTTABLE, DROPPABLE):
        while excess() > 0:
            found = [
                (draft.teams[whose].quota is not None and draft.owed(whose) >= 0, value, keys[0])
                for (whose, value), keys in draft.lists[kind].items()
                if team is None or whose == team
            ]
            if not found:
                break
            victim = draft.entry(min(found)[-1][-1])
            wanted = int(excess())
            share = victim.lower(wanted) if kind == CUTTABLE else 0
            why = f"{_described(draft, victim, share)}: {reason}"
            cuts.append(Cut(before=victim, after=draft.set_share(victim, share, reason=why)))
    for cut in reversed(cuts):
        _give_back(draft, cut, -int(excess()))


def _next_victim(
    draft: Draft, request: TakeRequest, kind: str, short: Shortage
) -> ClaimEntry | None:
    """Return who is to give next: lowest class, newest claim."""
    only_own = short.anywhere <= 0 or short.own > 0
    found = [
        (value, keys[0])
        for (team, value), keys in draft.lists[kind].items()
        if (team == short.team or not only_own)
        and bar(draft, request, kind, team, value) is Bar.NONE
    ]
    return draft.entry(min(found)[-1][-1]) if found else None


def _cut(draft: Draft, request: TakeRequest, victim: ClaimEntry, kind: str, short: Shortage) -> Cut:
    """Take what is missing from one victim, no more than its team has borrowed."""
    claim, team = request.entry.claim, victim.claim.team
    wanted: float = short.anywhere
    if team == short.team:
        wanted = max(wanted, short.own)
    elif draft.teams[team].quota is not None:
        wanted = min(wanted, -draft.owed(team))
    share = victim.lower(int(wanted)) if kind == CUTTABLE else 0
    need = f"asks for {claim.ask_replicas}"
    if request.is_minimum:
        need = f"needs its minimum of {request.entry.base}"
    why = f"{_described(draft, victim, share)}: {claim.priority} claim {claim.name} {need}"
    if team != claim.team and request.is_owed:
        quota = draft.teams[claim.team].quota
        why += f", and team {claim.team} takes back what it lent of its quota of {quota}"
    if kind == DROPPABLE:
        why += ", and nobody has more than a minimum to give"
    after = draft.set_share(victim, share, for_=claim.name, reason=why)
    draft.takings += 1
    return Cut(before=victim, after=after)


def _spared(draft: Draft, cuts: list[Cut], short: Shortage) -> tuple[Cut, ...]:
    """Give back what was taken without need, to the last victims first; return who is left."""
    kept: list[Cut] = []
    for cut in reversed(cuts):
        surplus = -short.anywhere
        if cut.before.claim.team == short.team and short.own > -NEVER:
            surplus = min(surplus, -int(short.own))
        left = _give_back(draft, cut, surplus)
        if left is not None:
            kept.append(left)
    return tuple(reversed(kept))


def _give_back(draft: Draft, cut: Cut, surplus: int) -> Cut | None:
    """Undo a cut as far as ``surplus`` devices allow; return what is left of it."""
    if surplus <= 0 or draft.entry(cut.after.name) != cut.after:
        return cut
    if cut.count <= surplus:
        draft.put(cut.before)
        return None
    share = cut.after.fit(cut.after.share + surplus)
    if share <= cut.after.share:
        return cut
    why = f"{_described(draft, cut.before, share)}:{cut.after.reason.partition(':')[2]}"
    for_ = draft.for_.get(cut.after.name, "")
    return Cut(before=cut.before, after=draft.set_share(cut.after, share, for_=for_, reason=why))


def _described(draft: Draft, victim: ClaimEntry, share: int) -> str:
    before = draft.share_before(victim.name) or victim.share
    if share:
        return f"shrink from {before} to {share}"
    return f"suspend, and give back {before}" if victim.held else "wait again"
