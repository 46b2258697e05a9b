"""What one more device is worth to a claim, and which sizes it can have.

Owns the arithmetic of one claim.  Knows no other claim, no team and no device.

The goodput of ``w`` replicas is proportional to ``w * efficiency(K, w) = K / ceil(K/w)``, or to
``w`` while K is not known.  What a size is *worth* is the logarithm of that: twice as fast is worth
the same to every job, whatever its size, so each further device is worth less, and the most is
gained where a job has few.  Where several devices only pay together (K = 8: from 4 replicas on,
nothing before 8), the step to the best of the larger sizes is what counts, shared out over its
devices.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from functools import lru_cache
from typing import NamedTuple

from pliant.core.allocation.values import Claim

Sizes = tuple[int, ...] | None


class Rise(NamedTuple):
    """What a claim could have next."""

    more: int
    """Devices to the next size that it takes: what it is given if that is free."""

    useful: int
    """Devices to the size with the best gain for each: what is taken from others for it."""

    gain: float
    """What one of these is worth; 0: nothing above brings anything."""


class Fall(NamedTuple):
    """What a claim would lose next."""

    less: int
    """Devices to the next smaller size."""

    loss: float
    """What one of them is worth."""


def base(claim: Claim) -> int:
    """Return the smallest size that makes sense to the claim."""
    if claim.sizes is None:
        return claim.min_replicas
    return claim.sizes[bisect_left(claim.sizes, claim.min_replicas)]


def top(claim: Claim) -> int:
    """Return the largest size that it asks for; 0: nothing."""
    return fit(base(claim), claim.sizes, claim.ask_replicas)


def fit(base: int, sizes: Sizes, count: int) -> int:
    """Return the largest size that ``count`` devices make, or 0."""
    if count < base:
        return 0
    return count if sizes is None else sizes[bisect_right(sizes, count) - 1]


@lru_cache(maxsize=1 << 16)
def rise(sizes: Sizes, top: int, num_slots: int | None, share: int) -> Rise:
    """Say what comes after ``share``, which is below ``top``."""
    above = share + 1 if sizes is None else sizes[bisect_right(sizes, share)]
    best, gain = above, 0.0
    for size in _useful(sizes, top, num_slots, share, above):
        each = (worth(size, num_slots) - worth(share, num_slots)) / (size - share)
        if each > gain:
            best, gain = size, each
    return Rise(above - share, best - share, gain)


@lru_cache(maxsize=1 << 16)
def fall(sizes: Sizes, num_slots: int | None, share: int) -> Fall:
    """Say what comes before ``share``, which is above the smallest size."""
    below = share - 1 if sizes is None else sizes[bisect_left(sizes, share) - 1]
    less = share - below
    return Fall(less, (worth(share, num_slots) - worth(below, num_slots)) / less)


@lru_cache(maxsize=1 << 16)
def worth(share: int, num_slots: int | None) -> float:
    """Return the logarithm of the goodput of a size, up to a constant of the job."""
    if num_slots is None:
        return math.log(share)
    return math.log(num_slots / math.ceil(num_slots / share))


def _useful(
    sizes: Sizes, top: int, num_slots: int | None, share: int, above: int
) -> tuple[int, ...]:
    """Return the sizes that may be the best to head for, ascending: those with fewer turns."""
    if sizes is not None:
        return tuple(size for size in sizes if share < size <= top)
    if num_slots is None:
        return (above,)
    found: list[int] = []
    turns = _ceil(num_slots, share)
    while turns > 1 and (size := _ceil(num_slots, turns - 1)) <= top:
        found.append(size)
        turns = _ceil(num_slots, size)  # as many as a step of that size takes: others come to it
    return tuple(found)


def _ceil(whole: int, parts: int) -> int:
    return -(-whole // parts)
