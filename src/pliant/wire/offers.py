"""What a pool and its claimants tell each other, over HTTP with JSON bodies.

Owns the two bodies: what a claimant reports and what a pool offers it.  A claimant is a job
(elastic) or a person's claim on devices (fixed); what it asks for is ``core.tenancy.Demand``.
Decides nothing.

    claimant -> pool    PUT /v1/claims/{name}   Report, at every change and every so often -> Offer
    pool -> claimant    PUT /v1/offer           Offer, at every change

Both say everything, so that either may be lost.  A device belongs to a claimant from the first
offer that names it until a report of at least that offer's revision leaves it out; the process that
uses it holds the lock of its file meanwhile, so that even a lie starts no second one on it.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator, with_config

from pliant.core.tenancy import Demand
from pliant.wire.bounds import excess

HEARTBEAT_S = 2.0
"""Between two reports of a claimant to which nothing happens, in seconds."""

SILENT_S = 15.0
"""After so long without a report a claimant is taken for dead once its devices' locks are free."""


with_config(ConfigDict(extra="forbid"))(Demand)  # said here, as the core knows no pydantic


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Report(_Body):
    """Where a claimant stands; the body of ``PUT /v1/claims/{name}``."""

    wanted: Demand
    pool: Annotated[str, Field(max_length=64)] = ""
    """Which life of the pool ``revision`` is of: those of another one are not comparable."""

    revision: Annotated[int, Field(ge=0)] = 0
    """Of the newest offer it follows; 0: none."""

    holds: tuple[int, ...] = ()
    """Devices that it may start a process on, or has one on."""

    url: str = ""
    """Where it takes offers; empty: only as answers to its reports."""

    token: str = ""
    """Bearer token for ``url``."""

    pid: Annotated[int, Field(ge=1)]
    """Its process on this machine."""

    is_running: bool = False
    """A job: processes are started; it is past waiting for its minimum."""

    is_suspended: bool = False
    """It has checkpointed and given everything back, and waits for its minimum again."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if found := excess({"sizes": self.wanted.sizes, "holds": self.holds}):
            raise ValueError(found)
        return self

    def revision_of(self, life: str) -> int:
        """Return how far it follows this life of the pool; 0: not at all."""
        return self.revision if self.pool == life else 0


class Offer(_Body):
    """What a claimant may use; answer to a report, and body of ``PUT /v1/offer``."""

    pool: str
    """Identity of this life of the pool: revisions of another one are not comparable."""

    revision: Annotated[int, Field(ge=1)]
    """Grows with every change; one that is not newer is ignored."""

    pool_devices: Annotated[int, Field(ge=0)] = 0
    """How many the pool has in all, for a job without a maximum of its own; 0: not said."""

    devices: tuple[int, ...] = ()
    """Those it may have processes on: what it holds, and new ones.  One that it holds and that is
    not named must be left within ``notice_s``, whoever is on it: the device is drained."""

    names: tuple[str, ...] = ()
    """What ``devices`` are called, in their order; empty: they are numbers only."""

    replicas: Annotated[int, Field(ge=0)] = 0
    """How many it may have; fewer than ``devices``: it is to choose which ones to give back."""

    notice_s: Annotated[float, Field(ge=0)] = 30.0
    """Time for that, before the pool ends what is left of it."""

    suspend: bool = False
    """Its minimum is needed elsewhere: checkpoint, give everything back, and wait."""

    reason: str = ""
    """One sentence for people: who took or gave it, and why."""
