"""Deciding after an event: who is to have how many devices, until nobody can be served better.

Owns the order of things: what cannot be kept is cut (``preemption.shed``), then every request is
served that can be, best rank first, from what is nobody's or from others; then devices move
between equals where that pays; at last, devices that are free go to those they are meant for.

    preemption.rank   what a team is owed, class, minimum, then age or gain
    holder            a claim that has waited for its minimum for long keeps later ones out

No request is tried twice for the same answer: claims whose requests differ in nothing that matters
share a list (``state.WAITING``, ``state.GROWING``), and only the first of a list is looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pliant.core.allocation import demand, state
from pliant.core.allocation.draft import Draft
from pliant.core.allocation.preemption import (
    Bar,
    Cut,
    Rank,
    TakeRequest,
    bar,
    is_owed,
    rank,
    shed,
    take_from_others,
    take_singly,
    undo,
)
from pliant.core.allocation.state import (
    CUTTABLE,
    EXPECTING,
    GROWING,
    IMPATIENT,
    RESTED,
    WAITING,
    ClaimEntry,
    Group,
    Key,
)
from pliant.core.text import counted

_MOST_TAKINGS = 8
"""Victims in one step, for each device there is, after which no more are looked for: a bound that
nothing has been seen to reach, so that a mistake here would cost a late answer and not a hang."""

MOST_AT_ONCE = 16
"""Devices that one step between equals may need; larger steps wait until something is idle."""


def settle(draft: Draft) -> None:
    """Decide all shares anew, as far as something can change, and hand devices out."""
    if not draft.is_open:
        return
    for team in [team for team in draft.teams if draft.room(team) < 0]:
        shed(draft, team, f"team {team} is limited to {counted(draft.teams[team].limit)}")
    if draft.slack < 0:
        shed(draft, None, f"only {counted(draft.usable)} may be in use")
    serve(draft)
    while rebalance(draft):
        if draft.slack > 0:
            serve(draft)
    rest(draft)
    deliver(draft)


# --- requests, best rank first


def serve(draft: Draft) -> None:
    """Serve requests until none can be."""
    queue = _queue(draft)
    while queue:
        _, kind, group = heapq.heappop(queue)
        next_place = _next_place(draft, queue, kind, group)
        if _served(draft, draft.first(kind, group), next_place):
            queue = _queue(draft)
    rest(draft)


def request_of(draft: Draft, entry: ClaimEntry) -> TakeRequest | None:
    """Return what a claim wants next; None: nothing."""
    if entry.is_withdrawn:
        return None
    if entry.is_waiting:
        count, gain = entry.base - entry.share, 0.0
    elif entry.share < entry.top:
        count, _, gain = entry.rise
    else:
        return None
    return TakeRequest(
        entry=entry,
        count=count,
        is_minimum=entry.is_waiting,
        gain=gain,
        is_owed=is_owed(draft, entry.claim.team, count),
    )


def holder(draft: Draft, request: TakeRequest) -> TakeRequest | None:
    """Return the request that this one must let pass first, if there is one.

    That is the first of those who have waited for their minimum for long, if it is only other
    claims that keep the devices from it, and not its team's limit or the size of the pool.  An
    increment may use what is idle meanwhile if it can be taken back.
    """
    for key in draft.lists[IMPATIENT].get((), ()):
        first = request_of(draft, draft.entry(key[-1]))
        if first is None or first.count > min(draft.room(first.entry.claim.team), draft.usable):
            continue
        if first.rank >= request.rank:
            return None
        level = (request.entry.claim.team, request.entry.value)
        if not request.is_minimum and bar(draft, first, CUTTABLE, *level) is Bar.NONE:
            return None
        return first
    return None


def _queue(draft: Draft) -> list[tuple[Rank, str, Group]]:
    queue = [
        (_rank(draft, kind, group, keys[0]), kind, group)
        for kind in (WAITING, GROWING)
        for group, keys in draft.lists[kind].items()
    ]
    heapq.heapify(queue)
    return queue


def _next_place(
    draft: Draft, queue: list[tuple[Rank, str, Group]], kind: str, group: Group
) -> Rank | None:
    """Return the rank of whoever comes after the first of a list; None: nobody."""
    places = [queue[0][0]] if queue else []
    keys = draft.lists[kind][group]
    if len(keys) > 1:
        places.append(_rank(draft, kind, group, keys[1]))
    return min(places, default=None)


def _rank(draft: Draft, kind: str, group: Group, key: Key) -> Rank:
    team, value, count = group[:3]
    return rank(value, key, is_owed=is_owed(draft, team, count), is_minimum=kind == WAITING)


def _served(draft: Draft, entry: ClaimEntry, next_place: Rank | None) -> bool:
    """Give a claim what it asks for, if that is possible."""
    request = request_of(draft, entry)
    if request is None or holder(draft, request) is not None:
        return False
    room = draft.room(entry.claim.team)
    if request.count <= min(draft.slack, room):
        share = entry.share + request.count
        if not request.is_minimum and not draft.lists[IMPATIENT]:
            share = _climb(draft, request, next_place, int(min(draft.slack, room)))
        return _give(draft, entry, share)
    if draft.takings > _MOST_TAKINGS * (draft.size + 1):
        return False
    if not request.is_minimum:
        if not request.gain:
            return False
        request = _useful(draft, entry)
        if _took_many(draft, request, next_place):
            return True
    cuts = take_from_others(draft, request)
    return cuts is not None and _give(draft, entry, entry.share + request.count, cuts)


def _useful(draft: Draft, entry: ClaimEntry) -> TakeRequest:
    """Return the request for the step of a claim that pays best: what is taken from others."""
    _, count, gain = entry.rise
    owed = is_owed(draft, entry.claim.team, count)
    return TakeRequest(entry=entry, count=count, is_minimum=False, gain=gain, is_owed=owed)


def _took_many(draft: Draft, request: TakeRequest, next_place: Rank | None) -> bool:
    """Take several steps at once, where one after the other would come to the same.

    That is so as long as it stays this claim's turn and only single devices are given and taken,
    so that nothing is left over in between that somebody else might have had.  A step that takes
    several devices to bring anything is taken whole or not at all, and so not here.
    """
    entry, room = request.entry, draft.room(request.entry.claim.team)
    if request.count > 1 or draft.lists[IMPATIENT] or entry.claim.sizes is not None or draft.slack:
        return False
    most = min(entry.top - entry.share, draft.size)  # it may ask for any number
    most = most if room <= 0 else int(min(room, most))
    share = _climb(draft, request, next_place, most, only_useful=True)
    cuts = take_singly(draft, replace(request, count=share - entry.share))
    count = sum(cut.count for cut in cuts)
    return count > 0 and _give(draft, entry, entry.share + count, cuts)


def _climb(
    draft: Draft,
    request: TakeRequest,
    next_place: Rank | None,
    room: int,
    *,
    only_useful: bool = False,
) -> int:
    """Return the size at which another claim's turn comes, or ``room`` is used up."""
    entry, claim = request.entry, request.entry.claim
    room = min(room, entry.top - entry.share)
    owed = draft.owed(claim.team)
    if owed > 0:
        room = min(room, max(owed, request.count))
    if next_place is None and not only_useful:
        return entry.fit(entry.share + room)
    at, most = entry.share + request.count, entry.share + room
    while at < most:
        more, useful, gain = demand.rise(claim.sizes, entry.top, claim.num_slots, at)
        if at + more > most or (only_useful and (useful != more or not gain)):
            break
        key = (-gain, claim.since, claim.name)
        turn = rank(entry.value, key, is_owed=request.is_owed, is_minimum=False)
        if next_place and turn > next_place:
            break
        at += more
    return at


