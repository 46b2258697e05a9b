"""The nouns every room shares: identifiers, orders and the register.

Frozen values only.  Nothing here decides anything; nothing here does I/O.

``committed`` is always a *number of committed steps*.  Step numbers count from 0, so step ``s``
is the one that takes ``committed`` from ``s`` to ``s + 1``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from pliant.core.policy.fields import Policy

ReplicaId = NewType("ReplicaId", str)
"""Name of one replica, ``r1``, ``r2``, ...  A replacement gets a new one; none is used twice."""

NodeId = NewType("NodeId", str)
"""Name of a machine."""

Labels = tuple[tuple[str, str], ...]
"""What a node says of where it is: each key with its value."""

Generation = NewType("Generation", int)
"""Number of one attempt at a fixed membership.  Grows; never reused, even if it fails.  0: none."""

Incarnation = NewType("Incarnation", int)
"""Number of one life of a coordinator.  Commands of an older one are refused."""

Lineage = NewType("Lineage", int)
"""Number of one history of committed steps; a restore opens a new one."""

NO_GENERATION = Generation(0)
NO_INCARNATION = Incarnation(0)
NO_LINEAGE = Lineage(0)
FIRST_LINEAGE = Lineage(1)

CHECKPOINT_PLACE = "checkpoint_place"
"""In the identity of a worker: the mark of where it keeps checkpoints."""

DATASET_SAMPLES = "dataset_samples"
"""In the identity of a worker: how many samples its dataset has."""

KERNELS = "kernels"
"""In the identity of a worker: the instruction set of torch's kernels."""

DEVICE = "device"
"""In the identity of a worker: its accelerator, and the beginning of each name of what that has."""

DEVICE_TYPE = "device_type"
"""In the identity of a worker: as torch calls where its model is."""

NUMERICS = "numerics"
"""In the identity of a worker: a digest of what some operations give there."""

SCRIPT_MODULE = "module "
"""In the identity of a worker: begins the name of each module that its script has imported."""

SAMPLE = "sample "
"""In the identity of a worker: begins the name of each sample of its dataset that was looked at."""

TOTAL = "total of steps() "
"""In the identity of a worker: begins the name of how far a call of ``steps()`` goes."""

NO_CHECKPOINT = ""
"""Name of the checkpoint that a history begins from if it begins at step 0 once more."""


# --- what is on storage -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A published checkpoint that a worker has seen on storage."""

    name: str
    committed: int
    lineage: Lineage
    """The history it was taken from."""

    calls: int = 0
    """Finished ``steps()`` calls of those who took it: where a script must be to load it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """One beginning of a new history from a checkpoint (R20)."""

    checkpoint: str
    """Its name; ``NO_CHECKPOINT``: the origin's initial state."""

    committed: int
    """The step that comes next: where the new history leaves the old one."""

    lineage: Lineage


# --- what a generation is -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One member of an order; its index in the order is its replica_rank."""

    replica: ReplicaId

    endpoint: str
    """``host:port`` at which this member is reached while a generation is met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One attempt at a fixed membership, as Prepare, Switch and Reform carry it."""

    generation: Generation

    members: tuple[Seat, ...]
    """In replica_rank order: those of one host beside each other, so that they own neighbouring
    slots; the first is a survivor if there is any."""

    origin: ReplicaId | None = None
    """Whose initial state counts if *no* member holds state.

    Set until a first generation of this lineage has formed, None ever after: from then on a
    generation without a holder of state is a lost run, not a fresh one.
    """

    restore: Restore | None = None
    """What the origin loads in place of its initial state; set and unset together with it."""

    hold: bool = False
    """Form, but do not train: there are fewer members than ``minReplicas``."""

    @property
    def replicas(self) -> tuple[ReplicaId, ...]:
        """Names of the members in replica_rank order."""
        return tuple(seat.replica for seat in self.members)


def host_of(endpoint: str) -> str:
    """Return the host of ``host:port``."""
    return endpoint.rpartition(":")[0]


def arranged(seats: Iterable[Seat]) -> tuple[Seat, ...]:
    """Put the members of each host beside each other, in the order of the first of each.

    Stable: the first stays the first, and who is before another of its host stays so.
    """
    hosts: dict[str, list[Seat]] = {}
    for seat in seats:
        hosts.setdefault(host_of(seat.endpoint), []).append(seat)
    return tuple(seat for host in hosts.values() for seat in host)


