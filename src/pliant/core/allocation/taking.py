"""What a claim may take from others, and from whom it does.

Owns the rules of preemption: who may take what (``objection`` says which rule stands in the way),
the order of victims, and that no more is taken than is needed.  Knows nothing of single devices.

It mirrors a cluster in which every job has one workload for its minimum and one for each further
replica (Kueue's ClusterQueues): a quota is a nominal quota, all teams are one cohort, and a victim
that turns out not to be needed is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.allocation.draft import Draft
from pliant.core.allocation.state import CUTTABLE, DROPPABLE, NEVER, Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Something that one claim wants next."""

    entry: Entry
    count: int
    is_minimum: bool
    """Whether the claim is below its minimum without it."""

    gain: float
    """What each device of it is worth; for increments only."""

    is_owed: bool
    """Whether its team stays within its quota with it."""

    @property
    def rank(self) -> tuple[object, ...]:
        """Return the place in the queue; the smallest is served first.

        What a team is owed goes before what it would borrow; then the class; then minimums before
        increments; then the older minimum, or the increment that is worth more.
        """
        claim = self.entry.claim
        place = claim.since if self.is_minimum else -self.gain
        tail = (place, claim.since, claim.name)
        return (not self.is_owed, -self.entry.value, not self.is_minimum, *tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A victim before and after."""

    before: Entry
    after: Entry

    @property
    def count(self) -> int:
        """Devices that it gives."""
        return self.before.share - self.after.share


def is_owed(draft: Draft, team: str, count: int) -> bool:
    """Say whether so many more devices would be the team's own."""
    return draft.teams[team].quota is not None and draft.owed(team) >= count


def objection(
    draft: Draft,
    request: Request,
    kind: str,
    team: str,
    value: int,
    *,
    among_equals: bool = False,
) -> str:
    """Return the rule that keeps the request from taking of such claims, or nothing.

    Args:
        draft: the pool.
        request: who asks.
        kind: CUTTABLE, for what is above a minimum, or DROPPABLE, for a minimum.
        team: whose claims they are.
        value: value of their class.
        among_equals: whether an increment may take from its own class, because that pays.
    """
    own = request.entry.claim.team
    rule = _rule(draft, request)
    if rule:
        return rule
    if kind == DROPPABLE and not request.is_minimum:
        return "a minimum is only taken for another minimum"
    if team != own:
        if draft.teams[own].reclaim.from_ == "same_team":
            return f"team {own} takes from its own claims only (reclaim.from=same_team)"
        if draft.teams[team].quota is not None and draft.owed(team) >= 0:
            used, quota = draft.used.get(team, 0), draft.teams[team].quota
            return f"team {team} is within its quota ({used} of {quota})"
        if request.is_owed:
            return ""
    asks = request.entry.value
    may_equal = kind == CUTTABLE and (request.is_minimum or among_equals)
    if value < asks or (value == asks and may_equal):
        return ""
    return f"{_class_of(draft, value)} is not below {request.entry.claim.priority}"


def take(draft: Draft, request: Request) -> tuple[Cut, ...] | None:
    """Cut others until the request fits, or return None and leave everything as it was.

    Increments go first: lowest class, then newest claim.  A minimum goes only if that is not
    enough, and only for a minimum: first of those that hold nothing yet, then of those that can be
    suspended.  Where a team is at its limit, it makes room itself.
    """
    short = Shortage(draft, request)
    if not short.can_be_met():
        return None
    cuts: list[Cut] = []
    for kind in (CUTTABLE, DROPPABLE):
        while short.is_left:
            victim = _next_victim(draft, request, kind, short)
            if victim is None:
                break
            cuts.append(_cut(draft, request, victim, kind, short))
    if short.is_left:
        for cut in reversed(cuts):
            draft.put(cut.before)
        return None
    return _spared(draft, cuts, short)


class Shortage:
    """What is still missing for a request: in the pool, and within its team's limit."""

    def __init__(self, draft: Draft, request: Request) -> None:
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

    def can_be_met(self) -> bool:
        """Say whether all that may be taken would be enough; costs what there are lists."""
        own = anywhere = 0
        for (kind, team, value), count in self.draft.takeable.items():
            if objection(self.draft, self.request, kind, team, value):
                continue
            anywhere += count
            if team == self.team:
                own += count
        return own >= self.own and anywhere >= self.anywhere


def shed(draft: Draft, team: str | None, reason: str) -> None:
    """Cut claims until their team is within its limit, or until the pool has what it promised.

    Borrowed devices first, then the order of ``take``.  What cannot be cut any further stays.

    Args:
        draft: the pool.
        team: only its claims; None: all.
        reason: one sentence's beginning.
    """

    def excess() -> float:
        return -draft.slack if team is None else -draft.room(team)

    cuts: list[Cut] = []
    for kind in (CUTTABLE, DROPPABLE):
        while excess() > 0:
            found = [
                (draft.teams[whose].quota is not None and draft.owed(whose) >= 0, value, keys.first)
                for (whose, value), keys in draft.lists[kind].items()
                if team is None or whose == team
            ]
            if not found:
                break
            victim = draft.entry(min(found)[-1][-1])
            wanted = int(excess())
            share = victim.lower(wanted) if kind == CUTTABLE else 0
            why = f"{_told(draft, victim, share)}: {reason}"
            cuts.append(Cut(before=victim, after=draft.set_share(victim, share, reason=why)))
    for cut in reversed(cuts):
        _give_back(draft, cut, -int(excess()))


def _rule(draft: Draft, request: Request) -> str:
    """Return why the team's own rule lets this claim take nothing at all, or nothing."""
    claim = request.entry.claim
    reclaim = draft.teams[claim.team].reclaim
    if reclaim.from_ == "never":
        return f"team {claim.team} never takes (reclaim.from=never)"
    if reclaim.by is not None and claim.priority not in reclaim.by:
        classes = ", ".join(reclaim.by) or "nobody"
        return f"team {claim.team} lets only {classes} take, not {claim.priority} (reclaim.by)"
    return ""


def _class_of(draft: Draft, value: int) -> str:
    return min((one.name for one in draft.classes.values() if one.value == value), default="it")


def _next_victim(draft: Draft, request: Request, kind: str, short: Shortage) -> Entry | None:
    """Return who is to give next: lowest class, newest claim."""
    only_own = short.anywhere <= 0 or short.own > 0
    found = [
        (value, keys.first)
        for (team, value), keys in draft.lists[kind].items()
        if (team == short.team or not only_own) and not objection(draft, request, kind, team, value)
    ]
    return draft.entry(min(found)[-1][-1]) if found else None


def _cut(draft: Draft, request: Request, victim: Entry, kind: str, short: Shortage) -> Cut:
    """Take what is missing from one victim, no more than its team has borrowed."""
    wanted: float = short.anywhere
    team = victim.claim.team
    if team == short.team:
        wanted = max(wanted, short.own)
    elif draft.teams[team].quota is not None:
        wanted = min(wanted, -draft.owed(team))
    share = victim.lower(int(wanted)) if kind == CUTTABLE else 0
    claim = request.entry.claim
    need = f"its minimum of {request.entry.base}" if request.is_minimum else "its increments"
    lent = "" if team == claim.team or not request.is_owed else ", lent by its team"
    why = f"{_told(draft, victim, share)}: {claim.priority} claim {claim.name} needs {need}{lent}"
    if kind == DROPPABLE:
        why += ", and no increments are left to take"
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
    why = f"{_told(draft, cut.before, share)}:{cut.after.reason.partition(':')[2]}"
    for_ = draft.for_.get(cut.after.name, "")
    return Cut(before=cut.before, after=draft.set_share(cut.after, share, for_=for_, reason=why))


def _told(draft: Draft, victim: Entry, share: int) -> str:
    if share:
        return f"shrink from {draft.share_before(victim.name) or victim.share} to {share}"
    return f"suspend, and give back {victim.share}" if victim.held else "wait again"
