"""A pool while one event is worked in: the only thing here that changes in place.

Owns the bookkeeping: an entry that changes is found in the right lists and counted in the right
sums at once.  Decides nothing.  A draft lives as long as one ``step``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TypeVar

from pliant.core.allocation import state
from pliant.core.allocation.state import NEVER, ClaimEntry, Group, Pool
from pliant.core.table import Table

K = TypeVar("K")


class Draft:
    """The pool that will be; ``pool`` makes a value of it."""

    def __init__(self, pool: Pool, *, now_s: float) -> None:
        self.before = pool
        self.now_s = now_s
        self.size = pool.size
        self.limit = pool.limit
        self.classes = dict(pool.classes)
        self.teams = dict(pool.teams)
        self.rules = pool.rules
        self.is_open = pool.is_open
        self.held = pool.held
        self.cordoned = pool.cordoned
        self.drained = pool.drained
        self.notes = pool.notes
        self.share = pool.share
        self.used = dict(pool.used)
        self.takeable = dict(pool.takeable)
        self.lists = {name: dict(groups) for name, groups in pool.lists.items()}
        self.changed: dict[str, ClaimEntry | None] = {}
        self.for_: dict[str, str] = {}
        """For whom each claim was cut."""

        self.sources: dict[str, Counter[str]] = defaultdict(Counter)
        """Where each claim's new devices come from; an empty name: nobody had them."""

        self.granted: dict[str, int] = {}
        """Devices that each claim gets by this event, as bits; also those it has just released."""

        self.reach: dict[tuple[object, ...], tuple[int, int]] = {}
        """What each kind of request could take (``preemption.reach``); empty after a change."""

        self.takings = 0
        """Victims so far; see ``admission``."""

    # --- reading

    def get(self, name: str) -> ClaimEntry | None:
        """Return the entry of this name as it stands now."""
        if name in self.changed:
            return self.changed[name]
        return self.before.entries.get(name)

    def entry(self, name: str) -> ClaimEntry:
        """Return the entry of a name that is known."""
        entry = self.get(name)
        if entry is None:
            raise KeyError(name)
        return entry

    def names(self) -> list[str]:
        """Return all names, sorted; for the events that look at every claim."""
        known = {name for name in self.before.entries if self.changed.get(name, True) is not None}
        return sorted(known | {name for name, entry in self.changed.items() if entry is not None})

    def first(self, kind: str, group: Group) -> ClaimEntry:
        """Return the first entry of a list that is there."""
        return self.entry(self.lists[kind][group][0][-1])

    def share_before(self, name: str) -> int:
        """Return the share that a claim had before this event."""
        entry = self.before.entries.get(name)
        return entry.share if entry else 0

    @property
    def usable(self) -> int:
        """How many devices all claims may have between them.

        A drained device counts no more, a cordoned one as long as somebody holds it.
        """
        if not self.cordoned:
            return min(self.limit, self.size)
        gone = self.drained | (self.cordoned & ~self.held)
        return min(self.limit, self.size - gone.bit_count())

    @property
    def slack(self) -> int:
        """How many of these are nobody's; negative: more is promised than there is."""
        return self.usable - self.share

    @property
    def free(self) -> int:
        """The devices that can be handed out, as bits."""
        return ((1 << self.size) - 1) & ~self.held & ~self.cordoned

    def room(self, team: str) -> float:
        """Return how many more devices a team may have; inf: any number."""
        return self.teams[team].limit - self.used.get(team, 0)

    def owed(self, team: str) -> int:
        """Return how many more devices are the team's own; negative: so many are borrowed."""
        return (self.teams[team].quota or 0) - self.used.get(team, 0)

    # --- changing

    def put(self, entry: ClaimEntry) -> None:
        """Set an entry, known or new."""
        self.reach.clear()
        before = self.get(entry.name)
        if before is not None:
            if before == entry:
                return
            self._count(before, -1)
        self._count(entry)
        if before is None or before.held != entry.held:
            self.held = self.held & ~(before.held if before else 0) | entry.held
        self._relist(before, entry)
        self.changed[entry.name] = entry

    def forget(self, entry: ClaimEntry) -> None:
        """Drop an entry that holds nothing."""
        self._count(entry, -1)
        self._relist(entry, None)
        self.changed[entry.name] = None

    def set_share(
        self, entry: ClaimEntry, share: int, *, for_: str = "", reason: str
    ) -> ClaimEntry:
        """Decide how many devices a claim is to have, and why."""
        waits = share < entry.base <= entry.top
        patient_until_s = entry.patient_until_s if waits else NEVER
        if waits and patient_until_s == NEVER and not entry.is_impatient:
            patient_until_s = self.now_s + self.rules.patience_s
        entry = entry._replace(
            share=share,
            reason=reason,
            patient_until_s=patient_until_s,
            is_impatient=entry.is_impatient and waits,
            is_suspended=entry.is_suspended or (waits and not share and entry.held != 0),
        )
        self.put(entry)
        self.for_[entry.name] = for_
        return entry

    def pool(self) -> Pool:
        """Return the draft as a value."""
        return Pool(
            size=self.size,
            limit=self.limit,
            classes=Table(self.classes),
            teams=Table(self.teams),
            rules=self.rules,
            is_open=self.is_open,
            held=self.held,
            cordoned=self.cordoned,
            drained=self.drained,
            foreign=self.before.foreign,
            notes=self.notes,
            entries=self._entries(),
            lists=Table({name: Table(groups) for name, groups in self.lists.items()}),
            share=self.share,
            used=Table(self.used),
            takeable=Table(self.takeable),
        )

    def _entries(self) -> Table[str, ClaimEntry]:
        if not self.changed:
            return self.before.entries
        entries = {**self.before.entries, **self.changed}
        return Table({name: entry for name, entry in entries.items() if entry is not None})

    def _count(self, entry: ClaimEntry, sign: int = 1) -> None:
        self.share += sign * entry.share
        _add(self.used, entry.claim.team, sign * entry.share)
        for group, count in state.takeable(entry):
            _add(self.takeable, group, sign * count)

    def _relist(self, before: ClaimEntry | None, after: ClaimEntry | None) -> None:
        old = state.listed(before) if before is not None else ()
        new = state.listed(after) if after is not None else ()
        if old == new:
            return
        for kind, group, key in old:  # a handful of places: no set is needed
            if (kind, group, key) in new:
                continue
            left = state.without(self.lists[kind][group], key)
            if left:
                self.lists[kind][group] = left
            else:
                del self.lists[kind][group]
        for kind, group, key in new:
            if (kind, group, key) in old:
                continue
            groups = self.lists[kind]
            groups[group] = state.added(groups.get(group, ()), key)


def _add(sums: dict[K, int], key: K, count: int) -> None:
    """Add to one of the sums, which are kept as far as they are not 0."""
    total = sums.get(key, 0) + count
    if total:
        sums[key] = total
    else:
        sums.pop(key, None)
