"""What the operator knows of one job when it decides: its objects, the cluster, its own memory.

Owns these values and the names of a job's objects.  Decides nothing (``plan``), and must not know
how objects are read (``kube.reading``).  Everything here is about one ElasticJob; objects of the
same name that another one owns are ``foreign``.

    the job's objects, nodes, queues ---> Snapshot --+
                                                     +--> plan(snapshot, now_s) --> Plan
    status.memory of the ElasticJob  ---> Memory ----+

All moments are seconds since 1970: they are compared with what the API server wrote, and must mean
the same to an operator that was started anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pliant.core.policy.fields import Policy

BASE = "base"
"""The increment that is the guaranteed minimum."""

# --- names of objects


def increment_name(number: int) -> str:
    """Return ``base`` for 0, ``x1`` for the first increment, and so on."""
    return f"x{number}" if number else BASE


def increment_number(name: str) -> int:
    """Return the number of an increment by its name."""
    return 0 if name == BASE else int(name.removeprefix("x"))


def coordinator_name(job: str) -> str:
    """Return the name of the coordinator's pod, and of its Service, account and roles."""
    return f"{job}-coordinator"


def workload_name(job: str, increment: str) -> str:
    """Return the name of the Workload of an increment."""
    return f"{job}-{increment}"


def agent_name(job: str, increment: str, index: int) -> str:
    """Return the name of an agent's pod, which is its node's name to the coordinator as well."""
    return f"{job}-{increment}-{index}"


class Part(StrEnum):
    """What a job has once, from its first day, beside pods and Workloads; in order of creation."""

    TOKEN = "token"  # noqa: S105 - a name
    """Secret ``J-token``: made once, with random bytes, and never written again."""

    REGISTER = "register"
    """ConfigMap ``J-register``: made once, empty; afterwards only the coordinator writes it."""

    MANIFEST = "job"
    """ConfigMap ``J-job``: what the coordinator reads of the job; follows it."""

    ACCOUNT = "account"
    """ServiceAccount ``J-coordinator``."""

    ROLE = "role"
    BINDING = "binding"
    SERVICE = "service"
    """Service ``J-coordinator``."""

    NETWORK_POLICY = "network-policy"
    """NetworkPolicy ``J``."""


MADE_ONCE = frozenset({Part.TOKEN, Part.REGISTER})
"""Parts that hold what exists nowhere else: gone while the job runs, they are reported and not
made again, as an empty register would let the next coordinator begin at step 0."""

PART_KINDS = {
    Part.TOKEN: "Secret",
    Part.REGISTER: "ConfigMap",
    Part.MANIFEST: "ConfigMap",
    Part.ACCOUNT: "ServiceAccount",
    Part.ROLE: "Role",
    Part.BINDING: "RoleBinding",
    Part.SERVICE: "Service",
    Part.NETWORK_POLICY: "NetworkPolicy",
}


def part_name(job: str, part: Part) -> str:
    """Return the name of a part's object."""
    if part in (Part.TOKEN, Part.REGISTER, Part.MANIFEST):
        return f"{job}-{part}"
    return job if part is Part.NETWORK_POLICY else coordinator_name(job)


# --- the job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """The ElasticJob as its user wrote it."""

    name: str
    namespace: str
    uid: str
    generation: int
    policy: Policy
    """``max_replicas`` is never None on a cluster."""

    hosts_per_replica: int = 1
    """Agent pods of one replica."""

    replicas: int | None = None
    """The user's wish, ``spec.replicas``; None: the policy decides."""

    is_suspended: bool = False
    """``spec.suspend``."""

    is_deleting: bool = False
    """It has a deletionTimestamp; what it owns is collected by the cluster."""

    queue: str = ""
    """LocalQueue of the base; empty: without Kueue, whether it is installed or not."""

    increments_queue: str = ""
    """LocalQueue of the increments, which may only borrow; empty: that of the base."""

    grace_s: float = 30.0
    """``terminationGracePeriodSeconds`` of agent pods."""

    ask_timeout_s: float = 300.0
    """How long pods of an increment may wait for a node until the increment is given back."""


