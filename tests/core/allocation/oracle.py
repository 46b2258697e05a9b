"""The allocation once more, from scratch: no lists, no sums, every claim looked at every time.

What ``core.allocation`` does step by step on indexed lists, this does by trying all requests of all
claims in the order of their rank, and all victims in the order of theirs, again after each success.
It shares the arithmetic of one claim (``demand``) and nothing else of the deciding.

The two are equal in the share of every claim after every event.  One rule is by design about lists
and therefore also here: among equals, of the claims of one team that need the same number of
devices for their next step, the hungriest one speaks for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pliant.core.allocation.admission import MOST_AT_ONCE
from pliant.core.allocation.draft import Draft
from pliant.core.allocation.state import LISTS, ClaimEntry, Group, Keys, Pool
from pliant.core.allocation.values import Team
from pliant.core.table import Table


def usable(pool: Pool) -> int:
    """Return how many devices all claims may have between them.

    A drained device counts no more, a cordoned one as long as somebody holds it.
    """
    gone = pool.drained | (pool.cordoned & ~pool.held)
    return min(pool.limit, pool.size - gone.bit_count())


@dataclass(frozen=True)
class Want:
    entry: ClaimEntry
    count: int
    minimum: bool
    gain: float


class Oracle:
    """Decides all shares of a pool to which an event has been applied, and nothing since."""

    def __init__(self, pool: Pool, before: Pool, *, now_s: float) -> None:
        self.pool, self.before, self.now_s = pool, before, now_s
        self.entries = {
            name: entry for name, entry in sorted(pool.entries.items()) if not entry.is_withdrawn
        }

    def shares(self) -> dict[str, int]:
        if self.pool.is_open:
            self._shed()
            self._serve()
            while self._rebalance():
                if self.slack > 0:
                    self._serve()
        return {name: entry.share for name, entry in self.entries.items()}

    # sums, each time anew

    @property
    def slack(self) -> int:
        return usable(self.pool) - sum(entry.share for entry in self.entries.values())

    def used(self, team: str) -> int:
        return sum(one.share for one in self.entries.values() if one.claim.team == team)

    def limit(self, team: str) -> float:
        its: Team = self.pool.teams[team]
        return math.inf if its.borrow_limit is None else (its.quota or 0) + its.borrow_limit

    def borrows(self, team: str) -> bool:
        quota = self.pool.teams[team].quota
        return quota is None or self.used(team) > quota

    def owed(self, team: str, count: int) -> bool:
        quota = self.pool.teams[team].quota
        return quota is not None and self.used(team) + count <= quota

    # requests

    def wants(self) -> list[Want]:
        found = []
        for entry in self.entries.values():
            if entry.is_waiting:
                found.append(Want(entry, entry.base - entry.share, True, 0.0))
            elif entry.share < entry.top:
                found.append(Want(entry, entry.rise.more, False, entry.rise.gain))
        return sorted(found, key=self.rank)

    def rank(self, want: Want) -> tuple[object, ...]:
        claim = want.entry.claim
        first = claim.since if want.minimum else -want.gain
        owed = self.owed(claim.team, want.count)
        return (not owed, -want.entry.value, not want.minimum, first, claim.since, claim.name)

    def is_held_back(self, want: Want) -> bool:
        impatient = sorted(
            (-one.value, one.claim.since, name)
            for name, one in self.entries.items()
            if one.is_impatient and one.is_waiting
        )
        for _, _, name in impatient:
            entry = self.entries[name]
            first = Want(entry, entry.base - entry.share, True, 0.0)
            room = self.limit(entry.claim.team) - self.used(entry.claim.team)
            if first.count > min(room, usable(self.pool)):
                continue
            if self.rank(first) >= self.rank(want):
                return False
            probe = want.entry._replace(share=want.entry.base + 1)
            return want.minimum or not self.may_take(first, probe, is_minimum=False)
        return False

    def may_take(
        self, want: Want, victim: ClaimEntry, *, is_minimum: bool, equals: bool = False
    ) -> bool:
        own, other = self.pool.teams[want.entry.claim.team], victim.claim.team
        if own.reclaim.from_ == "never":
            return False
        if own.reclaim.by is not None and want.entry.claim.priority not in own.reclaim.by:
            return False
        if is_minimum and not want.minimum:
            return False
        if other != own.name:
            if own.reclaim.from_ == "same_team" or not self.borrows(other):
                return False
            if self.owed(own.name, want.count):
                return True
        if victim.value < want.entry.value:
            return True
        return victim.value == want.entry.value and not is_minimum and (want.minimum or equals)

    def _serve(self) -> None:
        while any(self._served(want) for want in self.wants()):
            pass
        self._rest()

    def _served(self, want: Want) -> bool:
        entry, team = want.entry, want.entry.claim.team
        if self.is_held_back(want):
            return False
        if want.count <= min(self.slack, self.limit(team) - self.used(team)):
            self._set(entry, entry.share + want.count)
            return True
        if not want.minimum:
            if not entry.rise.gain:
                return False
            want = replace(want, count=entry.rise.useful)
        if not self._take(want):
            return False
        self._set(self.entries[entry.name], entry.share + want.count)
        return True

    # taking

    def _take(self, want: Want) -> bool:
        undo, cuts = dict(self.entries), []
        team = want.entry.claim.team

        def own() -> float:
            return want.count - (self.limit(team) - self.used(team))

        def anywhere() -> int:
            return want.count - self.slack

        for minimum in (False, True):
            while own() > 0 or anywhere() > 0:
                only_own = own() > 0 or anywhere() <= 0
                victims = [
                    one
                    for one in self._victims(is_minimum=minimum)
                    if (one.claim.team == team or not only_own)
                    and self.may_take(want, one, is_minimum=minimum)
                ]
                if not victims:
                    break
                victim = min(victims, key=lambda one: self._order(one, is_minimum=minimum))
                missing = max(own(), anywhere()) if victim.claim.team == team else anywhere()
                quota = self.pool.teams[victim.claim.team].quota
                if victim.claim.team != team and quota is not None:
                    missing = min(missing, self.used(victim.claim.team) - quota)
                share = 0 if minimum else victim.lower(int(missing))
                cuts.append((victim, share))
                self._set(victim, share)
        if own() > 0 or anywhere() > 0:
            self.entries = undo
            return False
        for victim, share in reversed(cuts):
            spare = -anywhere()
            if victim.claim.team == team and own() > -math.inf:
                spare = min(spare, int(-own()))
            self._give_back(victim, share, spare)
        return True

    def _give_back(self, victim: ClaimEntry, share: int, spare: int) -> None:
        now = self.entries[victim.name]
        if now.share != share or spare <= 0:
            return
        if victim.share - share <= spare:
            self.entries[victim.name] = victim
        elif now.fit(share + spare) > share:
            self._set(now, now.fit(share + spare))

    def _victims(self, *, is_minimum: bool) -> Iterator[ClaimEntry]:
        for one in self.entries.values():
            if not is_minimum and one.share > one.base:
                yield one
            if is_minimum and 0 < one.share <= one.base and (one.claim.can_suspend or not one.held):
                yield one

    def _order(self, victim: ClaimEntry, *, is_minimum: bool) -> tuple[object, ...]:
        held = bool(victim.held) if is_minimum else False
        return victim.value, held, -victim.claim.since, victim.name

    def _shed(self) -> None:
        for team in self.pool.teams:
            self._shed_until(team)
        self._shed_until(None)

    def _shed_until(self, team: str | None) -> None:
        def excess() -> float:
            return -self.slack if team is None else self.used(team) - self.limit(team)

        cuts = []
        for minimum in (False, True):
            while excess() > 0:
                victims = [
                    one
                    for one in self._victims(is_minimum=minimum)
                    if team in (None, one.claim.team)
                ]
                if not victims:
                    break
                victim = min(
                    victims,
                    key=lambda one: (
                        not self.borrows(one.claim.team),
                        self._order(one, is_minimum=minimum),
                    ),
                )
                share = 0 if minimum else victim.lower(int(excess()))
                cuts.append((victim, share))
                self._set(victim, share)
        for victim, share in reversed(cuts):
            self._give_back(victim, share, int(-excess()))

    # between equals

    def _rebalance(self) -> bool:
        hungriest: dict[tuple[object, ...], ClaimEntry] = {}
        for one in self.entries.values():
            if one.is_waiting or one.share >= one.top or not one.rise.gain:
                continue
            key = (one.claim.team, one.value, one.rise.more, one.rise.useful)
            if key not in hungriest or self._hunger(one) < self._hunger(hungriest[key]):
                hungriest[key] = one
        return any(self._moved(one) for one in sorted(hungriest.values(), key=self._hunger))

    def _hunger(self, one: ClaimEntry) -> tuple[float, float, str]:
        return -one.rise.gain, one.claim.since, one.name

    def _moved(self, entry: ClaimEntry) -> bool:
        _, useful, gain = entry.rise
        want, undo = Want(entry, useful, False, gain), dict(self.entries)
        team = entry.claim.team
        budget = gain * useful - self.pool.rules.min_gain
        if budget < 0 or useful > MOST_AT_ONCE or self.is_held_back(want):
            return False
        while useful > min(self.slack, self.limit(team) - self.used(team)):
            only_own = useful > self.limit(team) - self.used(team)
            givers = [
                one
                for one in self._victims(is_minimum=False)
                if one.rests_until_s == -math.inf
                and one.value == entry.value
                and one.name != entry.name
                and (one.claim.team == team or not only_own)
                and self.may_take(want, one, is_minimum=False, equals=True)
            ]
            giver = min(
                givers,
                key=lambda one: (one.fall.loss, -one.claim.since, one.name),
                default=None,
            )
            if giver is None or giver.fall.loss * giver.fall.less > budget:
                self.entries = undo
                return False
            budget -= giver.fall.loss * giver.fall.less
            self._set(giver, giver.share - giver.fall.less)
        self._set(self.entries[entry.name], entry.share + useful)
        return True

    # bookkeeping

    def _set(self, entry: ClaimEntry, share: int) -> None:
        waits = share < entry.base <= entry.top
        patience = entry.is_impatient and waits
        self.entries[entry.name] = entry._replace(share=share, is_impatient=patience)

    def _rest(self) -> None:
        if not self.pool.rules.rest_s:
            return
        for name, entry in self.entries.items():
            before = self.before.entries.get(name)
            if entry.share != (before.share if before else 0):
                until_s = self.now_s + self.pool.rules.rest_s
                self.entries[name] = entry._replace(rests_until_s=until_s)


def recomputed(pool: Pool, before: Pool, *, now_s: float) -> dict[str, int]:
    """Return the share of every claim after the event that led from ``before`` to ``pool``.

    Args:
        pool: the event is applied, and nothing decided.
        before: the pool before the event.
        now_s: of the event.
    """
    return Oracle(pool, before, now_s=now_s).shares()


def rebuilt(pool: Pool) -> Pool:
    """Return the pool with every list and sum computed anew from its entries.

    What an incremental pool must equal at any time.
    """
    blank = replace(
        pool,
        held=0,
        entries=type(pool.entries)(),
        lists=Table({name: Table[Group, Keys]() for name in LISTS}),
        share=0,
        used=Table(),
        takeable=Table(),
    )
    draft = Draft(blank, now_s=0.0)
    for _, entry in sorted(pool.entries.items()):
        draft.put(entry)
    return draft.pool()
