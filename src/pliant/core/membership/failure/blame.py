"""Who is blamed where groups could not be built, or broke though nobody is known to be lost.

First come broken links (R19): whoever has most of them is left out.  Else the joiners are blamed
(R6).  Nobody is blamed while a member of the group is not heard: its death may explain everything,
and silence ends.  ``worker_events`` calls this module, and ``silence`` when a grace is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from pliant.core.commands import Dismiss
from pliant.core.membership import changes
from pliant.core.membership.failure import worker_activity
from pliant.core.membership.state import (
    NOBODY,
    Link,
    Membership,
    Moment,
    Outcome,
    busy_until_s,
    dispensable,
    forget,
    members,
    mute_holders,
    mute_until_s,
    outsiders,
    unable_joiners,
    unable_of,
    under_way,
)
from pliant.core.membership.transitions import Phase
from pliant.core.values import ReplicaId

MAX_FAILURES = 5
"""Attempts in a row that may fail with nobody to blame before all the awaited are given up."""


def attempt_failed(state: Membership, sender: ReplicaId | None, moment: Moment) -> Outcome:
    """An attempt could not be built: try again, then without the joiners, ever less often.

    Either only once all that were to be in it are heard again: one that is not may be why.
    """
    if mute_holders(state):  # it could not have been, whoever joins
        return changes.at_rest(state, "not built"), ()
    failures, joiners = state.trouble.failures + 1, state.orders.joiners
    unsure = frozenset(under_way(state).replicas) - {sender}
    state = changes.at_rest(state, "not built")
    return replace(
        state,
        trouble=replace(
            state.trouble,
            failures=failures,
            retry_at_s=moment.now_s + moment.timeouts.retry_s * failures,
            unsure=unsure,
            suspects=NOBODY if failures < 2 else joiners,
        ),
    ), ()


def is_decided(state: Membership) -> bool:
    """Whether there are joiners that are to be dropped now."""
    return bool(state.trouble.suspects) and not state.trouble.unsure


def drop_suspects(state: Membership) -> Outcome:
    """Drop the joiners with whom two attempts failed, though all others are there.

    Only those that cannot be reached if there are such, else those that are unable.
    """
    old, suspects = members(state), tuple(sorted(state.trouble.suspects))
    cut = left_out((*old, *suspects), state.trouble.links, old or suspects) & state.trouble.suspects
    dropped = cut or unable_of(state, suspects) or state.trouble.suspects
    reason = no_link_between(cut, state.trouble.links) if cut else _not_built_with(dropped)
    state = forget(state, dropped)
    state = replace(
        state, trouble=replace(state.trouble, failures=0, retry_at_s=0.0, suspects=NOBODY)
    )
    return links_cut(state, cut), (Dismiss(to=tuple(sorted(dropped)), reason=reason),)


def _not_built_with(names: frozenset[ReplicaId]) -> str:
    return f"the groups of two attempts could not be built with {', '.join(sorted(names))}"


def still_broken(state: Membership, moment: Moment) -> Outcome:
    """No loss explains the Broken: reform with everybody, a second time without the joiners.

    Where all are joiners, one may have received the state before its generation was abandoned:
    they are given up only when it keeps breaking, as it does when nobody holds the state, or one of
    the holders is mute: that is nobody's fault, for a while.  Then the mute counts as hung, unless
    it alone holds the state.  Nobody is given up before all the others are heard again.
    """
    mute = mute_holders(state) & (state.wait.awaiting - state.wait.arrived)
    until_s = max(
        mute_until_s(state, moment), busy_until_s(state, state.wait.awaiting) if mute else 0.0
    )
    if until_s > moment.now_s or mute - dispensable(state, mute):
        return changes.reform(state, moment, cause="still broken")
    if mute:
        hang_s = moment.timeouts.hang_s
        return changes.end(state, mute, worker_activity.why_hung(state, mute, hang_s), moment)
    new, failures = outsiders(state), state.trouble.failures + 1
    present = frozenset(members(state))
    cut = left_out(members(state), state.trouble.links, present - new)
    is_hopeless = failures >= MAX_FAILURES
    is_blamed = state.phase is Phase.REFORMING and (is_hopeless or new != present)
    blamed = (unable_joiners(state) or new) if is_blamed else NOBODY
    reason = "the generation it was to enter kept breaking"
    if cut and failures > 1:
        blamed, reason = cut, no_link_between(cut, state.trouble.links)
    if blamed and state.trouble.unsure:
        return replace(
            state,
            trouble=replace(state.trouble, reform_at_s=moment.now_s + moment.timeouts.retry_s),
        ), ()
    state = replace(state, trouble=replace(state.trouble, failures=failures))
    if blamed:
        state = links_cut(state, cut) if blamed == cut else state
        return changes.end(state, blamed, reason, moment)
    return changes.reform(state, moment, cause="still broken")


def links_cut(state: Membership, names: frozenset[ReplicaId]) -> Membership:
    """Return the state that forgets its links, but for those by which these are left out."""
    cut = frozenset(link for link in state.trouble.links if names & set(link))
    return replace(state, trouble=replace(state.trouble, links=frozenset(), cut=cut))


# --- links that are broken (R19) ----------------------------------------------------


def links_added(
    links: frozenset[Link], sender: ReplicaId, unreached: Iterable[ReplicaId]
) -> frozenset[Link]:
    """Return the links with those that a member has found broken."""
    return links | {(min(sender, other), max(sender, other)) for other in unreached}


def left_out(
    names: Sequence[ReplicaId], links: Collection[Link], holders: Collection[ReplicaId]
) -> frozenset[ReplicaId]:
    """Return whom to leave out so that all others reach each other.

    Whoever has most broken links goes first, among equals the last in order; that leaves the larger
    part of two.  One of those that hold the state stays in any case.
    """
    there = list(names)
    while broken := [link for link in links if set(link) <= set(there)]:
        holding = [name for name in there if name in holders]
        count = Counter(name for link in broken for name in link)
        free = [name for name in there if count[name] and holding != [name]]
        there.remove(max(free, key=lambda name: (count[name], there.index(name))))
    return frozenset(names) - frozenset(there)


def no_link_between(cut: Collection[ReplicaId], links: Collection[Link]) -> str:
    """Say why these are left out."""
    ends = {end for link in links if set(link) & set(cut) for end in link} - set(cut)
    others = ", ".join(sorted(ends)) or "each other"
    return f"no connection between {', '.join(sorted(cut))} and {others} could be made"
