"""Balance: how many slots of a step each replica computes, by how long each needs for one.

Owns the decision, from numbers that all members of a generation have alike: what each said of its
own time on entering, and beside each vote since.  So all come to the same at the same step, and
nobody has to be asked.  Must not know tensors, clocks or who the replicas are; integers only.

    votes of 8 steps --medians--> a division at least a tenth faster? --yes--> from the next step
                                                                     --no---> as it was

Which division: the one whose slowest replica is fastest and, of those, one that needs few partial
sums; no replica needs more than ``most_partials``, so that memory can be kept ready for them.

Against thrashing: medians of several steps, a gain that noise of one part in forty cannot feign,
and after each change a pause that doubles with the next one (``Division.patience``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate

from pliant.core.step import batching

UNKNOWN_US = 0
"""In place of a time: the replica has computed nothing yet, or nothing in this step."""

WINDOW_STEPS = 8
"""Steps whose times are looked at together."""

_MOST_PATIENCE = 16
"""Windows between two changes, at most."""

FAR, NEAR = 20, 15
"""Tenths of the time of the others from which on a replica is slow, and below which it is not."""

_GRAIN = 5

_CALM = 8
"""Windows in a row without a wish to change, after which the pause is halved."""

_TRIES = 16
"""Step times that are tried, the shortest first, before all stays as it is."""

_REACH = 8
"""How far a cut may lie from where it would lie if all were filled alike, in slots."""


class Balance(StrEnum):
    """By what the slots of a step are divided over the replicas."""

    EVEN = "even"
    SPEED = "speed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How the slots are divided in a generation, and what was heard of the times since."""

    num_slots: int
    sizes: tuple[int, ...]
    """Slots of each replica, in rank order."""

    pace_us: tuple[int, ...]
    """Microseconds that each takes for what it computes at once, as far as it is known."""

    balance: Balance

    at_once: int
    """Slots that a replica computes at the same time."""

    heard: tuple[tuple[int, ...], ...] = ()
    """Times of the steps since ``pace_us`` was last concluded."""

    rest: int = 0
    """Windows before the next change."""

    patience: int = 1
    """Windows to rest after it."""

    calm: int = 0
    """Windows in a row in which nothing would have moved."""

    @property
    def step_us(self) -> int:
        """Estimate how long the slots of a step take."""
        return step_us(self.sizes, self.pace_us, self.at_once)


def divide(
    num_slots: int, said_us: Sequence[int], *, balance: Balance, at_once: int = 1
) -> Division:
    """Divide the slots over replicas of which each said its own time on entering."""
    sizes = even_sizes(num_slots, len(said_us))
    assumed = _assumed(said_us)
    if assumed is not None and balance is Balance.SPEED:
        sizes = _better(num_slots, sizes, assumed, at_once)
    return Division(
        num_slots=num_slots,
        sizes=sizes,
        pace_us=tuple(said_us),
        balance=balance,
        at_once=at_once,
    )