# --- between equals


def rebalance(draft: Draft) -> bool:
    """Move one step's devices from claims to an equal that gains clearly more; say whether.

    The hungriest claim of each list is tried, greatest gain first.  Those who give have not
    changed for ``rest_s``, and lose what hurts least.  The sum of all worth rises by ``min_gain``
    with every move, so that this ends.
    """
    found = [
        keys[0]
        for (_, _, _, useful), keys in draft.lists[GROWING].items()
        if -keys[0][0] * useful >= draft.rules.min_gain
    ]
    return any(_moved(draft, draft.entry(name)) for _, _, name in sorted(found))


def _moved(draft: Draft, entry: ClaimEntry) -> bool:
    """Collect one useful step for a claim from its equals, if that pays."""
    request = _useful(draft, entry)
    useful, gain, team = request.count, request.gain, entry.claim.team
    budget = gain * useful - draft.rules.min_gain
    if useful > MOST_AT_ONCE or holder(draft, request) is not None:
        return False
    cuts: list[Cut] = []
    while (missing := useful - min(draft.slack, draft.room(team))) > 0:
        victim = _cheapest(draft, request, only_own=useful > draft.room(team))
        if victim is None or victim.fall.loss * victim.fall.less > budget:
            break
        less, loss = victim.fall
        budget -= loss * less
        why = (
            f"shrink from {draft.share_before(victim.name)} to {victim.share - less}: "
            f"{entry.name}, also {entry.claim.priority}, gains {gain:.0%} with each device and "
            f"it loses {loss:.0%}"
        )
        cut = draft.set_share(victim, victim.share - less, for_=entry.name, reason=why)
        cuts.append(Cut(before=victim, after=cut))
    if missing > 0:
        undo(draft, cuts)
        return False
    return _give(draft, entry, entry.share + useful, cuts)


