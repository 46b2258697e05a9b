"""What a claimant asks of its pool, and what it may use: offers in, devices and its turn out.

Owns what is asked for (``Demand``), and the rule by which a job follows its pool: which offers
count, when its turn has come, on which devices processes may be started, which ones it gives back
when, and whether it comes back after its end.  Must not know who runs where, or how an offer
arrives.

    WAITING --offered its minimum--> RUNNING --suspend--> SUSPENDING
       ^                                |                      |
       +---------- every process of the job is gone -----------+

    offered {0,1,2} replicas 3    usable {0,1,2}
    started on 0, 1, 2            used   {0,1,2}
    offered {0,1,2} replicas 2    usable {0,1,2}     the job drains one of its own choice, on 1
    1 is left                     usable {0,2}       1 is given back: the next report leaves it out
    offered {0,4}   replicas 2    usable {0,4}       2 must be left, and is held until it is

A device that is used is never given back, and one that was given back is not used again unless a
newer offer names it.

In a pool that several users of a machine share it also owns who may do what: whose a claim is, what
only the pool's owner may do, and how many claims and changes one user has.  Must not know how a
user is recognised (the kernel says it), nor what anybody gets (``core.allocation``).

    ada: claim gpt          -> ada/gpt: hers alone, whatever bob calls his own
    bob: team vision        -> refused, if the team is for ada and cy
    bob: pool stop          -> refused: the pool is its owner's
    bob: claim after claim  -> after some dozen changes: wait
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from pliant.core.errors import EXIT_STOPPED
from pliant.core.policy.decide import Policy
from pliant.core.text import MOST_S

DEFAULT_POOL = "default"
"""Name of a pool that was given none."""

DEFAULT_TEAM = "default"
"""The team that is always there, without a quota: it may use everything that nobody is owed."""

DEFAULT_CLASS = "normal"

CLASS_VALUES = {"urgent": 1000, "high": 100, DEFAULT_CLASS: 0, "low": -100}
"""Priority classes that every pool begins with; a file may give them other values."""

Kind = Literal["elastic", "fixed"]

MOST_SIZES = 4096
"""Sizes that a demand can name."""

MOST_SLOTS = 10_000_000
"""K of a step, as a pool is told of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a claimant wants of its pool; all of it may change while it runs."""

    kind: Kind = "elastic"
    team: str = field(default=DEFAULT_TEAM, metadata={"max_length": 63})
    priority: str = field(default=DEFAULT_CLASS, metadata={"max_length": 63})
    """Name of a priority class."""

    device_kind: str = field(default="", metadata={"max_length": 16})
    """Of which kind its devices are; empty: of the pool's first, or of none where none has one."""

    min_replicas: int = field(default=1, metadata={"ge": 1, "le": 1 << 53})
    """Guaranteed, and given all at once; with fewer it is suspended or has not begun.  To a pool it
    is a number of devices, as all of these are: see ``in_devices``."""

    ask_replicas: int = field(default=1, metadata={"ge": 0, "le": 1 << 53})
    """What it could use now, at most.  Fixed: equal to ``min_replicas``.  0: nothing for now."""

    sizes: tuple[int, ...] | None = field(default=None, metadata={"max_length": MOST_SIZES})
    """The only sizes that it takes, ascending; None: any from the minimum on."""

    num_slots: int | None = field(default=None, metadata={"ge": 1, "le": MOST_SLOTS})
    """K of its step: what one more replica is worth follows from it.  None: not known yet."""

    can_suspend: bool = False
    """Whether it has checkpoints, so that even its minimum can be taken."""

    notice_s: float = field(default=30.0, metadata={"ge": 0, "le": MOST_S})
    """How long it may take to give devices back."""


def demand_of(
    policy: Policy,
    *,
    ask_replicas: int,
    num_slots: int | None = None,
    can_suspend: bool = False,
) -> Demand:
    """Return what a job with this policy needs.

    What is left over beside an allowed size is of no use, unless it is kept warm as a spare.
    """
    sizes = policy.sizes(ask_replicas) if policy.has_gaps and not policy.spares else ()
    return Demand(
        min_replicas=policy.min_replicas,
        ask_replicas=ask_replicas,
        sizes=sizes or None,
        num_slots=num_slots,
        can_suspend=can_suspend,
        notice_s=policy.graceful_shutdown_timeout_s,
    )


def first_demand(policy: Policy) -> Demand:
    """Return what a job asks for before its core has decided anything.

    Without bounds its minimum: what its steps can use is known once the first script has said so,
    and until then nobody else must give anything up for it.
    """
    ask = policy.start_replicas or policy.max_replicas or policy.min_replicas
    return demand_of(policy, ask_replicas=max(ask + policy.spares, policy.min_replicas))


