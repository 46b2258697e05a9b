"""What follows from events is written, durably, and only then told.

Owns the offers: their revisions, who must be told one, and that nobody is told what could not be
written.  Decides nothing: an offer says what the core says, without what its claimant is leaving.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pliant.core.allocation import Standing, kinds
from pliant.machine.clock import Clock
from pliant.observe.log import EventLog
from pliant.pool.allocator import Allocator, RefusedError
from pliant.pool.claim_client import Pusher
from pliant.pool.claims import Claimant, Claims
from pliant.pool.state import SavedClaim, SavedPool, StateFile, name_of, names_of
from pliant.wire.offers import Offer


@dataclass(slots=True, kw_only=True)
class OfferPublisher:
    """Writes the state of one pool and makes its offers."""

    allocator: Allocator
    claims: Claims
    state: StateFile
    pusher: Pusher
    log: EventLog
    clock: Clock
    revision: int
    """Of the newest offer to anybody."""

    failure: str = ""
    """Why the state cannot be written; nothing is handed out meanwhile."""

    async def publish(self, saved: SavedPool, before: Iterable[SavedClaim] | None) -> None:
        """Write what has changed; then tell those whom it concerns.

        ``before`` are the claims of the life before, while they are not known better.
        """
        if not self.allocator.has_changed:
            return
        offers = self._fresh_offers(saved)
        revision = self.revision + len(offers)
        claims = self._saved_claims(offers) if before is None else tuple(before)
        written = saved.model_copy(update={"revision": revision, "claims": claims})
        try:
            await asyncio.to_thread(self._write, written, offers)
        except OSError as error:
            if not self.failure:
                self.log.write("not_written", reason=f"{error.strerror}: {error.filename}")
            self.failure = str(error.strerror)
            return
        self.failure, self.revision = "", revision
        self.allocator.published()
        for name, offer in offers.items():
            claimant = self.claims.by_name[name]
            claimant.tell(offer)
            if claimant.report.url:
                self.pusher.push(name, offer, url=claimant.report.url, token=claimant.report.token)

    def answer(self, name: str, saved: SavedPool) -> Offer:
        """Return the newest offer to a claimant, with the reason as it is now.

        Raises:
            RefusedError: it is gone, or the state cannot be written.
        """
        claimant = self.claims.by_name.get(name)
        if claimant is None:  # it was seen dead meanwhile
            raise RefusedError(f"the claim {name} is gone", is_temporary=True)
        offer = claimant.offer
        if offer is None:
            sentence = f"the pool cannot write its state: {self.failure}"
            raise RefusedError(sentence, is_temporary=True)
        if not offer.devices:
            why = kinds.why_of(self.allocator.core, name, names=names_of(saved))
            return offer.model_copy(update={"reason": why})
        return offer

    def _write(self, written: SavedPool, offers: Mapping[str, Offer]) -> None:
        """Write the state, and let those who are about to be told take what they are offered."""
        self.state.write(written)
        for name, offer in offers.items():
            uid = self.claims.by_name[name].uid
            self.claims.watch.grant(name, offer.devices, uid=uid)

    def _fresh_offers(self, saved: SavedPool) -> dict[str, Offer]:
        """Return the offers that say something new, by claim."""
        offers: dict[str, Offer] = {}
        for name in sorted(self.allocator.touched):
            claimant = self.claims.by_name.get(name)
            standing = kinds.standing_of(self.allocator.core, name)
            if claimant is None or claimant.is_gone or standing is None:
                continue
            revision = self.revision + len(offers) + 1
            offer = self._offer(claimant, standing, saved, revision)
            if not claimant.knows(offer):
                offers[name] = offer
        return offers

    def _offer(
        self, claimant: Claimant, standing: Standing, saved: SavedPool, revision: int
    ) -> Offer:
        gone = claimant.holding.leaving.union(standing.drain)
        devices = tuple(device for device in standing.devices if device not in gone)
        notice_s = claimant.report.wanted.notice_s
        if not math.isinf(standing.leave_by_s):
            notice_s = max(0.0, standing.leave_by_s - self.clock.now_s())
        return Offer(
            pool=saved.life,
            revision=revision,
            pool_devices=saved.size,
            devices=devices,
            names=tuple(name_of(saved, device) for device in devices) if saved.names else (),
            replicas=0 if standing.is_suspended else min(standing.replicas, len(devices)),
            notice_s=notice_s,
            suspend=standing.is_suspended,
            reason="; ".join(self.allocator.reasons.get(claimant.name, [])) or standing.reason,
        )

    def _saved_claims(self, offers: dict[str, Offer]) -> tuple[SavedClaim, ...]:
        """Return what must not be forgotten of each claimant; ``offers`` are about to go out."""
        return tuple(
            SavedClaim(
                name=name,
                since=claimant.since,
                wanted=claimant.report.wanted,
                pid=claimant.report.pid,
                started=claimant.started,
                revision=offer.revision if offer else 0,
                replicas=offer.replicas if offer else 0,
                suspend=bool(offer and offer.suspend),
                devices=self.allocator.owned(name),
                leaving=tuple(sorted(claimant.holding.leaving)),
                uid=claimant.uid,
            )
            for name, claimant in sorted(self.claims.by_name.items())
            for offer in [offers.get(name) or claimant.offer]
        )
