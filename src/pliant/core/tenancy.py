"""What one job may use of its pool: offers in, the devices that it holds and its turn out.

Owns the rule by which a job follows its pool: which offers count, when its turn has come, on which
devices processes may be started, and which ones it gives back when.  Must not know how many
replicas the job wants (the policy), who runs where, or how an offer arrives.

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
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


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

    name: str = "default"
    team: str = "default"
    priority: str = "normal"


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


def is_newer(tenancy: Tenancy, *, pool: str, revision: int) -> bool:
    """Whether an offer counts; revisions of two lives of a pool cannot be compared."""
    return pool != tenancy.pool or revision > tenancy.revision


def take(
    tenancy: Tenancy,
    *,
    pool: str,
    revision: int,
    devices: frozenset[int],
    replicas: int,
    suspend: bool = False,
) -> Tenancy:
    """Follow an offer; one that is not newer changes nothing."""
    if not is_newer(tenancy, pool=pool, revision=revision):
        return tenancy
    taken = replace(tenancy, pool=pool, revision=revision, replicas=replicas, usable=devices)
    taken = _without_surplus(taken)
    if suspend:
        is_on = tenancy.admission is not Admission.WAITING
        return replace(taken, admission=Admission.SUSPENDING if is_on else Admission.WAITING)
    if (
        tenancy.admission is Admission.WAITING
        and min(replicas, len(devices)) >= tenancy.min_replicas
    ):
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


def _without_surplus(tenancy: Tenancy) -> Tenancy:
    """Give back devices without a process, as far as there are more than replicas."""
    surplus = max(0, len(tenancy.usable) - tenancy.replicas)
    idle = sorted(tenancy.usable - tenancy.used, reverse=True)
    return replace(tenancy, usable=tenancy.usable.difference(idle[:surplus]))