class FromCheckpoint(StrEnum):
    """What a run does with checkpoints that lie in its place when it starts."""

    AUTO = "auto"
    """Go on from those of the same job with the same arguments, and refuse others."""
    ANYWAY = "anyway"
    """Go on, whoever wrote them."""
    NEVER = "never"
    """Begin at step 0 unless this run wrote them itself."""


class Exchange(StrEnum):
    """How replicas exchange what is on accelerators."""

    AUTO = "auto"
    """By NCCL where its package nccl4py is installed and no TLS is asked for, else by the host."""
    HOST = "host"
    """Through host memory, and sockets or shared memory."""
    NCCL = "nccl"
    """From device to device, by NCCL; refused where that cannot be."""


class Mode(StrEnum):
    """How the size of a job changes."""

    IN_PLACE = "inPlace"
    """In the processes that train, by their sessions."""
    RESTART = "restart"
    """By starting the processes of its script again, which go on from their own checkpoint."""


class StopKind(StrEnum):
    """What someone who wants a job to stop has in mind."""

    STOP = "stop"
    SUSPEND = "suspend"
    """It is to go on later: a checkpoint is written first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLife:
    """One life of an agent; of two under one name the later one counts."""

    boot: int = 0
    """Of which machine, and which of its starts; 0: not known."""

    uptime: int = 0
    """Microseconds from that start to the agent's."""

    at: int = 0
    """Its wall clock then, in microseconds since 1970: clocks jump, so it says least."""

    def follows(self, other: AgentLife) -> bool:
        """Whether this one began later."""
        if self.boot and self.boot == other.boot:
            return self.uptime > other.uptime
        return self.at > other.at


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ends: written before anything that depends on it, so that it is decided once."""

    exit_code: int
    reason: str

    is_final: bool = False
    """A replica has left by itself since, or nothing is to follow.  Until then a script may still
    be at what it does after its last step, and if all are lost at that, it is not done."""

    leader: ReplicaId | None = None
    """Whose script alone does after the last step what is to be done once; None after a stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """The coordinator's durable record (R1).

    Write-ahead: written by compare-and-swap and confirmed *before* any command that came with it
    is sent.  A conflict means that another coordinator has taken over.
    """

    incarnation: Incarnation

    number: Generation
    """Highest generation number ever issued, for Prepare or otherwise."""

    lineage: Lineage

    newest: Order | None = None
    """The newest Switch or Reform: the recorded generation.  None before the first."""

    joiners: tuple[ReplicaId, ...] = ()
    """Members of ``newest`` that were not members of the generation before it."""

    leavers: tuple[ReplicaId, ...] = ()
    """Replicas that ``newest`` leaves behind; no later Reform may contain one."""

    restore: Restore | None = None
    """The newest restore, kept for ever after."""

    named: int = 0
    """Replicas ever named: ``r1`` to ``r<named>``.  No later coordinator uses one again."""

    wished: int | None = None
    """The size that someone asked for last."""

    policy: Policy | None = None
    """What someone has set while the job ran; None: nobody has."""

    policy_given: Policy | None = None
    """What it took the place of.  Whoever starts the job with another policy wants that one."""

    num_changes: int = 0
    """Voluntary changes that may still hold the next one back, and how many followed each other:
    a new coordinator takes them for made at its start."""

    backoff_level: int = 0

    has_checkpoints: bool = False
    """Somebody has seen a checkpoint of this job, or published one."""

    homes: tuple[tuple[ReplicaId, NodeId], ...] = ()
    """Where the members of ``newest`` run: an agent of that node knows if one has ended."""

    stop: StopKind | None = None
    """Somebody has asked the members of ``newest`` to stop."""

    outcome: Outcome | None = None
    """The job has finished, or was ended."""

    last_step: tuple[Lineage, int] | None = None
    """A replica has done the last step: of which history, and how many steps that are."""


# --- where a node has what it proves itself with


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Files in PEM form; replicas need all three.  Of a job, the absolute paths on every node."""

    ca: str = ""
    """The certificate that signs those of all nodes; several may stand in one file.  Empty: who
    serves asks for no certificate, and who connects trusts the CAs of the system."""

    certificate: str = ""
    """Each node has its own here, with those between it and the CA, if there are any.  Empty: who
    connects has none, and proves itself by the token alone."""

    key: str = ""
    """Of the certificate; without a password."""

    @property
    def is_whole(self) -> bool:
        """Whether both ends of a connection can prove themselves with them."""
        return bool(self.ca and self.certificate and self.key)