def next_demand(now: Demand, before: Demand, policy: Policy) -> Demand:
    """Return what a job asks for by what its core knows; in doubt, what it asked for before."""
    is_bounded = policy.max_replicas is not None or policy.start_replicas is not None
    is_known = now.num_slots is not None or is_bounded
    ask = now.ask_replicas if is_known else before.ask_replicas
    return replace(
        now,
        team=before.team,
        priority=before.priority,
        device_kind=before.device_kind,
        ask_replicas=max(ask, now.min_replicas),
        sizes=now.sizes if is_known else before.sizes,
        num_slots=now.num_slots or before.num_slots,
        can_suspend=now.can_suspend or before.can_suspend,
    )


def in_devices(demand: Demand, workers_per_replica: int) -> Demand:
    """Return a demand for replicas as one for devices, of which each replica needs several at once.

    What one more replica is worth stays as it is: the slots grow with the devices.  Of more sizes
    than a demand can name the largest are not asked for.
    """
    if workers_per_replica == 1:
        return demand
    every = demand.sizes or range(demand.min_replicas, demand.ask_replicas + 1)
    sizes = every[:MOST_SIZES]
    asked = min(demand.ask_replicas, sizes[-1]) if sizes else demand.ask_replicas
    slots = demand.num_slots
    return replace(
        demand,
        min_replicas=demand.min_replicas * workers_per_replica,
        ask_replicas=asked * workers_per_replica,
        sizes=tuple(size * workers_per_replica for size in sizes) or None,
        num_slots=None if slots is None else min(slots * workers_per_replica, MOST_SLOTS),
    )


# --- a job ---------------------------------------------------------------------------


class Admission(StrEnum):
    """Whether it is the job's turn."""

    WAITING = "waiting"
    """It has no process, and starts none."""

    RUNNING = "running"

    SUSPENDING = "suspending"
    """It saves and ends its processes: its minimum is needed elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlace:
    """Which pool a job runs in, for whom, and how urgently."""

    name: str = DEFAULT_POOL
    team: str = DEFAULT_TEAM
    priority: str = DEFAULT_CLASS
    device_kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """One job in its pool; a plain value."""

    min_replicas: int
    """With fewer its turn does not come."""

    admission: Admission = Admission.WAITING

    is_suspended: bool = False
    """WAITING: it ran before, and goes on where it stopped."""

    pool: str = ""
    """The life of the pool whose offers count; empty: none was taken yet."""

    revision: int = 0
    """Of the newest offer that was taken."""

    replicas: int = 0
    """How many it may have."""

    usable: frozenset[int] = frozenset()
    """Devices that processes may be started on, once it is its turn."""

    used: frozenset[int] = frozenset()
    """Devices that have a process."""

    is_stopped: bool = False
    """A person has asked the job to stop or to suspend; else only the pool does."""

    @property
    def holds(self) -> tuple[int, ...]:
        """Return the devices that nobody else may have, ascending."""
        return tuple(sorted(self.usable | self.used))

    @property
    def unwanted(self) -> frozenset[int]:
        """Return the devices that have a process and must be left, whoever is on them."""
        return self.used - self.usable

    @property
    def room(self) -> int:
        """Return how many replicas it may have now, and has devices for."""
        return 0 if self.admission is Admission.WAITING else min(self.replicas, len(self.usable))


def follow_offer(
    tenancy: Tenancy,
    *,
    pool: str,
    revision: int,
    devices: frozenset[int],
    replicas: int,
    suspend: bool = False,
) -> Tenancy:
    """Follow an offer; one that is not newer changes nothing.

    Revisions of two lives of a pool cannot be compared.
    """
    if pool == tenancy.pool and revision <= tenancy.revision:
        return tenancy
    taken = replace(tenancy, pool=pool, revision=revision, replicas=replicas, usable=devices)
    taken = _without_surplus(taken)
    is_on = tenancy.admission is not Admission.WAITING
    if suspend:
        return replace(taken, admission=Admission.SUSPENDING if is_on else Admission.WAITING)
    if not is_on and min(replicas, len(devices)) >= tenancy.min_replicas:
        return replace(taken, admission=Admission.RUNNING, is_suspended=False)
    return taken


def occupy(tenancy: Tenancy, used: frozenset[int]) -> Tenancy:
    """Take note of the devices that have a process now."""
    return _without_surplus(replace(tenancy, used=used))


def vacate(tenancy: Tenancy) -> Tenancy:
    """Give everything back: every process is gone."""
    return replace(
        tenancy,
        admission=Admission.WAITING,
        is_suspended=tenancy.is_suspended or tenancy.admission is not Admission.WAITING,
        replicas=0,
        usable=frozenset(),
        used=frozenset(),
    )


def end_asked(tenancy: Tenancy, *, reason: str = "") -> Tenancy:
    """Take note that the job is to stop or to suspend; only the pool gives a reason for it."""
    return tenancy if reason else replace(tenancy, is_stopped=True)


def end_life(tenancy: Tenancy) -> Tenancy:
    """Take note that no process is left: one that is suspended for others gives everything back.

    A job that is over keeps its devices until it withdraws: offered again, they would only come
    back to it.
    """
    is_for_others = tenancy.admission is Admission.SUSPENDING and not tenancy.is_stopped
    return vacate(tenancy) if is_for_others else tenancy


def is_over(tenancy: Tenancy, *, exit_code: int) -> bool:
    """Whether a job that has ended like this does not come back when its turn comes again."""
    return exit_code != EXIT_STOPPED or tenancy.is_stopped


# --- a fixed claim -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """What a fixed claim does to hold what it is offered; nothing if it does already."""

    leave: tuple[int, ...]
    take: tuple[int, ...]


def swap_for(
    held: Collection[int],
    count: int,
    *,
    devices: Collection[int],
    replicas: int,
    suspend: bool,
) -> Swap | None:
    """Return how ``count`` devices are held by an offer; None: they are not, or not any more."""
    if suspend or min(replicas, len(devices)) < count:
        return None
    leave = tuple(device for device in held if device not in devices)
    others = sorted(set(devices).difference(held))
    return Swap(leave=leave, take=tuple(others[: count - len(held) + len(leave)]))


def _without_surplus(tenancy: Tenancy) -> Tenancy:
    """Give back devices without a process, as far as there are more than replicas."""
    surplus = max(0, len(tenancy.usable) - tenancy.replicas)
    idle = sorted(tenancy.usable - tenancy.used, reverse=True)
    return replace(tenancy, usable=tenancy.usable.difference(idle[:surplus]))


# --- a pool that several users of a machine share

MOST_CLAIMS = 64
"""Claims of one user at once; a person with a script has a few dozen jobs at most."""

BURST = 60
"""Changes of claims that one user makes without waiting: each is a line of the log."""

REST_S = 2.0
"""Seconds after which one more is possible."""

MOST_NOTICE_S = 3600.0
"""Longest notice of a claim in a pool of several users, in seconds: it is the claimant who sets it,
and the others who wait meanwhile.  No checkpoint takes an hour."""

Access = Mapping[str, tuple[str, ...]]
"""Who may use a team or a class, by its name; everybody may use those that are not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who asks something of a shared pool, by the kernel's word."""

    uid: int
    pid: int
    user: str
    is_owner: bool = False
    """It started the pool, or is root: it may do all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How many changes a user may still make now; a plain value."""

    left: float = BURST
    at_s: float = 0.0


