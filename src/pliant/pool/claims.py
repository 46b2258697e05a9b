"""What the pool knows of one claimant: what it said, what it was offered, what it is leaving.

Owns the bookkeeping between two reports, and the translation between what is said outside and what
the core is told.  Decides nothing: what a claimant is to have is read from the core.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from pliant.core.allocation import Claim, Reclaim, Standing, Team
from pliant.core.allocation.values import From
from pliant.pool.state import SavedClaim
from pliant.spec.pool import TeamEntry
from pliant.wire.offers import Offer, Report, Wanted

RECLAIM_FROM: dict[str, From] = {
    "LowerPriority": "lower_priority",
    "SameTeam": "same_team",
    "Never": "never",
}


@dataclass(slots=True)
class Claimant:
    """One job or person with a claim."""

    name: str
    wanted: Wanted
    pid: int
    started: str
    """When its process began; ids are used again."""

    since: float
    """Wall-clock time at which it first asked."""

    heard_s: float
    """When it reported last."""

    url: str = ""
    token: str = ""
    is_running: bool = False
    is_gone: bool = False
    """It has ended, and what it used is waited for."""

    followed: int = 0
    """The newest revision of this life of the pool that it has reported; 0: none."""

    offer: Offer | None = None
    """The newest one that it was told; None: this life of the pool has told it nothing yet."""

    offered_at: dict[int, int] = field(default_factory=dict)
    """In which revision it was first offered each device that is its own; 0: in an earlier life of
    the pool.  One that is missing was not offered yet."""

    leaving: set[int] = field(default_factory=set)
    """Devices that it gave back, or that were taken from it; their locks were not free yet."""

    @property
    def claim(self) -> Claim:
        """Return what it asks the core for."""
        return claim_of(self.name, self.wanted, since=self.since)

    def has_overtaken(self, report: Report, *, life: str) -> bool:
        """Whether it has sent a later report, which was heard first."""
        return self.followed > (report.revision if report.pool == life else 0)

    def hear(self, report: Report, *, now_s: float, life: str) -> None:
        """Take note of a report."""
        self.heard_s = now_s
        if report.pool == life and self.offer is not None:
            self.followed = min(report.revision, self.offer.revision)
        self.wanted = report.wanted
        self.url, self.token = report.url, report.token
        self.is_running = report.is_running

    def given_back(self, report: Report, owned: Iterable[int], *, life: str) -> set[int]:
        """Return which of its own devices it says it has left.

        One that it has not heard of yet (an offer that is still under way) is not among them.

        Args:
            report: where it stands.
            owned: its devices.
            life: of the pool; revisions of another one are older than all of this one.
        """
        revision = report.revision if report.pool == life else 0
        heard = {device for device in owned if self.offered_at.get(device, math.inf) <= revision}
        return heard.difference(report.holds)

    def knows(self, offer: Offer) -> bool:
        """Whether it was told as much already.

        Not what it gave back since: its reports leave that out, and would go on to do so.
        """
        return is_same(self.offer, offer) and self.offered_at.keys() >= set(offer.devices)

    def told(self, offer: Offer) -> None:
        """Take note of an offer that is going out."""
        self.offer = offer
        for device in offer.devices:
            self.offered_at.setdefault(device, offer.revision)

    def left(self, devices: Iterable[int]) -> None:
        """Take note that nothing of it runs on these devices any more."""
        self.leaving.difference_update(devices)
        for device in devices:
            self.offered_at.pop(device, None)

    def saved(self, devices: tuple[int, ...], offer: Offer | None) -> SavedClaim:
        """Return what must not be forgotten of it; ``offer`` is about to go out."""
        offer = offer or self.offer
        return SavedClaim(
            name=self.name,
            since=self.since,
            wanted=self.wanted,
            pid=self.pid,
            started=self.started,
            revision=offer.revision if offer else 0,
            replicas=offer.replicas if offer else 0,
            suspend=bool(offer and offer.suspend),
            devices=devices,
            leaving=tuple(sorted(self.leaving)),
        )


def claim_of(name: str, wanted: Wanted, *, since: float) -> Claim:
    """Translate what a claimant wants."""
    return Claim(
        name=name,
        team=wanted.team,
        priority=wanted.priority,
        kind=wanted.kind,
        min_replicas=wanted.min_replicas,
        ask_replicas=wanted.ask_replicas,
        sizes=wanted.sizes,
        num_slots=wanted.num_slots,
        can_suspend=wanted.can_suspend,
        notice_s=wanted.notice_s,
        since=since,
    )


def team_of(entry: TeamEntry) -> Team:
    """Translate what a file or a person says of a team."""
    by = entry.reclaim.by
    return Team(
        name=entry.name,
        quota=entry.quota,
        borrow_limit=entry.borrow_limit,
        reclaim=Reclaim(
            from_=RECLAIM_FROM[entry.reclaim.from_], by=None if by is None else tuple(by)
        ),
    )


def offer_of(
    standing: Standing,
    leaving: set[int],
    *,
    pool: str,
    size: int,
    revision: int,
    notice_s: float,
) -> Offer:
    """Return what a claimant may use: what the core says, without what it is leaving."""
    gone = leaving.union(standing.drain)
    devices = tuple(device for device in standing.devices if device not in gone)
    return Offer(
        pool=pool,
        revision=revision,
        pool_devices=size,
        devices=devices,
        replicas=0 if standing.is_suspended else min(standing.replicas, len(devices)),
        notice_s=notice_s,
        suspend=standing.is_suspended,
        reason=standing.reason,
    )


def is_same(offer: Offer | None, other: Offer) -> bool:
    """Whether two offers of one life of the pool give the same; their words may differ."""
    return offer is not None and (
        (offer.pool, offer.pool_devices, offer.devices, offer.replicas, offer.suspend)
        == (other.pool, other.pool_devices, other.devices, other.replicas, other.suspend)
    )