# --- Kueue's side


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Why Kueue takes a Workload back: condition ``Evicted``, with status True."""

    reason: str
    """As Kueue has it: ``Preempted``, ``PodsReadyTimeout``, ``Deactivated``, ..."""

    message: str = ""
    """Of the condition ``Preempted`` if there is one, else of ``Evicted``."""

    by: str = ""
    """Who preempted it, as ``team-b/urgent``; empty: nobody did, or it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadView:
    """A Workload that the job owns."""

    name: str
    uid: str
    increment: str
    """``base``, ``x1``, ...; by its label."""

    count: int
    """Agent pods in its pod set."""

    created_s: float
    is_deleting: bool = False
    is_active: bool = True
    """``spec.active``; False: a person, or Kueue after too many tries, took it out."""

    has_quota: bool = False
    """Condition ``QuotaReserved``; stays True after an eviction until the operator releases it."""

    is_admitted: bool = False
    """Condition ``Admitted``: quota and all admission checks."""

    eviction: Eviction | None = None
    """Stays after quota was released, until quota is reserved again."""

    is_finished: bool = False
    pods_ready: bool | None = None
    """Condition ``PodsReady``; None: not written yet."""

    pods_ready_reason: str = ""
    pending_reason: str = ""
    """Reason of a condition ``QuotaReserved`` or ``Admitted`` that is False."""

    pending_message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """A LocalQueue that the job asks, and its ClusterQueue."""

    name: str
    exists: bool = True
    cluster_queue: str = ""
    is_active: bool = True
    """False: stopped, or Kueue says it cannot admit."""

    message: str = ""
    """Why it is not active, in Kueue's words."""

    gives_back: bool = True
    """Whether its ClusterQueue preempts at all; False: ``withinClusterQueue`` and
    ``reclaimWithinCohort`` are both ``Never``, so that no increment is ever taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Facts about cluster and namespace."""

    has_kueue: bool = True
    """Kueue's kinds are served, in a version that the operator knows."""

    queues: tuple[QueueView, ...] = ()
    """Of the base, and of the increments if it is another one."""

    has_default_queue: bool = False
    """The namespace has a LocalQueue named ``default``, which captures pods without a queue."""

    agent_room: int | None = None
    """Agent pods that ResourceQuotas of the namespace still allow; None: any number."""

    coordinator_room: bool = True
    """Whether they allow a coordinator's pod."""

    room_reason: str = ""
    """Which quota is exhausted, or what a LimitRange refuses, in one clause; empty: nothing."""


# --- pods and nodes