def _cheapest(draft: Draft, request: TakeRequest, *, only_own: bool) -> ClaimEntry | None:
    """Return the equal that loses least; the one who asks is none of them."""
    own, value = request.entry.claim.team, request.entry.value
    found: list[Key] = []
    for team in draft.teams if not only_own else (own,):
        keys = draft.lists[RESTED].get((team, value), ())
        if not keys:
            continue
        if bar(draft, request, CUTTABLE, team, value, among_equals=True) is Bar.NONE:
            found += keys[:2]
    names = [key[-1] for key in sorted(found) if key[-1] != request.entry.name]
    return draft.entry(names[0]) if names else None


def rest(draft: Draft) -> None:
    """Let everybody whose share has changed rest before it gives to its equals."""
    if not draft.rules.rest_s:
        return
    until_s = draft.now_s + draft.rules.rest_s
    for name, entry in list(draft.changed.items()):
        if entry is None or entry.rests_until_s == until_s:
            continue
        if entry.share != draft.share_before(name):
            draft.put(entry._replace(rests_until_s=until_s))


# --- devices


def deliver(draft: Draft) -> None:
    """Hand free devices to those who are to have more than they hold, best place first.

    A minimum is handed over at once, and only in sizes that the claim takes.  Whoever comes first
    and cannot be completed yet keeps the later ones waiting: what they are promised is on its way.
    """
    for key in draft.lists[EXPECTING].get((), ()):
        entry = draft.entry(key[-1])
        free = draft.free
        room = draft.limit - (draft.held & ~draft.drained).bit_count()
        count = min(free.bit_count(), room)
        reach = min(entry.share, entry.keeps + count)
        size = reach if reach == entry.share else entry.fit(reach)
        whole = size - entry.keeps
        if whole > 0:
            draft.granted[entry.name] = state.lowest(free, whole)
            draft.put(entry._replace(held=entry.held | draft.granted[entry.name]))
        if entry.keeps + max(whole, 0) < entry.share:
            return


def _give(draft: Draft, entry: ClaimEntry, share: int, cuts: Sequence[Cut] = ()) -> Literal[True]:
    """Give a claim its share, and tell all that it gets by this event, and from whom."""
    sources = draft.sources[entry.name]
    sources.update({cut.before.name: cut.count for cut in cuts})
    sources[""] += max(0, share - entry.share - sum(cut.count for cut in cuts))
    before = draft.before.entries.get(entry.name)
    said = f"begin with {share}"
    if before is not None and before.is_suspended:
        said = f"come back with {share}"
    elif before is not None and before.share:
        said = f"grow from {before.share} to {share}"
    parts = [f"{count} from {name}" if name else f"{count} idle" for name, count in sources.items()]
    got = ", ".join(part for part in parts if not part.startswith("0 "))
    reason = f"{said} of the {entry.claim.ask_replicas} asked for: {got}"
    draft.set_share(entry, share, reason=reason)
    return True
