"""What is said to the allocation of a pool, and what it says: values, events and actions.

Frozen values only.  Nothing here decides anything; nothing here does I/O.  A claimant is a job
(elastic) or a person's claim on devices (fixed); what it asks for is its **claim**, and how many
devices it is to have is its **share**.  One replica takes one device.

Devices are numbers from 0.  A **cordoned** device is not handed out again; a **drained** one is
cordoned and taken back as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from pliant.core.tenancy import CLASS_VALUES, Demand

From = Literal["lower_priority", "same_team", "never"]


# --- what an operator sets ---------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass:
    """A name for a priority; the greater value goes first."""

    name: str
    value: int


CLASSES = tuple(PriorityClass(name=name, value=value) for name, value in CLASS_VALUES.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """From whom the claims of a team may take devices, and which of them may."""

    from_: From = "lower_priority"
    """``lower_priority``: from its own team, and from teams that use more than their quota.
    ``same_team``: from its own team only.  ``never``: its claims wait until something is free."""

    by: tuple[str, ...] | None = None
    """Priority classes whose claims may take; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Whose claims share a quota."""

    name: str
    quota: int | None = None
    """Devices that are the team's own: others may borrow what it leaves idle, and it takes them
    back whatever the borrower's priority.  None: it has none of its own, and borrows all it has."""

    borrow_limit: int | None = None
    """Devices that it may have beyond its quota; None: as many as there are."""

    reclaim: Reclaim = Reclaim()

    @property
    def limit(self) -> float:
        """How many devices it may have at most; inf: all."""
        return math.inf if self.borrow_limit is None else (self.quota or 0) + self.borrow_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """What keeps a pool from moving devices for little, and large claims from waiting for ever."""

    min_gain: float = 0.05
    """A device moves between claims of one class only if the sum of the logarithms of their
    goodputs rises by at least this: about as many per cent of one job's goodput."""

    rest_s: float = 60.0
    """And only after the claim that gives it has had the same size for so long."""

    patience_s: float = 300.0
    """A claim that has waited for its minimum for so long lets nobody of a lower rank pass any
    more, even if that one is small enough to fit now."""


# --- what a claimant asks for ------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Demand):
    """What one claimant wants, by its name."""

    name: str
    since: float = 0.0
    """When it first asked, on a clock that goes on over restarts of the pool.  Older ones go first
    within a class; only compared with other claims, never with ``now_s``."""

    @classmethod
    def of(cls, name: str, demand: Demand, *, since: float) -> Claim:
        """Return the claim of one that wants this."""
        wanted = {one: getattr(demand, one) for one in _DEMANDED}
        return cls(name=name, since=since, **wanted)


_DEMANDED = tuple(one.name for one in fields(Demand))


# --- events -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A new claim, or what a known one wants now.  One that says nothing new changes nothing.

    One that was withdrawn is there again, with the devices that were not released yet.
    """

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """The claimant is gone for good.

    What it holds stays its own until ``Released`` says that nothing runs there; send that too.
    """

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Nothing of this claimant runs on these devices any more; they are free.

    Also what it gives back of its own accord.  Devices that it does not hold are ignored.
    """

    name: str
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """After a restart of the pool: this claim is known, and holds these devices.

    Before ``Opened`` only; nothing is given or taken because of it.
    """

    claim: Claim
    devices: tuple[int, ...] = ()
    is_suspended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Everybody who may hold a device is known: from now on, give and take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesSet:
    """So many devices may be in use from now on; which ones does not matter.

    More than there ever were: devices with the next numbers come into being.  Fewer than are
    granted: claims are cut as if somebody more urgent than all of them had asked.
    """

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordoned:
    """These are not handed out any more; who holds one keeps it."""

    devices: tuple[int, ...]
    note: str = ""
    """By whom, since when and why, for those who wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """These are cordoned, and whoever holds one must give back just that one."""

    devices: tuple[int, ...]
    note: str = ""
    """By whom, since when and why, for those who wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncordoned:
    """These may be used again, whether they were cordoned or drained."""

    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamSet:
    """A new team, or new limits of one."""

    team: Team


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamRemoved:
    """A team that has no claim any more is forgotten."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSet:
    """A new priority class, or a new value of one."""

    priority: PriorityClass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """Time has passed; due at ``next_deadline_s``, harmless at any other time."""


Event = (
    Asked
    | Withdrawn
    | Released
    | Recovered
    | Opened
    | DevicesSet
    | Cordoned
    | Drained
    | Uncordoned
    | TeamSet
    | TeamRemoved
    | ClassSet
    | TimePassed
)


# --- actions ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Tell the claimant that it may have more."""

    name: str
    to: int
    """Replicas that it may have from now on, in all."""

    devices: tuple[int, ...]
    """Those that are new to it.  Empty: it may keep some that it was to give back; those that it
    has given back meanwhile are replaced in a later Grant."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """Tell the claimant to give devices back until it has ``to`` replicas."""

    name: str
    to: int
    devices: tuple[int, ...]
    """These in particular, every one of them: they are drained.  It chooses the others.  ``to``
    counts what is left without these, so that it may be as large as before, on other devices."""

    notice_s: float
    for_: str
    """The claim that gets them; empty: nobody (fewer devices, a drain, a quota, its own wish)."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspend:
    """Tell the claimant to checkpoint and give everything back; it comes back by a Grant."""

    name: str
    notice_s: float
    for_: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """Its notice is over and it still has more than it may; said once for each notice."""

    name: str
    to: int
    """Replicas that it may have."""

    excess: int
    """Devices that it should have given back."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """The claim cannot ever be met as it stands; nothing of it is kept.

    A known claim goes on as it was before it asked for this.
    """

    name: str
    reason: str


Action = Grant | Shrink | Suspend | Overdue | Refuse
Actions = tuple[Action, ...]
