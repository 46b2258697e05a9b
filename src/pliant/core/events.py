"""What happens to a job: what workers, agents, people and time tell the core.

Frozen values only.  The class names are the types of the wire and of the event log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pliant.core.policy.fields import Policy
from pliant.core.values import (
    NO_GENERATION,
    NO_INCARNATION,
    NO_LINEAGE,
    AgentLife,
    CheckpointInfo,
    Generation,
    Incarnation,
    Labels,
    Lineage,
    NodeId,
    ReplicaId,
)

OUT_OF_MEMORY = "SIGKILL, as the kernel was out of memory"
"""Detail of an exit by a signal that nobody here has sent, while the kernel killed processes."""


class ExitKind(StrEnum):
    """How a worker's process ended."""

    FINISHED = "finished"
    """Exit 0 after Finished."""

    LEFT = "left"
    """Exit 0 of a leaver, or of one that was dismissed."""
    USAGE = "usage"
    """Exit 2: ConfigError or UsageError; the detail is its sentence."""

    SCRIPT = "script"
    """An exception of the script; the detail is the last line of its traceback."""

    SIGNAL = "signal"
    """Ended by a signal; the detail is its name."""
    EARLY = "early"
    """Exit 0 without having finished, for instance a script without a Session."""
    UNKNOWN = "unknown"
    """Its agent has never run it (R21): it was not started, or an agent before ran it."""
    CORRUPT = "corrupt"
    """Its state was not that of most replicas; the detail says what differs."""
    TAKEN = "taken"
    """Its device is in use, so that the script was not run; the detail says which, and by whom."""
    DEVICE = "device"
    """Its device has failed or has too little memory, while the script ran; the detail says how."""
    SHORT = "short"
    """Its machine was short of something, or its certificate cannot be used: no fault of a script;
    the detail says what."""


# --- from workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """A script has done ``calls`` calls of ``steps()``, and waits in the next one to join."""

    replica: ReplicaId
    calls: int
    num_slots: int
    """K of the script: micro-batches of one step."""

    layout: str
    """Digest of the bucket layout, agreed before the first collective.  Compared for equality; of
    a text of several lines the first that differs is named."""

    endpoint: str
    """``host:port`` at which this worker is reached while a generation is met."""

    identity: tuple[tuple[str, str], ...] = ()
    """What must be equal for exact results (seed, threads, versions), by name."""

    has_state: bool = False
    is_durable: bool = False
    """Its script keeps checkpoints."""

    checkpoints: tuple[CheckpointInfo, ...] = ()
    """Published checkpoints of the job that this worker can see, newest first."""

    asked_by: Incarnation = NO_INCARNATION
    looked: int = 0
    """Whose ListCheckpoints, and which, had come before it looked; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Where a worker stands: its answer to RollCall (R4).

    All that a new coordinator knows of it; whatever the worker said earlier is contained in it.
    """

    replica: ReplicaId
    asked_by: Incarnation
    """Whose RollCall it answers.  From then on the worker refuses older coordinators."""

    lineage: Lineage
    committed: int
    """Committed steps; 0 without state."""

    calls: int
    has_state: bool
    current: Generation
    """The generation it is in; 0: none was entered yet."""

    prepared: Generation
    """The newest Prepare it has accepted and neither entered nor given up; 0: none."""

    ordered: Generation
    """The same once its Switch has arrived; 0: none."""

    broken: bool
    """A collective of ``current`` has failed here, or ``current`` was sealed by a Reform."""

    leaving: bool
    """A leaver that has done the boundary step and waits for Release."""

    finished: bool
    """The script has done its last step; it waits for Release."""

    spare: Spare | None
    """What it said of itself when it last waited in ``steps()`` to join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrestorable:
    """The origin of ``generation`` could not load the checkpoint that its order names.

    Said once it is sure, as nobody tries that checkpoint again while this coordinator lives.  The
    origin holds no state then and waits for a Reform.
    """

    replica: ReplicaId
    generation: Generation
    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishAsked:
    """All shares of a checkpoint are on storage: may it be published? (R20)

    May be asked again.  There is no answer but Publish: none comes in a lineage that is over, and
    none may come while one coordinator follows another.
    """

    replica: ReplicaId
    lineage: Lineage
    committed: int
    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint was published and is durable: it may be restored should all state be lost."""

    replica: ReplicaId
    lineage: Lineage
    committed: int
    checkpoint: str
    calls: int = 0
    """Finished ``steps()`` calls when it was taken."""

    seconds: float = 0.0
    """From its snapshot until it was durable."""

    place: str = ""
    """Directory or URL that it is."""

    digest: str = ""
    """Of its manifest, which has those of all that it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The groups of ``generation`` are built; a leaver answers at once."""

    replica: ReplicaId
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """``generation`` cannot be entered as ordered."""

    replica: ReplicaId
    """The sender; with ``joiner`` the joiner that is to be dropped, whoever says it."""

    generation: Generation
    reason: str
    joiner: bool
    """True: ``replica`` is an incompatible or failed joiner.  False: only try again."""

    calls: int = 0
    """More than 0 if joiner and members only are in different ``steps()`` calls: how many the one
    ahead has finished.  Then the joiner is not dropped, and comes again."""
    unreached: tuple[ReplicaId, ...] = ()
    """Members to which no connection could be made from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """``replica`` trains in ``generation``, after a Switch or a Reform."""

    replica: ReplicaId
    generation: Generation
    step: int
    """Its number of committed steps on entering."""
    received_bytes: int = 0
    """Of a joiner: tensors of the state that it was given, by this worker."""
    received_s: float = 0.0
    """How long that took, from when it began to wait for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A collective of ``generation`` failed on ``replica``, which now waits for a Reform."""

    replica: ReplicaId
    generation: Generation
    reason: str
    unreached: tuple[ReplicaId, ...] = ()
    """Members to which no connection could be made from here."""

    failure: ExitKind | None = None
    """How the script has failed, in restart mode: the replica lives, and starts it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """Heartbeat; sent every half second, and after commits."""

    replica: ReplicaId
    generation: Generation
    """The generation it is in; 0 for a spare."""
    committed: int
    calls: int
    waiting: Generation = NO_GENERATION
    """It waits for the others in a collective of this generation; 0: it does not."""
    held_up_by: int | None = None
    """The worker for which the others of this replica wait (``worker_activity``)."""
    is_spoken_for: bool = False
    """Its agent says so, who sees it live: its script keeps the interpreter lock."""
    slow: int = 0  # how many times as long as the others it takes, in tenths; 0: less than twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """No step will end for up to ``max_s``: a long tail is no hang."""

    replica: ReplicaId
    max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The script has done its last step; the worker waits for Release."""

    replica: ReplicaId
    committed: int
    lineage: Lineage = NO_LINEAGE
    """The history whose last step that was; 0: it left the loop, and others may go on."""

    lacks_tail: bool = False
    """Its script asks for the leader in the tail of that step, which was another one's to lead."""

    lacks_end: bool = False
    """The same of what its script does behind that."""


