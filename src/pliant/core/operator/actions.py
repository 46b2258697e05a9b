"""What the operator may do for one job, as values.

Owns the vocabulary; must not know when an action is right (``plan``), nor the requests that it
takes (``kube.writing``).  Every action may be carried out twice, or on what has gone meanwhile:
creating what exists and deleting what is gone are successes, and what is deleted or patched is
named by its uid, so that its successor of the same name is left alone.

Order: first ``Plan.status`` is written, with the resourceVersion that was read; if that is refused
nothing else is done.  Then the actions, in order; each may fail by itself, and the next plan takes
it up again.  Only ``TellLeave`` is never waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pliant.core.operator.state import JobStatus, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPart:
    """Create a part of the job, or bring one that has changed to what it should be.

    A part that is made once is created and never replaced: if it exists, it is left as it is.
    """

    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateWorkload:
    """Ask for the base or an increment, at the priority class and in the queue of either."""

    increment: str
    count: int
    """Agent pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCoordinator:
    """Create the coordinator's pod."""

    avoid_nodes: tuple[str, ...] = ()
    """On which pods of the job failed again and again: a preference, or else nothing is left of a
    small cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAgent:
    """Create one agent's pod, as the admission of its Workload says (flavors, podSetUpdates)."""

    increment: str
    index: int
    avoid_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TellLeave:
    """Tell the coordinator that a node will leave: ``POST /v1/nodes/{node}/leave``.

    Sent beside the other actions: what follows does not wait for its answer, and a coordinator that
    is not reached is not asked again.
    """

    node: str
    """Name of the agent's pod."""

    notice_s: float
    reason: str
    """As ``preempted by team-b/urgent``: what ``explain`` repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Delete a pod of this uid."""

    name: str
    uid: str
    grace_s: int | None = None
    """None: what its specification says; 0: at once, without its node's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteWorkload:
    """Give back what a Workload holds, or withdraw what it asks for."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPodsReady:
    """Write the condition ``PodsReady`` of a Workload."""

    name: str
    uid: str
    is_ready: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueWorkload:
    """Release the quota of an evicted Workload, and queue it again.

    Condition ``Requeued`` as said; ``QuotaReserved`` and ``Admitted`` become False, and
    ``status.admission`` is removed.
    """

    name: str
    uid: str
    is_requeued: bool
    """True only after a preemption or a failed node; otherwise Kueue itself says when."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishWorkload:
    """Write the condition ``Finished`` of a Workload, which releases its quota."""

    name: str
    uid: str
    reason: Literal["Succeeded", "Failed"]
    message: str


Action = (
    ApplyPart
    | CreateWorkload
    | CreateCoordinator
    | CreateAgent
    | TellLeave
    | DeletePod
    | DeleteWorkload
    | SetPodsReady
    | RequeueWorkload
    | FinishWorkload
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """For people: an Event about the ElasticJob."""

    reason: str
    """In Kubernetes' way, as ``IncrementAdmitted``."""

    note: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now, what to write down, and when to look again if nothing happens."""

    status: JobStatus
    """Written first, unless it equals what was read."""

    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after_s: float | None = None
    """None: nothing changes by time alone."""
