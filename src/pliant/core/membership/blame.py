"""What follows where groups could not be built, or broke though nobody is known to be lost.

Owns when somebody is blamed for that, and who: links that are broken (R19), else the joiners (R6).
Must not know what was said; ``worker_events`` calls it, and ``silence`` when a grace is over.
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.commands import Dismiss
from pliant.core.membership import changes, links
from pliant.core.membership import state as group
from pliant.core.membership.state import Membership, Moment, Outcome
from pliant.core.membership.transitions import Phase
from pliant.core.values import ReplicaId

MAX_FAILURES = 5
"""Attempts in a row that may fail with nobody to blame before all the awaited are given up."""


def attempt_failed(state: Membership, moment: Moment) -> Outcome:
    """An attempt could not be built: try again, then without the joiners, ever less often."""
    if group.mute_holders(state):  # it could not have been, whoever joins
        return changes.at_rest(state, "not built"), ()
    failures = state.failures + 1
    if failures < 2 or not state.joiners:
        wait_s = moment.timeouts.retry_s * failures
        state = changes.at_rest(state, "not built")
        return replace(state, failures=failures, retry_at_s=moment.now_s + wait_s), ()
    old = group.members(state)
    there = group.under_way(state).replicas
    cut = links.left_out(there, state.links, old or there) & state.joiners
    dropped = cut or state.joiners
    reason = links.told(cut, state.links) if cut else _not_built_with(dropped)
    state = replace(group.forget(changes.at_rest(state, "not built"), dropped), failures=0)
    state = links_cut(state, cut)
    return state, (Dismiss(to=tuple(sorted(dropped)), reason=reason),)


def _not_built_with(names: frozenset[ReplicaId]) -> str:
    return f"the groups of two attempts could not be built with {', '.join(sorted(names))}"


def still_broken(state: Membership, moment: Moment) -> Outcome:
    """No loss explains the Broken: reform with everybody, a second time without the joiners.

    Where all are joiners, one may have received the state before its generation was abandoned:
    they are given up only when it keeps breaking, as it does when nobody holds the state, or one of
    the holders is mute: that is nobody's fault, for a while.
    """
    if group.mute_until_s(state, moment) > moment.now_s:
        return changes.reform(state, moment, cause="still broken")
    new = group.outsiders(state)
    state = replace(state, failures=state.failures + 1)
    present = group.members(state)
    cut = links.left_out(present, state.links, frozenset(present) - new)
    if cut and state.failures > 1:
        reason = links.told(cut, state.links)
        return changes.end(links_cut(state, cut), cut, reason, moment)
    is_hopeless = state.failures >= MAX_FAILURES
    if state.phase is Phase.REFORMING and new and (is_hopeless or new != set(group.members(state))):
        return changes.end(state, new, "the generation it was to enter kept breaking", moment)
    return changes.reform(state, moment, cause="still broken")


def links_cut(state: Membership, names: frozenset[ReplicaId]) -> Membership:
    """Return the state that forgets its links, but for those by which these are left out."""
    cut = frozenset(link for link in state.links if names & set(link))
    return replace(state, links=frozenset(), cut=cut)
