"""The one way to change a pool: an event in, the next pool and the actions that follow out.

Owns what each event means.  Must not know sockets, files, processes, or the wall clock; the caller
passes ``now_s`` in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from pliant.core.allocation import checking, demand, state, values
from pliant.core.allocation.admission import settle
from pliant.core.allocation.draft import Draft
from pliant.core.allocation.explanations import may_have, overdue, tell_changes
from pliant.core.allocation.state import ALARMS, NEVER, ClaimEntry, Pool
from pliant.core.table import Table
from pliant.core.tenancy import DEFAULT_TEAM
from pliant.core.text import counted


def new_pool(
    devices: int,
    *,
    classes: Iterable[values.PriorityClass] = values.CLASSES,
    teams: Iterable[values.Team] = (),
    rules: values.PoolRules | None = None,
    is_open: bool = True,
    foreign: Iterable[int] = (),
) -> Pool:
    """Return a pool of idle devices ``0 .. devices-1`` without claims.

    Args:
        devices: how many there are.
        classes: more, and other values, by ``ClassSet``.
        teams: beside the default team (or instead of it, if one of them has its name).
        rules: None: the defaults.
        is_open: False: nothing is given or taken before ``Opened``, so that what is held already
            can be told first, by ``Recovered``.
        foreign: devices of another kind (``allocation.kinds``); never handed out.

    Raises:
        ConfigError: a team names a class that is not there.
    """
    others = state.bits(tuple(foreign))
    pool = Pool(
        cordoned=others,
        foreign=others,
        size=devices,
        limit=devices,
        classes=Table({one.name: one for one in classes}),
        teams=Table({DEFAULT_TEAM: values.Team(name=DEFAULT_TEAM)}),
        rules=rules or values.PoolRules(),
        is_open=is_open,
    )
    for team in teams:
        checking.require_team(pool, team)
        pool = replace(pool, teams=pool.teams.put(team.name, team))
    return pool


def step(pool: Pool, event: values.Event, *, now_s: float) -> tuple[Pool, values.Actions]:
    """Apply one event; return the next pool and what to tell to whom.

    Pure: same arguments, same result.  Waits that are over by ``now_s`` end first, whatever the
    event.  What a *claimant* asks for and cannot have ever is a ``Refuse``; what is merely not
    there yet is no action, and ``why`` explains it.  Late or repeated news changes nothing.
    ``now_s`` is monotonic: it must not run backwards between calls.

    Raises:
        ConfigError: what an *operator* set is impossible (TeamSet, TeamRemoved); the pool stays as
            it is.
    """
    if next_deadline_s(pool) > now_s and _says_nothing(pool, event):
        return pool, ()
    draft = Draft(pool, now_s=now_s)
    told = [*_wake(draft), *_apply(draft, event)]
    settle(draft)
    told += tell_changes(draft)
    return draft.pool(), tuple(told)


def next_deadline_s(pool: Pool) -> float:
    """Return when to send ``TimePassed`` if nothing happens before; inf: no need to."""
    alarms = pool.lists[ALARMS].get(())
    return float(alarms[0][0]) if alarms else NEVER


# --- events


def _says_nothing(pool: Pool, event: values.Event) -> bool:
    """Whether an event repeats what is known: most reports do."""
    match event:
        case values.Asked(claim=claim):
            known = pool.entries.get(claim.name)
            return (
                known is not None
                and not known.is_withdrawn
                and replace(claim, since=known.claim.since) == known.claim
            )
        case values.Released(name=name, devices=devices):
            holder = pool.entries.get(name)
            return holder is None or not holder.held & _bits(pool.size, devices)
        case values.Withdrawn(name=name):
            known = pool.entries.get(name)
            return known is None or known.is_withdrawn
        case _:
            return isinstance(event, values.TimePassed)


def _wake(draft: Draft) -> list[values.Action]:
    """End the waits that are over."""
    found: list[values.Action] = []
    while (alarms := draft.lists[ALARMS].get(())) and alarms[0][0] <= draft.now_s:
        _, what, name = alarms[0]
        entry = draft.entry(name)
        match what:
            case "wait":
                draft.put(entry._replace(patient_until_s=NEVER, is_impatient=True))
            case "rest":
                draft.put(entry._replace(rests_until_s=-NEVER))
            case _:
                draft.put(entry._replace(leave_by_s=NEVER))
                found.append(overdue(entry))
    return found


def _apply(draft: Draft, event: values.Event) -> values.Actions:
    """Take in what happened; what follows from it is ``settle``'s."""
    match event:
        case values.Asked(claim=claim):
            return _asked(draft, claim)
        case values.Recovered(claim=claim, devices=devices, is_suspended=is_suspended):
            return _recovered(draft, claim, devices, is_suspended=is_suspended)
        case values.Withdrawn(name=name):
            _withdrawn(draft, name)
        case values.Released(name=name, devices=devices):
            _released(draft, name, devices)
        case values.Opened():
            draft.is_open = True
        case values.TimePassed():
            pass
        case values.DevicesSet(count=count):
            draft.limit = count
            draft.size = max(draft.size, count)
        case values.Cordoned() | values.Drained() | values.Uncordoned():
            _cordon(draft, event)
        case values.TeamSet(team=team):
            checking.require_team(draft.before, team)
            draft.teams[team.name] = team
        case values.TeamRemoved(name=name):
            checking.require_no_claims(draft.before, name)
            del draft.teams[name]
        case values.ClassSet(priority=priority):
            _class_set(draft, priority)
        case _:
            assert_never(event)
    return ()


