"""Who has a claim on devices of a pool: reports in, what they change to the core, until they end.

Owns what is known of each claimant from its first report until nothing of it runs any more, and
when one is gone: its process is dead, or it is silent and runs nothing.  Decides nothing: what a
claimant is to have is read from the core, and ``allocation.held_devices`` says what a report gives
back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from pliant.core.allocation import (
    Asked,
    Claim,
    Overdue,
    Recovered,
    Released,
    Withdrawn,
    held_devices,
    kinds,
)
from pliant.core.allocation.held_devices import Holding
from pliant.machine.processes import process_lives, process_started
from pliant.pool.allocator import Allocator, RefusedError, ReleasedError
from pliant.pool.claim_client import Pusher
from pliant.pool.devices import DeviceWatch
from pliant.pool.recovery import Returned
from pliant.wire.offers import SILENT_S, Offer, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Waits of a pool."""

    silent_s: float = SILENT_S
    """After so long without a report a claimant is gone, once its devices' locks are free."""

    grace_s: float = 5.0
    """How long after its notice, or after its death, what still uses a device is ended: the
    claimant's own supervision comes first."""


@dataclass(slots=True)
class Claimant:
    """One job or person with a claim."""

    name: str
    report: Report
    """The newest one that counts."""

    started: str
    """When its process began; ids are used again."""

    since: float
    """Wall-clock time at which it first asked."""

    heard_s: float
    """When it reported last."""

    uid: int | None = None
    """Whose it is, in a pool that users share."""

    released: str = ""
    """By whom it was ended; empty: by nobody."""

    end_by_s: float = math.inf
    """When what is left of it is ended."""

    is_gone: bool = False
    """It has ended, and what it used is waited for."""

    offer: Offer | None = None
    """The newest one that it was told; None: this life of the pool has told it nothing yet."""

    holding: Holding = field(default_factory=Holding)

    @property
    def claim(self) -> Claim:
        """Return what it asks the core for."""
        return Claim.of(self.name, self.report.wanted, since=self.since)

    @property
    def lives(self) -> bool:
        """Whether its process does."""
        return process_lives(self.report.pid, self.started)

    def knows(self, offer: Offer) -> bool:
        """Whether it was told as much already; the words may differ.

        Not what it gave back since: its reports leave that out, and would go on to do so.
        """
        words = {"revision", "notice_s", "reason"}
        return (
            self.offer is not None
            and self.offer.model_dump(exclude=words) == offer.model_dump(exclude=words)
            and self.holding.offered_at.keys() >= set(offer.devices)
        )

    def tell(self, offer: Offer) -> None:
        """Take note of an offer that is going out."""
        self.offer = offer
        self.holding = held_devices.offered(
            self.holding, revision=offer.revision, devices=offer.devices
        )