class PodPhase(StrEnum):
    """Of a pod, in Kubernetes' words."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnding:
    """How the job ended, by the termination message of its coordinator."""

    exit_code: int
    reason: str = ""
    state: str = ""
    step: int | None = None
    digest: str = ""
    audit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """A pod that the job owns: its coordinator or an agent."""

    name: str
    uid: str
    increment: str = ""
    """Of an agent; empty: it is the coordinator."""

    index: int = 0
    """Of an agent within its increment."""

    phase: PodPhase = PodPhase.PENDING
    is_ready: bool = False
    created_s: float = 0.0
    node: str = ""
    """Empty: not scheduled yet."""

    unschedulable: str = ""
    """Message of a condition ``PodScheduled`` that is False with reason Unschedulable."""

    waiting: str = ""
    """Why its container does not start, as ``ErrImagePull: ...``; empty: nothing is wrong."""

    is_deleting: bool = False
    delete_by_s: float | None = None
    """Its deletionTimestamp: then its grace is over."""

    disruption: str = ""
    """Reason of a condition ``DisruptionTarget`` that is True, as ``PreemptionByScheduler``."""

    failure: str = ""
    """Of a pod that failed, as ``OOMKilled`` or ``Error (exit code 1)``."""

    ending: JobEnding | None = None
    """Of a coordinator whose container ended by a decision."""

    is_captured: bool = False
    """It has a queue's name or a scheduling gate of Kueue's, which the operator did not give it."""

    @property
    def is_coordinator(self) -> bool:
        """Whether it is the coordinator's pod."""
        return not self.increment

    @property
    def is_over(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """Of a node."""

    key: str
    effect: str = "NoSchedule"
    value: str = ""
    added_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node on which a pod of the job is.

    One that is not in the snapshot is gone or not known: the cluster itself collects its pods.
    """

    name: str
    is_ready: bool = True
    not_ready_since_s: float | None = None
    is_cordoned: bool = False
    taints: tuple[Taint, ...] = ()


# --- the coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandView:
    """What ``GET /v1/demand`` says."""

    useful: int
    """Replicas that it could use, spares included."""

    num_slots: int | None = None
    can_suspend: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorView:
    """What the coordinator's process says; its pod is among the pods."""

    is_reached: bool = False
    """Whether the newest request was answered."""

    demand: DemandView | None = None
    """Of the newest answer of this pod; None: it has not answered yet."""

    num_replicas: int | None = None
    """That train, if it says so."""


# --- the operator's memory: part of the ElasticJob's status


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """An increment that was asked for; without Kueue this is all there is of it but its pods."""

    increment: str
    count: int
    """Agent pods."""

    asked_s: float
    is_held: bool = False
    """Its pods have all had a node: from then on it counts as given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A pod that failed."""

    pod: str
    uid: str
    node: str
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An agent that leaves though its increment stays: the coordinator was told so."""

    uid: str
    reason: str
    leave_by_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How the job ended; final."""

    ending: JobEnding
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a restarted operator must know; bounded, and written before actions are carried out.

    It is read back from the ElasticJob, so the shell must never plan on a job that is older than
    its own last write of the status.
    """

    begun_s: float | None = None
    """When the job was first given its base: from then on a register is never made again."""

    asks: tuple[Ask, ...] = ()
    """Without Kueue: the increments that are asked for or held."""

    lost_s: tuple[float, ...] = ()
    """When increments were taken, or given back; those in a row count once.  Oldest first."""

    lost_level: int = 0
    """How many such losses followed each other."""

    is_resting: bool = False
    """Nothing was asked for since the last of them."""

    lost_reason: str = ""
    returning: tuple[str, ...] = ()
    """Workloads that are given back, by uid: their pods leave first."""

    surplus_since_s: float | None = None
    """Since when the job holds more than it could use."""

    suspended_s: float | None = None
    """When it began to suspend; None: it does not, or it was given its base again."""

    suspended_reason: str = ""
    silent_s: float | None = None
    """Since when the coordinator was not reached."""

    failures: tuple[Failure, ...] = ()
    """Of the last hour, oldest first."""

    told: tuple[Told, ...] = ()
    outcome: JobOutcome | None = None


# --- status


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Of the ElasticJob; ``observedGeneration`` is the status' own."""

    type: str
    status: str
    """``True``, ``False`` or ``Unknown``."""

    reason: str
    message: str
    since_s: float
    """When it last changed its status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """``status`` of the ElasticJob; equal values mean that nothing need be written."""

    observed_generation: int = 0
    phase: str = ""
    """Pending, Starting, Running, Suspending, Suspended, Succeeded, Failed or Stopped."""

    reason: str = ""
    """Why it is what it is, and what it waits for, in one sentence."""

    replicas: int = 0
    """Those that all needed agents are ready of; what the ``scale`` subresource shows."""

    admitted_replicas: int = 0
    """Sum over base and increments that it may use."""

    allowed_replicas: int = 0
    """The largest allowed size not above that."""

    wanted_replicas: int | None = None
    """What it could use by demand, policy and wish, without spares; None: not known yet."""

    pending: str = ""
    """Increment that is asked for."""

    conditions: tuple[Condition, ...] = ()
    memory: Memory = field(default_factory=Memory)


# --- all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a decision depends on."""

    job: JobView
    status: JobStatus = field(default_factory=JobStatus)
    """As it was last written."""

    parts: frozenset[Part] = frozenset()
    """Those that exist and belong to the job."""

    outdated: frozenset[Part] = frozenset()
    """Of these, those that differ from what they should be; never one that is made once."""

    foreign: tuple[str, ...] = ()
    """Objects, as ``Pod/gpt-base-0``, that have a name of the job's and belong to somebody else."""

    workloads: tuple[WorkloadView, ...] = ()
    pods: tuple[PodView, ...] = ()
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    coordinator: CoordinatorView = field(default_factory=CoordinatorView)
    cluster: ClusterView = field(default_factory=ClusterView)