def _asked(draft: Draft, claim: values.Claim) -> values.Actions:
    known = draft.get(claim.name)
    if known is not None and not known.is_withdrawn:
        claim = replace(claim, since=known.claim.since)
    refusal = checking.refusal(draft.before, claim)
    if refusal:
        return (values.Refuse(name=claim.name, reason=f"claim {claim.name} is refused: {refusal}"),)
    value = draft.classes[claim.priority].value
    base, top = demand.base(claim), demand.top(claim)
    if known is None:
        entry = ClaimEntry(claim=claim, value=value, base=base, top=top)
    else:
        entry = known._replace(claim=claim, value=value, base=base, top=top, is_withdrawn=False)
    reach = min(entry.share, top)
    runs_on = reach if top and entry.told else 0  # below a minimum that was raised
    share = entry.fit(reach) if reach >= base else runs_on
    reason = entry.reason
    if share < entry.share:
        reason = f"shrink from {entry.share} to {share}: it asks for no more than {top} now"
    draft.set_share(entry, share, reason=reason)
    return ()


def _recovered(
    draft: Draft, claim: values.Claim, devices: tuple[int, ...], *, is_suspended: bool
) -> values.Actions:
    if draft.is_open:
        reason = f"claim {claim.name} comes after the opening"
        return (values.Refuse(name=claim.name, reason=reason),)
    known = draft.get(claim.name)
    mine = _bits(draft.size, devices)
    others = draft.held & ~(known.held if known else 0)
    if mine & others:
        taken = state.numbers(mine & others)[0]
        reason = f"claim {claim.name} is refused: device {taken} is held by another claim"
        return (values.Refuse(name=claim.name, reason=reason),)
    if refused := _asked(draft, claim):
        return refused
    entry = draft.entry(claim.name)._replace(held=mine, drained=mine & draft.drained)
    draft.put(entry)
    share = 0
    if mine and entry.top and not is_suspended:
        share = max(entry.base, entry.fit(min(entry.keeps, entry.top)))
    entry = draft.set_share(entry, share, reason=f"known again, with {counted(mine.bit_count())}")
    if is_suspended:
        entry = entry._replace(is_suspended=True)
    draft.put(entry._replace(told=may_have(entry._replace(told=share))[0]))
    return ()


def _withdrawn(draft: Draft, name: str) -> None:
    entry = draft.get(name)
    if entry is None or entry.is_withdrawn:
        return
    entry = draft.set_share(entry._replace(top=0), 0, reason="it is gone")
    if not entry.held:
        draft.forget(entry)
        return
    draft.put(entry._replace(is_withdrawn=True, told=0, told_drain=0, leave_by_s=NEVER))


def _released(draft: Draft, name: str, devices: tuple[int, ...]) -> None:
    entry = draft.get(name)
    if entry is None:
        return
    back = entry.held & _bits(draft.size, devices)
    entry = entry._replace(held=entry.held & ~back, drained=entry.drained & ~back)
    draft.put(entry)
    if entry.is_withdrawn and not entry.held:
        draft.forget(entry)
    elif not entry.held and entry.share < entry.base:
        draft.set_share(entry, 0, reason="it runs no more, and waits for its whole minimum")


def _cordon(draft: Draft, event: values.Cordoned | values.Drained | values.Uncordoned) -> None:
    devices = state.bits(event.devices)
    match event:
        case values.Cordoned(note=note):
            draft.cordoned |= devices
            draft.notes = _noted(draft, event.devices, note)
        case values.Drained(note=note):
            draft.cordoned |= devices
            draft.drained |= devices
            draft.notes = _noted(draft, event.devices, note)
            _redrain(draft)
        case values.Uncordoned():
            draft.cordoned &= ~devices
            draft.drained &= ~devices
            draft.notes = draft.notes.drop(*event.devices)
            _redrain(draft)


def _noted(draft: Draft, devices: tuple[int, ...], note: str) -> Table[int, str]:
    """Return why devices are out of use; the newest word on each counts, and silence is none."""
    return Table({**draft.notes, **dict.fromkeys(devices, note)}) if note else draft.notes


def _redrain(draft: Draft) -> None:
    """Mark what is drained with its holders, who are cut first if nothing can replace it.

    Looks at every claim, as only a drain needs to know who holds a device.
    """
    for name in draft.names():
        entry = draft.entry(name)
        drained = entry.held & draft.drained
        if drained == entry.drained:
            continue
        new = (drained & ~entry.drained).bit_count()
        entry = entry._replace(drained=drained)
        draft.put(entry)
        missing = min(new, -draft.slack)
        if missing > 0 and entry.share > entry.base and draft.is_open:
            share = entry.lower(missing)
            devices = ", ".join(map(str, state.numbers(drained)))
            reason = f"shrink from {entry.share} to {share}: of its devices, {devices} is drained"
            draft.set_share(entry, share, reason=reason)


def _class_set(draft: Draft, priority: values.PriorityClass) -> None:
    """Set a class; looks at every claim, as each of its own changes places."""
    draft.classes[priority.name] = priority
    for name in draft.names():
        entry = draft.entry(name)
        if entry.claim.priority == priority.name:
            draft.put(entry._replace(value=priority.value))


def _bits(size: int, devices: tuple[int, ...]) -> int:
    """Return those devices that there are, as bits."""
    return state.bits(tuple(device for device in devices if 0 <= device < size))