@dataclass(slots=True, kw_only=True)
class Claims:
    """The claimants of one pool."""

    allocator: Allocator
    watch: DeviceWatch
    pusher: Pusher
    life: str
    wall: Callable[[], float]
    settings: PoolSettings
    by_name: dict[str, Claimant] = field(default_factory=dict)

    @property
    def leaving(self) -> set[int]:
        """Return the devices that were given back or taken, and may still be in use."""
        return {device for one in self.by_name.values() for device in one.holding.leaving}

    def due_s(self) -> float:
        """Return when what must leave a device from now on is ended."""
        return self.allocator.clock.now_s() + self.settings.grace_s

    # --- reports ----------------------------------------------------------------------

    def hear_report(self, name: str, report: Report, *, uid: int | None = None) -> None:
        """Take note of where a claimant stands.

        Raises:
            RefusedError: it cannot have what it wants, or its name is taken.
        """
        claimant = self.by_name.get(name)
        if claimant is not None and claimant.report.pid != report.pid:
            claimant = self._replaced(claimant)
        if claimant is None:
            self._add(name, report, uid)
            return
        if claimant.is_gone:
            raise RefusedError(
                f"an earlier claim named {name} is being ended; try again in a moment",
                is_temporary=True,
            )
        revision = report.revision_of(self.life)
        if held_devices.is_overtaken(claimant.holding, revision=revision):
            return
        before, refused = claimant.report.wanted, None
        claimant.heard_s, claimant.report = self.allocator.clock.now_s(), report
        if report.wanted != before:
            refused = self.allocator.apply(Asked(claim=claimant.claim))
        if refused is not None:
            claimant.report = report.model_copy(update={"wanted": before})
        self._hold(
            claimant,
            held_devices.reported(
                claimant.holding,
                revision=revision,
                holds=report.holds,
                owned=self.allocator.owned(name),
            ),
        )
        self.release(claimant)
        if refused is not None:
            raise RefusedError(refused)

    def gives_unasked(self, name: str, report: Report) -> bool:
        """Whether a report gives back what nobody wants: the claim may get it again at once."""
        claimant = self.by_name.get(name)
        if claimant is None or claimant.offer is None:
            return False
        return held_devices.gives_unasked(
            claimant.holding,
            revision=report.revision_of(self.life),
            holds=report.holds,
            owned=self.allocator.owned(name),
            offered=claimant.offer.devices,
            replicas=claimant.offer.replicas,
        )

    def _add(self, name: str, report: Report, uid: int | None) -> None:
        """Take up a claimant that is new."""
        claimant = Claimant(
            name=name,
            report=report,
            started=process_started(report.pid) or "",
            since=self.wall(),
            heard_s=self.allocator.clock.now_s(),
            uid=uid,
        )
        refused = self.allocator.apply(Asked(claim=claimant.claim))
        if refused is not None:
            raise RefusedError(refused)
        self.by_name[name] = claimant
        self.allocator.touch(name)

    def take_up(self, returned: Returned) -> None:
        """Take up a claimant that was there before a restart.

        If the rules have changed and refuse it, what it uses is kept from others by its locks.
        That it runs is known once it reports to the open pool.
        """
        known = returned.claim
        claimant = Claimant(
            name=known.name,
            report=returned.report.model_copy(update={"is_running": False}),
            started=known.started,
            since=known.since,
            uid=known.uid,
            heard_s=self.allocator.clock.now_s(),
            holding=held_devices.recovered(
                known.devices,
                holds=returned.report.holds,
                leaving=known.leaving,
                revision=known.revision,
            ),
        )
        event = Recovered(claim=claimant.claim, devices=known.devices, is_suspended=known.suspend)
        if self.allocator.apply(event) is None:
            self.by_name[known.name] = claimant

    def _replaced(self, claimant: Claimant) -> Claimant | None:
        """Return the claimant of a name that another process uses now, if it is still there."""
        if not claimant.is_gone:
            pid = claimant.report.pid
            if claimant.lives:
                raise RefusedError(
                    f"process {pid} has a claim named {claimant.name} already; choose another name"
                )
            self.end(claimant, f"its process {pid} is dead")
        self.release(claimant)
        return self.by_name.get(claimant.name)

    def release_by(self, claimant: Claimant, by: str) -> str:
        """Take note that somebody who may has ended a claim; return what follows."""
        notice_s = claimant.report.wanted.notice_s
        claimant.released = by
        claimant.end_by_s = min(claimant.end_by_s, self.allocator.clock.now_s() + notice_s)
        self.allocator.log.write("release", name=claimant.name, by=by, notice_s=notice_s)
        return f"{claimant.name} is told to give everything back within {notice_s:g} s"

    def refuse_released(self, name: str, report: Report) -> None:
        """Tell a claimant that its claim was ended.

        Raises:
            ReleasedError: it was.
        """
        claimant = self.by_name.get(name)
        if claimant is None or not claimant.released or claimant.report.pid != report.pid:
            return
        claimant.heard_s = self.allocator.clock.now_s()
        raise ReleasedError(f"{claimant.released} has released {name}")

    # --- leaving ------------------------------------------------------------------------

    def check(self, claimant: Claimant) -> None:
        """See whether a claimant is still there, and what it has left."""
        if not claimant.is_gone:
            silent_s = self.settings.silent_s
            if not claimant.lives:
                self.end(claimant, f"its process {claimant.report.pid} is dead")
            elif self.allocator.clock.now_s() >= claimant.end_by_s:
                self.end(claimant, f"{claimant.released} has released it")
            elif self.allocator.clock.now_s() - claimant.heard_s > silent_s:
                owned = self.allocator.owned(claimant.name)
                if len(self.watch.free(owned)) == len(owned):
                    self.end(claimant, f"silent for {silent_s:g} s, and runs nothing")
        if claimant.holding.leaving:
            self.release(claimant)

    def end(self, claimant: Claimant, reason: str) -> None:
        """Take note that a claimant is gone; what it used is free once the locks are."""
        self.allocator.log.write("gone", name=claimant.name, reason=reason)
        self.allocator.apply(Withdrawn(name=claimant.name))
        self.pusher.drop(claimant.name)
        claimant.is_gone = True
        self._expel(claimant, self.allocator.owned(claimant.name), reason)
        self.release(claimant)

    def release(self, claimant: Claimant) -> None:
        """Tell the core what a claimant has left, as far as nothing runs there any more."""
        free = self.watch.free(claimant.holding.leaving)
        if free:
            claimant.holding = held_devices.left(claimant.holding, free)
            self.watch.revoke(claimant.name, free)
            self.allocator.apply(Released(name=claimant.name, devices=tuple(sorted(free))))
            self.allocator.touch(claimant.name)
        if claimant.is_gone and not claimant.holding.leaving:
            self.by_name.pop(claimant.name, None)
            self.allocator.has_changed = True

    def expel_overdue(self, overdue: Overdue) -> None:
        """Take from a claimant what it has not left in time."""
        claimant = self.by_name.get(overdue.name)
        standing = kinds.standing_of(self.allocator.core, overdue.name)
        if claimant is None or standing is None:
            return
        chosen = held_devices.overdue(
            claimant.holding,
            devices=standing.devices,
            drain=standing.drain,
            excess=overdue.excess,
            free=self.watch.free(standing.devices),
        )
        self.allocator.touch(overdue.name)
        self._expel(claimant, chosen.leaving, "its notice is over")

    def _expel(self, claimant: Claimant, devices: Collection[int], reason: str) -> None:
        claimant.holding = replace(claimant.holding, leaving=frozenset(devices))
        self.watch.evict(claimant.name, devices, due_s=self.due_s(), reason=reason)

    def _hold(self, claimant: Claimant, after: Holding) -> None:
        if after.leaving != claimant.holding.leaving:
            self.allocator.touch(claimant.name)
        claimant.holding = after
