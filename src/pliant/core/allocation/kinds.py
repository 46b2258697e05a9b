"""A pool whose devices are of several kinds: one allocation for each, over the same numbers.

Owns which of them an event is for.  Decides nothing more: a claim is of one kind, what it gets and
gives is decided among the claims of that kind alone, and a quota counts for each kind by itself.
A device of another kind is to an allocation one that is cordoned for ever.

    kinds ("cuda", "cuda", "cpu")     cuda: 0 1 x      cpu: x x 2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pliant.core.allocation import claim_state, values
from pliant.core.allocation.claim_state import Standing, Summary
from pliant.core.allocation.decide import new_pool, next_deadline_s, step
from pliant.core.allocation.state import Pool
from pliant.core.allocation.values import CLASSES, Event, PoolRules, PriorityClass, Team
from pliant.core.table import Table
from pliant.core.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class KindedPool:
    """One pool for each kind; the first is what a claim is of that asks for none."""

    kinds: tuple[str, ...]
    """Of each device, by its number; empty: none has a kind, and there may be any number."""

    pools: Table[str, Pool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBeginning:
    """A pool before anybody has a claim."""

    devices: int
    """As many as there ever were."""

    kinds: tuple[str, ...] = ()
    """Of each device, by its number; empty: none has a kind."""

    classes: tuple[PriorityClass, ...] = CLASSES
    teams: tuple[Team, ...] = ()
    rules: PoolRules = PoolRules()  # noqa: RUF009 - frozen
    is_open: bool = True
    """False: nothing is given or taken before ``Opened``."""

    events: tuple[Event, ...] = ()
    """What is set besides."""


def begun(beginning: PoolBeginning, *, now_s: float) -> KindedPool:
    """Return the pool that begins like this.

    Raises:
        ConfigError: something of it is impossible.
    """
    kinds = beginning.kinds
    pools = {
        kind: new_pool(
            beginning.devices,
            classes=beginning.classes,
            teams=beginning.teams,
            rules=beginning.rules,
            is_open=beginning.is_open,
            foreign=[at for at, other in enumerate(kinds) if other != kind],
        )
        for kind in dict.fromkeys(kinds or ("",))
    }
    pool = KindedPool(kinds=kinds, pools=Table(pools))
    for event in beginning.events:
        pool, _ = step_kinds(pool, event, now_s=now_s)
    return pool


def step_kinds(
    pool: KindedPool, event: values.Event, *, now_s: float
) -> tuple[KindedPool, values.Actions]:
    """Apply one event to the kinds that it is for; as ``step`` for the rest.

    Raises:
        ConfigError: what an operator set is impossible for one kind; the pool stays as it is.
    """
    if isinstance(event, values.Asked | values.Recovered):
        if refused := _refusal(pool, event.claim):
            reason = f"claim {event.claim.name} is refused: {refused}"
            return pool, (values.Refuse(name=event.claim.name, reason=reason),)
        return _step_one(pool, event.claim.device_kind or _first(pool), event, now_s=now_s)
    if isinstance(event, values.Withdrawn | values.Released):
        kind = claim_kind(pool, event.name)
        return _step_one(pool, _first(pool) if kind is None else kind, event, now_s=now_s)
    actions: list[values.Action] = []
    for kind in pool.pools:
        said = _of_kind(pool, kind, event)
        if said is not None:
            pool, more = _step_one(pool, kind, said, now_s=now_s)
            actions += more
    return pool, tuple(actions)


def claim_kind(pool: KindedPool, name: str) -> str | None:
    """Return of which kind a claim is; None: it is not known."""
    return next((kind for kind, one in pool.pools.items() if name in one.entries), None)


def next_deadline_of_kinds_s(pool: KindedPool) -> float:
    """Return when to send ``TimePassed`` if nothing happens before; inf: no need to."""
    return min(next_deadline_s(one) for one in pool.pools.values())


def claims_of_kinds(pool: KindedPool) -> tuple[str, ...]:
    """Return the names of all claims, sorted."""
    return tuple(sorted(name for one in pool.pools.values() for name in claim_state.claims(one)))


def standing_of(pool: KindedPool, name: str) -> Standing | None:
    """Return where a claim stands; None: it is not known."""
    kind = claim_kind(pool, name)
    return None if kind is None else claim_state.standing(pool.pools[kind], name)


def why_of(
    pool: KindedPool, name: str, *, has_notes: bool = True, names: Mapping[int, str] | None = None
) -> str:
    """Say in one sentence what a claim has, and why it has no more; as for ``why``."""
    one = pool.pools[claim_kind(pool, name) or _first(pool)]
    return claim_state.why(one, name, has_notes=has_notes, names=names)


def summary_of_kinds(pool: KindedPool) -> Summary:
    """Return the totals over all kinds; those who wait kind by kind."""
    each = {kind: claim_state.summary(one) for kind, one in pool.pools.items()}
    first = each[_first(pool)]
    if len(each) == 1:
        return first
    uses = [use for one in each.values() for use in one.teams]
    return replace(
        first,
        usable=sum(one.usable for one in each.values()),
        share=sum(one.share for one in each.values()),
        free=tuple(sorted(device for one in each.values() for device in one.free)),
        cordoned=tuple(sorted(device for one in each.values() for device in one.cordoned)),
        drained=tuple(sorted(device for one in each.values() for device in one.drained)),
        teams=tuple(
            replace(
                use,
                share=sum(one.share for one in uses if one.team.name == use.team.name),
                claims=sum(one.claims for one in uses if one.team.name == use.team.name),
            )
            for use in first.teams
        ),
        waiting=tuple(name for one in each.values() for name in one.waiting),
    )


def _first(pool: KindedPool) -> str:
    return next(iter(pool.pools))


def _refusal(pool: KindedPool, claim: values.Claim) -> str:
    """Say why a claim can never be met because of its kind; nothing if it may."""
    kind = claim.device_kind or _first(pool)
    if kind not in pool.pools:
        there = ", ".join(f"{one} ({pool.kinds.count(one)})" for one in pool.pools if one)
        return f"there is no device of kind {kind!r}; there are {there or 'none with a kind'}"
    before = claim_kind(pool, claim.name)
    if before is not None and before != kind:
        return f"it is of kind {before or 'none'} already, and cannot become one of {kind}"
    have = pool.kinds.count(kind)
    if pool.kinds and claim.min_replicas > have:
        return f"it needs at least {counted(claim.min_replicas)}, and the pool has {have} of {kind}"
    return ""


def _of_kind(pool: KindedPool, kind: str, event: values.Event) -> values.Event | None:
    """Return what an event says of the devices of one kind; None: nothing."""
    if not pool.kinds or not isinstance(
        event, values.Cordoned | values.Drained | values.Uncordoned
    ):
        return event
    devices = tuple(device for device in event.devices if pool.kinds[device] == kind)
    return replace(event, devices=devices) if devices else None


def _step_one(
    pool: KindedPool, kind: str, event: values.Event, *, now_s: float
) -> tuple[KindedPool, values.Actions]:
    one, actions = step(pool.pools[kind], event, now_s=now_s)
    return replace(pool, pools=pool.pools.put(kind, one)), actions
