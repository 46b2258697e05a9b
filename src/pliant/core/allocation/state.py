"""The pool as a value, and the lists in which a claim is found without looking at the others.

Owns what is kept and how it is indexed; decides nothing.  Devices are bits of an int: 10,000 of
them are 1,250 bytes, of which a union, a difference or a count takes less than a microsecond.

Two things are told apart everywhere: the **share** of a claim, a number that is decided at once,
and the **devices** that it holds, which follow when others have given them back.  Shares never add
up to more than there is (``usable``), so whatever is on its way is already somebody's.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pliant.core.allocation import demand
from pliant.core.allocation.values import Claim, PoolRules, PriorityClass, Team
from pliant.core.table import Table

Key = tuple[Any, ...]
"""Of a claim in a list; its name comes last."""

Keys = tuple[Key, ...]
"""A list: sorted, without duplicates."""

Group = tuple[Any, ...]
"""What a list is about; claims of one list differ in nothing that decides whether they can have
what they ask for, so that where the first one cannot, none can."""

WAITING = "waiting"
"""Claims below their minimum, by team, class and what is missing; oldest first."""

GROWING = "growing"
"""Claims that ask for more, by team, class and step; greatest gain first."""

CUTTABLE = "cuttable"
"""Claims above their minimum, by team and class; newest first."""

DROPPABLE = "droppable"
"""Claims whose minimum can be taken, by team and class; first those that hold nothing
yet, then the newest."""

RESTED = "rested"
"""Claims above their minimum that have not changed for a while, by team and class; least loss
first."""

EXPECTING = "expecting"
"""Claims whose share is larger than what they hold; in the order in which they are served."""

IMPATIENT = "impatient"
"""Claims that have waited for their minimum for long; in the order in which they are served."""

ALARMS = "alarms"
"""When to look at which claim again."""

LISTS = (WAITING, GROWING, CUTTABLE, DROPPABLE, RESTED, EXPECTING, IMPATIENT, ALARMS)

NEVER = math.inf


class ClaimEntry(NamedTuple):
    """One claim and all that is known of it.

    A tuple, because entries are replaced some dozen times in an event.
    """

    claim: Claim
    value: int
    """Of its priority class."""

    base: int
    """Its smallest size; ``demand.base``."""

    top: int
    """The largest size that it asks for; ``demand.top``."""

    share: int = 0
    held: int = 0
    """Devices that are granted and not released, as bits."""

    drained: int = 0
    """Those of ``held`` that are to be given back in particular."""

    told: int = 0
    """Replicas that it was last told it may have."""

    told_drain: int = 0
    """Devices that it was last told to give back in particular."""

    patient_until_s: float = NEVER
    """Until then it lets smaller claims of a lower rank pass; inf: it is not waiting, or that is
    over."""

    is_impatient: bool = False
    rests_until_s: float = -NEVER
    """Until then it gives nothing to its equals; -inf: that is over."""

    leave_by_s: float = NEVER
    is_suspended: bool = False
    """Its minimum was taken, and it has not been told that it may have it again."""

    is_withdrawn: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        """Name of the claim."""
        return self.claim.name

    @property
    def keeps(self) -> int:
        """Devices that it holds and may keep, counted."""
        return (self.held & ~self.drained).bit_count()

    @property
    def is_waiting(self) -> bool:
        """Whether it asks for its minimum and is not to have it."""
        return self.share < self.base <= self.top

    def fit(self, count: int) -> int:
        """Return the largest size of this claim that ``count`` devices make."""
        return demand.fit(self.base, self.claim.sizes, count)

    def lower(self, wanted: int) -> int:
        """Return the largest size that gives ``wanted`` back, or else the smallest."""
        return self.fit(self.share - wanted) or self.base

    @property
    def rise(self) -> demand.Rise:
        """What it could have next, above its minimum."""
        return demand.rise(self.claim.sizes, self.top, self.claim.num_slots, self.share)

    @property
    def fall(self) -> demand.Fall:
        """What it would lose next, above its minimum."""
        return demand.fall(self.claim.sizes, self.claim.num_slots, self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Everything that the next decision depends on; read it with ``standing`` and ``summary``."""

    size: int
    """Devices there are: ``0 .. size-1``."""

    limit: int
    """How many may be in use."""

    classes: Table[str, PriorityClass]
    teams: Table[str, Team]
    rules: PoolRules
    is_open: bool
    held: int = 0
    """Devices held by anybody, as bits."""

    cordoned: int = 0
    drained: int = 0
    """Of the cordoned ones, those that are taken back as well."""

    foreign: int = 0
    """Devices of another kind, as bits: among the cordoned ones for ever, and not told of."""

    notes: Table[int, str] = field(default_factory=Table)
    """By whom, since when and why a device is cordoned, as far as it was said."""

    entries: Table[str, ClaimEntry] = field(default_factory=Table)
    lists: Table[str, Table[Group, Keys]] = field(
        default_factory=lambda: Table({name: Table() for name in LISTS})
    )
    share: int = 0
    """Sum of all shares."""

    used: Table[str, int] = field(default_factory=Table)
    """Sum of the shares of each team that has any."""

    takeable: Table[Group, int] = field(default_factory=Table)
    """Devices above minimums and in minimums that could be taken, by kind, team and class."""


