"""What claimants are told: what each may have now, against what it was told last.

Owns the difference between a share, which is decided at once, and what may be used of it by the
devices that are there.  Decides no share.
"""

from __future__ import annotations

from pliant.core.allocation import state
from pliant.core.allocation.draft import Draft
from pliant.core.allocation.state import NEVER, ClaimEntry
from pliant.core.allocation.values import Action, Actions, Grant, Overdue, Shrink, Suspend
from pliant.core.text import counted


def may_have(entry: ClaimEntry) -> tuple[int, int]:
    """Return how many replicas a claim may have now, and which devices must go.

    A drained device stays in use until another one takes its place.  Who has nothing begins with
    its whole minimum; who runs with less, as it has lost devices or as its minimum was raised,
    goes on with what it has, and gets all that is missing at once.
    """
    keeps, held = entry.keeps, entry.held.bit_count()
    if not entry.share or (keeps < entry.base and not entry.told):
        return 0, entry.drained
    if keeps >= min(entry.base, entry.share):
        return entry.fit(min(entry.share, keeps)) or min(entry.share, keeps), entry.drained
    to = min(entry.told, entry.share, held)
    return to, entry.drained if keeps >= to else 0


def tell_changes(draft: Draft) -> Actions:
    """Tell each changed claim what it may have, where that is not what it was told last."""
    taken: list[Action] = []
    given: list[Action] = []
    for name in sorted(draft.changed):
        entry = draft.changed[name]
        if entry is None or entry.is_withdrawn:
            continue
        before = draft.before.entries.get(name)
        if before is not None and entry.share == before.share:
            entry = entry._replace(reason=before.reason)
        to, drain = may_have(entry)
        new = draft.granted.get(name, 0)
        is_cut = to < entry.told and entry.share < entry.told and entry.held != 0
        must = drain & ~entry.told_drain if to else 0  # who may have nothing gives back all
        excess = entry.held.bit_count() - to
        leave_by_s = entry.leave_by_s if excess > 0 else NEVER
        if (is_cut or must) and excess > 0:
            leave_by_s = draft.now_s + entry.claim.notice_s
        if new or to > entry.told:
            reason = entry.reason
            if reason.startswith("shrink"):  # of a promise that was never told
                reason = f"begin with {to} of the {entry.claim.ask_replicas} asked for ({reason})"
            given.append(Grant(name=name, to=to, devices=state.numbers(new), reason=reason))
        if is_cut or must:
            taken.append(_taking(entry, to, drain, draft.for_.get(name, ""), is_cut=is_cut))
        draft.put(
            entry._replace(
                told=to,
                told_drain=drain if to else 0,
                leave_by_s=leave_by_s,
                is_suspended=entry.is_suspended and not to,
            )
        )
    return (*taken, *given)


def _taking(entry: ClaimEntry, to: int, drain: int, for_: str, *, is_cut: bool) -> Suspend | Shrink:
    name, notice_s, reason = entry.name, entry.claim.notice_s, entry.reason
    if is_cut and not entry.share and entry.is_suspended:
        return Suspend(name=name, notice_s=notice_s, for_=for_, reason=reason)
    devices = state.numbers(drain)
    if not is_cut:
        named = ", ".join(map(str, devices))
        has = "stay at" if entry.told else "have"
        reason = f"give back {named}, drained, and {has} {to} on others"
    return Shrink(name=name, to=to, devices=devices, notice_s=notice_s, for_=for_, reason=reason)


def overdue(entry: ClaimEntry) -> Overdue:
    """Say that a claim's notice is over."""
    to, held = may_have(entry)[0], entry.held.bit_count()
    reason = (
        f"claim {entry.name} may have {counted(to, 'replica')} and still holds "
        f"{counted(held)} after its {entry.claim.notice_s:g} s of notice"
    )
    return Overdue(name=entry.name, to=to, excess=held - to, reason=reason)
