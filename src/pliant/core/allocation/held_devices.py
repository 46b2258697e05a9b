"""Which devices a claimant has heard of, and which it has left.

Owns the rule by which a pool believes that a device was given back: it belongs to a claimant from
the first offer that names it until a report that follows at least that offer leaves it out.  It is
free only once nothing runs on it, which is for others to see.  Revisions are those of one life of
the pool; 0 stands for those of an earlier one, which are older than all of this one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What was said between a pool and one claimant; a plain value."""

    newest: int = 0
    """Revision of the newest offer that it was told; 0: this life of the pool has told it none."""

    followed: int = 0
    """The newest revision that it has reported; 0: none."""

    offered_at: Mapping[int, int] = field(default_factory=dict)
    """In which revision it was first offered each device that is its own.  One that is missing was
    not offered yet."""

    leaving: frozenset[int] = frozenset()
    """Devices that it gave back, or that were taken from it, and that may still be in use."""


def recovered(
    devices: Collection[int], *, holds: Collection[int], leaving: Collection[int], revision: int
) -> Holding:
    """Return what is known after a restart; ``revision`` is of the last offer before.

    What it does not hold and has not left was offered in the last moment, and is offered again.
    """
    unheard = set(devices).difference(holds, leaving)
    offered_at = dict.fromkeys(devices, 0) | dict.fromkeys(unheard, revision)
    return Holding(offered_at=offered_at, leaving=frozenset(leaving))


def is_overtaken(holding: Holding, *, revision: int) -> bool:
    """Whether a later report than one that follows this revision was heard already."""
    return holding.followed > revision


def reported(
    holding: Holding, *, revision: int, holds: Collection[int], owned: Collection[int]
) -> Holding:
    """Take note of what a claimant says it holds of the devices that are its own."""
    known = {device for device in owned if holding.offered_at.get(device, math.inf) <= revision}
    return replace(
        holding,
        followed=min(revision, holding.newest),
        leaving=holding.leaving.union(known.difference(holds)),
    )


def gives_unasked(
    holding: Holding,
    *,
    revision: int,
    holds: Collection[int],
    owned: Collection[int],
    offered: Collection[int],
    replicas: int,
) -> bool:
    """Whether a report gives back more of what is ``offered`` than it was asked for."""
    after = reported(holding, revision=revision, holds=holds, owned=owned)
    given = (after.leaving - holding.leaving).intersection(offered)
    return len(given) > len(offered) - replicas


def offered(holding: Holding, *, revision: int, devices: Collection[int]) -> Holding:
    """Take note of an offer that is going out."""
    offered_at = {**dict.fromkeys(devices, revision), **holding.offered_at}
    return replace(holding, newest=revision, offered_at=offered_at)


def left(holding: Holding, devices: Collection[int]) -> Holding:
    """Take note that nothing of it runs on these devices any more."""
    kept = {device: at for device, at in holding.offered_at.items() if device not in devices}
    return replace(holding, offered_at=kept, leaving=holding.leaving.difference(devices))


def overdue(
    holding: Holding,
    *,
    devices: Collection[int],
    drain: Collection[int],
    excess: int,
    free: Collection[int],
) -> Holding:
    """Choose what a claimant must leave whose notice is over.

    What is drained, then what is ``free`` (no process uses it), and then what it was given last,
    until it has left as many as it should have given back: ``excess``.
    """
    drained = [device for device in drain if device not in holding.leaving]
    newest = sorted(
        set(devices) - holding.leaving - set(drained),
        key=lambda device: (device in free, holding.offered_at.get(device, 0), device),
        reverse=True,
    )
    missing = max(len(drained), excess - len(holding.leaving))
    return replace(holding, leaving=holding.leaving.union([*drained, *newest][:missing]))