def listed(entry: ClaimEntry) -> tuple[tuple[str, Group, Key], ...]:
    """Return where this claim is listed, and under which key."""
    claim, name, since = entry.claim, entry.name, entry.claim.since
    level: Group = (claim.team, entry.value)
    found: list[tuple[str, Group, Key]] = []
    if entry.leave_by_s < NEVER:
        found.append((ALARMS, (), (entry.leave_by_s, "leave", name)))
    if entry.is_withdrawn:
        return tuple(found)
    if entry.is_waiting:
        missing = entry.base - entry.share
        found.append((WAITING, (*level, missing), (since, name)))
        if entry.patient_until_s < NEVER:
            found.append((ALARMS, (), (entry.patient_until_s, "wait", name)))
        if entry.is_impatient:
            found.append((IMPATIENT, (), (-entry.value, since, name)))
    elif entry.share < entry.top:
        more, useful, gain = entry.rise
        found.append((GROWING, (*level, more, useful), (-gain, since, name)))
    if entry.share > entry.base:
        found.append((CUTTABLE, level, (-since, name)))
        if entry.rests_until_s == -NEVER:
            found.append((RESTED, level, (entry.fall.loss, -since, name)))
        else:
            found.append((ALARMS, (), (entry.rests_until_s, "rest", name)))
    elif entry.share and (claim.can_suspend or not entry.held):
        found.append((DROPPABLE, level, (bool(entry.held), -since, name)))
    if entry.keeps < entry.share:
        found.append((EXPECTING, (), (-entry.value, entry.keeps >= entry.base, since, name)))
    return tuple(found)


def takeable(entry: ClaimEntry) -> tuple[tuple[Group, int], ...]:
    """Return what this claim could be made to give, by kind of list, team and class.

    Its minimum counts also while it has more, and is not in DROPPABLE yet.
    """
    if entry.is_withdrawn:
        return ()
    level = (entry.claim.team, entry.value)
    found: list[tuple[Group, int]] = []
    if entry.share > entry.base:
        found.append(((CUTTABLE, *level), entry.share - entry.base))
    if entry.share and (entry.claim.can_suspend or not entry.held):
        found.append(((DROPPABLE, *level), min(entry.share, entry.base)))
    return tuple(found)


def added(keys: Keys, key: Key) -> Keys:
    """Return a list with this key, which it does not have."""
    at = bisect_left(keys, key)
    return (*keys[:at], key, *keys[at:])


def without(keys: Keys, key: Key) -> Keys:
    """Return a list without this key, which it has."""
    at = bisect_left(keys, key)
    return keys[:at] + keys[at + 1 :]


def bits(devices: tuple[int, ...]) -> int:
    """Return device numbers as bits."""
    found = 0
    for device in devices:
        found |= 1 << device
    return found


def numbers(found: int) -> tuple[int, ...]:
    """Return bits as device numbers, ascending."""
    devices: list[int] = []
    while found:
        lowest = found & -found
        devices.append(lowest.bit_length() - 1)
        found ^= lowest
    return tuple(devices)


def lowest(found: int, count: int) -> int:
    """Return the ``count`` lowest bits."""
    chosen = 0
    for _ in range(count):
        bit = found & -found
        chosen |= bit
        found ^= bit
    return chosen
