"""What people and the outside ask of a job."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.policy.fields import Policy
from pliant.core.values import ReplicaId


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """Someone wants the job to have this many replicas."""

    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """Someone wants another policy from now on; one that is impossible is declined, whole."""

    policy: Policy

    said: str = ""
    """What was set, for people: ``maxReplicas=6``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested:
    """Someone wants this replica to leave within ``notice_s``; the target falls by one."""

    replica: ReplicaId
    notice_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRequested:
    """Someone wants this replica to die: a fault, replaced under a new name."""

    replica: ReplicaId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Someone wants the job to stop: at the next step boundary, or at once and without saving."""

    at_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendRequested:
    """Someone wants the job to stop at the next step boundary, save, and go on another day."""

    reason: str = ""
    """Why, if the outside wants it and no person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The outside has capacity for ``replicas`` replicas in all, until it says otherwise."""

    replicas: int

    notice_s: float | None = None
    """How long those may take that must leave for it.  None: the policy's graceful time-out."""
    reason: str = ""
    """For people: who took or gave it, and why."""
    leave: tuple[ReplicaId, ...] = ()
    """Whose devices are not among those it is offered: they leave, as if reclaimed with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """The outside takes these replicas back in ``notice_s``; it does not ask."""

    replicas: tuple[ReplicaId, ...]
    notice_s: float


PeopleEvent = (
    Scaled
    | PolicySet
    | DrainRequested
    | KillRequested
    | StopRequested
    | SuspendRequested
    | Offered
    | Reclaimed
)