def claim_name(user: str, name: str) -> str:
    """Return what a user's claim is called in the pool; no other user's can be called like it."""
    return f"{user}/{name}"


def is_of(user: str, claim: str) -> bool:
    """Whether a claim of the pool is this user's."""
    return claim.startswith(f"{user}/")


def administration_refusal(visitor: Visitor, *, owner: str) -> str:
    """Say why somebody may not change what is everybody's; nothing if it may."""
    if visitor.is_owner:
        return ""
    return f"only {owner}, whose pool it is, and root may do this; you are {visitor.user}"


def claim_refusal(
    visitor: Visitor, wanted: Demand, *, before: Demand | None, teams: Access, classes: Access
) -> str:
    """Say why somebody may not claim this; nothing if it may.

    What it has asked for ``before`` it may go on to ask for, whatever was changed since: else its
    reports were refused, and it could neither be told what to give back nor say that it has.
    """
    if visitor.is_owner:
        return ""
    team, priority = (before.team, before.priority) if before else (None, None)
    for what, name, had, access in (
        ("team", wanted.team, team, teams),
        ("class", wanted.priority, priority, classes),
    ):
        users = access.get(name)
        if name != had and users is not None and visitor.user not in users:
            whose = ", ".join(users) or "nobody but its owner"
            return f"{what} {name} is for {whose}, and you are {visitor.user}"
    most_s = max(MOST_NOTICE_S, before.notice_s if before else 0.0)
    if wanted.notice_s > most_s:
        return (
            f"a notice of {wanted.notice_s:g} s is too long for a pool that users share; ask for"
            f" {most_s:g} s at most"
        )
    return ""


def crowd_refusal(visitor: Visitor, *, claims: int) -> str:
    """Say why somebody may have no further claim; nothing if it may."""
    if claims < MOST_CLAIMS:
        return ""
    return f"{visitor.user} has {claims} claims, and may have no more than {MOST_CLAIMS} at once"


def spend(allowance: Allowance, *, now_s: float) -> tuple[Allowance, float]:
    """Make one change; return what is left, and 0, or in how many seconds it is possible.

    ``now_s`` is monotonic.
    """
    passed_s = max(0.0, now_s - allowance.at_s)
    left = min(float(BURST), allowance.left + passed_s / REST_S)
    allowance = replace(allowance, left=left, at_s=max(now_s, allowance.at_s))
    if left < 1.0:
        return allowance, (1.0 - left) * REST_S
    return replace(allowance, left=left - 1.0), 0.0
