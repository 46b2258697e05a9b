"""The offers of a pool: who must be told what now, and what is written of each claimant before.

Decides nothing: an offer says what the core says, without what its claimant is leaving.
"""

from __future__ import annotations

import math

from pliant.core.allocation import Standing, kinds
from pliant.pool.claims import Claimant, Claims
from pliant.pool.state import SavedClaim, SavedPool, name_of
from pliant.wire.offers import Offer


def fresh_offers(claims: Claims, saved: SavedPool) -> dict[str, Offer]:
    """Return the offers that say something new, by claim; ``saved``: what is written so far."""
    offers: dict[str, Offer] = {}
    for name in sorted(claims.allocator.touched):
        claimant = claims.by_name.get(name)
        standing = kinds.standing_of(claims.allocator.core, name)
        if claimant is None or claimant.is_gone or standing is None:
            continue
        revision = saved.revision + len(offers) + 1
        offer = _offer(claims, claimant, standing, saved, revision)
        if not claimant.knows(offer):
            offers[name] = offer
    return offers


def _offer(
    claims: Claims, claimant: Claimant, standing: Standing, saved: SavedPool, revision: int
) -> Offer:
    gone = claimant.holding.leaving.union(standing.drain)
    devices = tuple(device for device in standing.devices if device not in gone)
    notice_s = claimant.report.wanted.notice_s
    if not math.isinf(standing.leave_by_s):
        notice_s = max(0.0, standing.leave_by_s - claims.allocator.clock.now_s())
    why = claims.allocator.reasons.get(claimant.name, [])
    return Offer(
        pool=saved.life,
        revision=revision,
        pool_devices=saved.size,
        devices=devices,
        names=tuple(name_of(saved, device) for device in devices) if saved.names else (),
        replicas=0 if standing.is_suspended else min(standing.replicas, len(devices)),
        notice_s=notice_s,
        suspend=standing.is_suspended,
        reason="; ".join(why) or standing.reason,
    )


def saved_claims(claims: Claims, offers: dict[str, Offer]) -> tuple[SavedClaim, ...]:
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
            devices=claims.allocator.owned(name),
            leaving=tuple(sorted(claimant.holding.leaving)),
            uid=claimant.uid,
        )
        for name, claimant in sorted(claims.by_name.items())
        for offer in [offers.get(name) or claimant.offer]
    )