def hear_times(division: Division, said_us: Sequence[int]) -> Division:
    """Take the times that all members said beside their votes for a step, in rank order."""
    if UNKNOWN_US in said_us:
        return division
    heard = (*division.heard, tuple(said_us))
    if len(heard) < WINDOW_STEPS:
        return replace(division, heard=heard)
    pace_us = tuple(_median(column) for column in zip(*heard, strict=True))
    division = replace(division, pace_us=pace_us, heard=())
    if division.balance is Balance.EVEN:
        return division
    if division.rest:
        return replace(division, rest=division.rest - 1)
    sizes = _better(division.num_slots, division.sizes, pace_us, division.at_once)
    if sizes == division.sizes:
        if division.calm + 1 < _CALM:
            return replace(division, calm=division.calm + 1)
        return replace(division, calm=0, patience=max(1, division.patience // 2))
    longer = min(2 * division.patience, _MOST_PATIENCE)
    return replace(division, sizes=sizes, rest=division.patience, patience=longer, calm=0)


def pace_of(division: Division, rank: int) -> int:
    """Return what a member is to say of its time when it enters the next generation."""
    known_us = division.pace_us[rank]
    if division.heard and (known_us == UNKNOWN_US or 2 * len(division.heard) > WINDOW_STEPS):
        return _median([said[rank] for said in division.heard])
    return known_us


def slowness(division: Division, rank: int, before: int) -> int:
    """Return how many times as long as the others one takes, in tenths; 0: not markedly.

    Markedly from ``FAR`` on, until it is below ``NEAR`` again (``before``: what was said last); in
    steps of ``_GRAIN``, so that what is said seldom changes.
    """
    own, *others = division.pace_us[rank], *_but(division.pace_us, rank)
    if UNKNOWN_US in (own, *others) or not others:
        return 0
    tenths = 10 * own // _median(others)
    return tenths - tenths % _GRAIN if tenths >= (NEAR if before else FAR) else 0


def _but(pace_us: Sequence[int], rank: int) -> tuple[int, ...]:
    return (*pace_us[:rank], *pace_us[rank + 1 :])


def step_us(sizes: Sequence[int], pace_us: Sequence[int], at_once: int = 1) -> int:
    """Estimate how long the slots of a step take: as long as the slowest replica needs."""
    return max(-(-size // at_once) * pace for size, pace in zip(sizes, pace_us, strict=True))


def even_sizes(num_slots: int, num_replicas: int) -> tuple[int, ...]:
    """Return the slots of each replica where nobody looks at times."""
    return tuple(map(len, batching.ownership(num_slots, num_replicas)))


def most_partials(num_slots: int, num_replicas: int) -> int:
    """Return how many partial sums one replica needs at most, however the slots are divided.

    As many more than evenly as a range has that is cut at any place instead of a good one.
    """
    owners = batching.ownership(num_slots, num_replicas)
    evenly = max(map(len, batching.partials(num_slots, owners)))
    return evenly + (-(-num_slots // num_replicas)).bit_length() - 1


def _assumed(pace_us: Sequence[int]) -> tuple[int, ...] | None:
    """Take who has not computed yet for one in the middle of the others."""
    known = [pace for pace in pace_us if pace != UNKNOWN_US]
    return tuple(pace or _median(known) for pace in pace_us) if known else None


def _median(times_us: Sequence[int]) -> int:
    return sorted(times_us)[(len(times_us) - 1) // 2]


def _better(
    num_slots: int, sizes: tuple[int, ...], pace_us: Sequence[int], at_once: int
) -> tuple[int, ...]:
    """Return sizes that take a tenth less at least, never more than even ones; else ``sizes``."""
    within_us = step_us(sizes, pace_us, at_once) * 9 // 10
    even = even_sizes(num_slots, len(sizes))
    even_us = step_us(even, pace_us, at_once)
    limit_us = _shortest(num_slots, pace_us, at_once, even_us)
    for _ in range(_TRIES):
        if limit_us >= min(within_us + 1, even_us):
            break
        caps = _caps(num_slots, pace_us, at_once, limit_us)
        if found := _fewest_partials(num_slots, caps, at_once):
            return found
        limit_us = _next_longer(num_slots, caps, pace_us, limit_us)
    return even if even_us <= within_us else sizes


def _shortest(num_slots: int, pace_us: Sequence[int], at_once: int, even_us: int) -> int:
    """Return the shortest time in which all slots can be computed, at least one by each."""
    low, high = max(pace_us), even_us
    while low < high:
        middle = (low + high) // 2
        if sum(_caps(num_slots, pace_us, at_once, middle)) >= num_slots:
            high = middle
        else:
            low = middle + 1
    return high


def _caps(num_slots: int, pace_us: Sequence[int], at_once: int, limit_us: int) -> list[int]:
    """Return how many slots each could compute in that time, and leave one to each other."""
    most = num_slots - len(pace_us) + 1
    return [min(most, limit_us // pace * at_once) for pace in pace_us]


def _next_longer(num_slots: int, caps: Sequence[int], pace_us: Sequence[int], limit_us: int) -> int:
    """Return the shortest time in which somebody could compute more than within ``limit_us``."""
    most = num_slots - len(pace_us) + 1
    longer = [
        (limit_us // pace + 1) * pace for cap, pace in zip(caps, pace_us, strict=True) if cap < most
    ]
    return min(longer, default=limit_us + 1)


def _fewest_partials(num_slots: int, caps: Sequence[int], at_once: int) -> tuple[int, ...] | None:
    """Return sizes up to ``caps`` that need few partial sums; None if some need too many.

    Cuts are laid from left to right; of those that lead to one place the best way is kept.
    """
    most = most_partials(num_slots, len(caps))
    trimmed = _trimmed(caps, num_slots)
    centre = list(accumulate(trimmed))
    row: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for cap, about, middle in zip(caps, trimmed, centre, strict=True):
        reach = 0 if middle == num_slots else _REACH
        following: dict[int, tuple[int, tuple[int, ...]]] = {}
        for start, (partials, sizes) in row.items():
            for size in range(min(cap, about + _REACH), max(0, about - at_once - _REACH), -1):
                stop = start + size
                if abs(stop - middle) > reach:
                    continue
                own = len(batching.subtrees(num_slots, range(start, stop)))
                known = following.get(stop)
                if own <= most and (known is None or partials + own < known[0]):
                    following[stop] = (partials + own, (*sizes, size))
        row = following
    return row[num_slots][1] if num_slots in row else None


def _trimmed(caps: Sequence[int], num_slots: int) -> list[int]:
    """Take away what is more than all slots, from each in turn; each keeps one."""
    sizes = list(caps)
    spare = sum(sizes) - num_slots
    while spare:
        for rank, size in enumerate(sizes):
            if spare and size > 1:
                sizes[rank] -= 1
                spare -= 1
    return sizes
