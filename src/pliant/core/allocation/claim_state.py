"""What can be read from a pool: standings, reasons for waiting, totals.

Owns the sentences about what did *not* happen.  They are made from the very rules that decide, at
the moment somebody asks, so that they cannot be older than the pool.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from pliant.core.allocation import state
from pliant.core.allocation.admission import holder, request_of
from pliant.core.allocation.draft import Draft
from pliant.core.allocation.explanations import may_have
from pliant.core.allocation.preemption import TakeRequest, objection
from pliant.core.allocation.state import Pool
from pliant.core.allocation.values import Claim, Team
from pliant.core.text import counted

MOST_NAMED = 3
"""Devices out of use that one sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a claim stands; everything an offer says can be read from it."""

    claim: Claim
    share: int
    """Devices that it is to have.  More than it holds: the rest is on its way to it."""

    devices: tuple[int, ...]
    """Those that it may have processes on: all that are granted and not released."""

    replicas: int
    """How many it may have on them now; what the last Grant or Shrink said."""

    drain: tuple[int, ...]
    """Those of ``devices`` that must be among the ones it gives back."""

    is_suspended: bool
    """It was told to suspend, and not yet that it may have its minimum again."""

    is_withdrawn: bool
    """It is gone, and what it holds is waited for."""

    leave_by_s: float
    """When its notice is over, in the seconds of ``now_s``; inf: nothing is to be given back."""

    reason: str
    """Of the last change, in one sentence; ``why`` says what it is waiting for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamUse:
    """A team and what it has."""

    team: Team
    share: int
    """Devices that its claims are to have, in all."""

    claims: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The pool in numbers."""

    devices: int
    """All that there are, with the cordoned ones."""

    limit: int
    """How many may be in use, by the last DevicesSet."""

    usable: int
    """How many the claims may have between them, now."""

    share: int
    """How many they are to have; above ``usable`` only while some cannot be cut any further."""

    free: tuple[int, ...]
    """Held by nobody, and not cordoned."""

    cordoned: tuple[int, ...]
    """Not handed out any more, with the drained ones."""

    drained: tuple[int, ...]
    teams: tuple[TeamUse, ...]
    waiting: tuple[str, ...]
    """Claims that are not admitted, in the order in which they are served."""


def claims(pool: Pool) -> tuple[str, ...]:
    """Return the names of all claims, sorted; also withdrawn ones whose devices are not back."""
    return tuple(sorted(pool.entries))


def standing(pool: Pool, name: str) -> Standing | None:
    """Return where a claim stands; None: it is not known."""
    entry = pool.entries.get(name)
    if entry is None:
        return None
    replicas, drain = may_have(entry)
    return Standing(
        claim=entry.claim,
        share=entry.share,
        devices=state.numbers(entry.held),
        replicas=replicas,
        drain=state.numbers(drain),
        is_suspended=entry.is_suspended,
        is_withdrawn=entry.is_withdrawn,
        leave_by_s=entry.leave_by_s,
        reason=entry.reason,
    )


def why(
    pool: Pool, name: str, *, has_notes: bool = True, names: Mapping[int, str] | None = None
) -> str:
    """Say in one sentence what a claim has, and why it has no more.

    With the numbers, with the rule where one stood in the way of a reclaim, and with the devices
    that are out of use; by whom, since when and why stands beside it unless ``has_notes``.
    ``names``: what devices are called that have a name.
    """
    entry = pool.entries.get(name)
    if entry is None:
        return f"there is no claim {name}"
    if entry.is_withdrawn:
        return f"it is gone, and {counted(entry.held.bit_count())} of it are waited for"
    if not pool.is_open:
        return "the pool has restarted and waits until everybody who holds devices is known"
    if entry.share > entry.keeps:
        coming = entry.share - entry.keeps
        return f"has {entry.keeps} of {entry.share}: {counted(coming)} on the way from others"
    draft = Draft(pool, now_s=0.0)
    request = request_of(draft, entry)
    if request is None:
        asked = entry.claim.ask_replicas
        return f"has all {entry.share} it can use of {asked} asked for" if asked else "asks for 0"
    has = "is suspended and needs" if entry.is_suspended else "needs"
    if not request.is_minimum:
        has = f"has {entry.share} of {entry.top} and wants"
    said = [_obstacle(draft, request), *_out_of_use(pool, names or {}, has_notes=has_notes)]
    return f"{has} {request.count} more: {'; '.join(said)}"


def summary(pool: Pool) -> Summary:
    """Return the totals of the pool; costs as much as there are claims."""
    draft = Draft(pool, now_s=0.0)
    waiting = [
        request
        for _, entry in pool.entries.items()
        if entry.is_waiting and (request := request_of(draft, entry)) is not None
    ]
    count: dict[str, int] = defaultdict(int)
    for _, entry in pool.entries.items():
        count[entry.claim.team] += not entry.is_withdrawn
    return Summary(
        devices=pool.size,
        limit=pool.limit,
        usable=draft.usable,
        share=pool.share,
        free=state.numbers(draft.free),
        cordoned=state.numbers(pool.cordoned & ~pool.foreign),
        drained=state.numbers(pool.drained),
        teams=tuple(
            TeamUse(team=team, share=pool.used.get(name, 0), claims=count[name])
            for name, team in sorted(pool.teams.items())
        ),
        waiting=tuple(one.entry.name for one in sorted(waiting, key=lambda one: one.rank)),
    )


def _out_of_use(pool: Pool, names: Mapping[int, str], *, has_notes: bool) -> list[str]:
    """Say which devices that nobody holds are not handed out, and why as far as that is wanted."""
    idle = state.numbers(pool.cordoned & ~pool.held & ~pool.foreign)
    said = []
    for device in idle[:MOST_NAMED]:
        how = "drained" if pool.drained >> device & 1 else "cordoned"
        note = pool.notes.get(device, "") if has_notes else ""
        called = names.get(device) or f"device {device}"
        said.append(f"{called} is {how} {note}".rstrip())
    more = len(idle) - MOST_NAMED
    return [*said, f"{more} more are out of use"] if more > 0 else said


def _obstacle(draft: Draft, request: TakeRequest) -> str:
    """Say what keeps a request from being served."""
    claim = request.entry.claim
    if request.count > draft.usable:
        return f"only {counted(draft.usable)} of the pool may be in use"
    first = holder(draft, request)
    if first is not None:
        waits = first.entry.claim
        return f"{waits.priority} claim {waits.name} has waited longer for its {first.count}"
    if not request.is_minimum and not request.gain:
        return f"none is idle, and more than {request.entry.share} would make it no faster"
    idle = max(0, draft.slack)
    said = [f"{idle or 'none'} idle"]
    if request.count > draft.room(claim.team):
        team = draft.teams[claim.team]
        said.append(
            f"team {team.name} is at its limit ({draft.used.get(team.name, 0)} of quota "
            f"{team.quota or 0} and borrow_limit {team.borrow_limit})"
        )
    return "; ".join([*said, *_objections(draft, request)])


def _objections(draft: Draft, request: TakeRequest) -> list[str]:
    """Say which rules keep how many devices of others from being taken.

    And how many are minimums of claims that cannot be suspended.
    """
    own = dict(state.takeable(request.entry))
    refused: dict[str, int] = defaultdict(int)
    may = 0
    for group, count in sorted(draft.takeable.items()):
        others = count - own.get(group, 0)
        rule = objection(draft, request, *group)
        if rule and others:
            refused[rule] += others
        else:
            may += others
    said = [f"{may} could be preempted"] if may else []
    said += [f"{count} cannot be preempted: {rule}" for rule, count in refused.items()]
    minimums = draft.share - sum(draft.takeable.values()) - request.entry.share + sum(own.values())
    if minimums > 0:
        verb = "belongs" if minimums == 1 else "belong"
        said.append(f"{minimums} {verb} to minimums that cannot be preempted")
    return said