WorkerEvent = (
    Spare
    | Registered
    | Prepared
    | Refused
    | Unrestorable
    | Switched
    | Broken
    | Progressed
    | Busy
    | PublishAsked
    | Saved
    | Finished
)


# --- from agents


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """An agent connected; its node can run this many replicas at a time."""

    node: NodeId
    devices: int

    replicas: tuple[ReplicaId, ...] = ()
    """Those that it runs already: their coordinator, or the connection to it, is a new one."""

    life: AgentLife = AgentLife()  # noqa: RUF009 - frozen
    labels: Labels = ()
    """Where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """All workers that an agent runs or is about to start; said every few seconds, never late."""

    node: NodeId
    replicas: tuple[ReplicaId, ...] = ()

    ailing: tuple[ReplicaId, ...] = ()
    """Those on a device that is not healthy: they leave if the job can spare or replace them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailed:
    """The agent of a node can start no worker any more; what it ran has ended, and it says so."""

    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeaving:
    """A node is to go, as its agent or the outside says: what it runs has ``notice_s`` to leave."""

    node: NodeId
    notice_s: float
    reason: str = ""
    """For whom, or why, as the outside says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSilent:
    """The agent of a node is connected, and has said nothing for ``silent_s``."""

    node: NodeId
    others: tuple[NodeId, ...] = ()
    """Found silent at the same moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node is gone, and with it every process it ran."""

    node: NodeId
    others: tuple[NodeId, ...] = ()
    """Gone at the same moment."""

    has_left: bool = False
    """Its agent was told to end, and has said that it leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """Every process of ``replica`` has ended and was reaped: what they ran on is free."""

    replica: ReplicaId
    kind: ExitKind
    detail: str = ""
    worker: int | None = None  # whose end it was, if it has several and nobody asked for it


@dataclass(frozen=True, slots=True, kw_only=True)
class DiedTogether:
    """The processes of these were ended by signals at one moment; of each its Exited follows."""

    replicas: tuple[ReplicaId, ...]


AgentEvent = (
    NodeJoined | Running | NodeSilent | NodeLeaving | NodeLost | NodeFailed | Exited | DiedTogether
)


# --- from people


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
class CheckpointRequested:
    """Someone wants a checkpoint now: of the next step boundary that can be saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Someone wants the job to stop: at the next step boundary, or at once and without saving."""

    at_once: bool = False
    is_pressed: bool = False
    """Who asks is about to be ended itself: it has the policy's graceful time-out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendRequested:
    """Someone wants the job to stop at the next step boundary, save, and go on another day."""

    reason: str = ""
    """Why, if the outside wants it and no person."""

    notice_s: float | None = None
    """How long that may take.  None: as long as a step may."""


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
    | CheckpointRequested
    | PolicySet
    | DrainRequested
    | KillRequested
    | StopRequested
    | SuspendRequested
    | Offered
    | Reclaimed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Only time has passed."""


Event = WorkerEvent | AgentEvent | PeopleEvent | Ticked
