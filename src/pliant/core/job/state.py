"""One job as the controller sees it: its replicas, nodes and settings, and what follows from them.

Owns the value and plain facts about it: who counts as live, which device is free, how much of the
restart budget is left.  Decides nothing; ``controller`` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from pliant.core.commands import Command
from pliant.core.errors import ConfigError
from pliant.core.events import Event, ExitKind, Registered, Spare
from pliant.core.job.node_pauses import Apartness, AsideNodes
from pliant.core.membership.state import NEVER, Membership, Timeouts, members, outsiders
from pliant.core.membership.transitions import Phase
from pliant.core.placement import PlacementRule
from pliant.core.policy.costs import Costs
from pliant.core.policy.decide import Decision, Policy
from pliant.core.policy.hysteresis import Pace
from pliant.core.table import Table
from pliant.core.transitions import EventHistory
from pliant.core.values import (
    NO_GENERATION,
    CheckpointInfo,
    Generation,
    Incarnation,
    Labels,
    Lineage,
    NodeId,
    Outcome,
    Register,
    ReplicaId,
    StopKind,
)


class JobPhase(StrEnum):
    """Where a job is in its life."""

    RECOVERING = "recovering"
    """This coordinator is not the first: it waits until the members have said where they stand."""

    STARTING = "starting"
    """Until a first generation of a lineage is prepared: waits for the replicas to start with."""

    RUNNING = "running"

    STOPPING = "stopping"
    """Someone asked for it; the members stop after the same step."""

    FINISHING = "finishing"
    """The last step is done or the stop is reached; the processes are leaving."""

    ENDED = "ended"


class ReplicaState(StrEnum):
    """Where a replica is in its life."""

    STARTING = "starting"
    SPARE = "spare"
    TRAINING = "training"
    LEAVING = "leaving"
    """Still trains, or waits to; drained, reclaimed, or more than the target."""

    ENDING = "ending"
    """Told to exit, or killed; its device is taken until the process was reaped."""

    GONE = "gone"
    """Its process was reaped, and the job forgets it."""


FORCED_S = 20.0
"""For the processes of a script that are not gone in their time, and until all have agreed on when
they are to be, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What the user may set about the job's life, beside the policy."""

    policy: Policy = Policy()  # noqa: RUF009 - frozen
    """Until someone sets another while the job runs."""

    timeouts: Timeouts = Timeouts()  # noqa: RUF009 - frozen

    placement: PlacementRule = PlacementRule()  # noqa: RUF009 - frozen

    nodes_may_come: bool = False
    """Nodes come by themselves: while too few are there, or none of them can start anything, the
    job waits for others."""

    is_restarting: bool = False
    """Each change starts the processes of the script again, so nobody here counts its steps."""

    core_replicas: int | None = None
    """Replicas whose workers have a core each, where all train on the cores of one machine; None:
    they do not, or nobody has counted."""

    restart_budget: int = 5
    """Losses that nobody asked for (script errors, crashes, hangs, lost nodes, refused joiners)
    after which no replica is started any more.  Enough for bad luck, few enough to end a script
    that always fails within seconds.  ``kill``, ``drain`` and ``scale`` cost nothing."""

    restart_forget_s: float = 600.0
    """A loss longer ago than this does not count if a step was committed since, so that a long run
    can survive many and one that never gets anywhere ends."""

    start_wait_s: float = 30.0
    """From the first spare: how long the first generation waits for the others it is to have."""

    start_s: float = 600.0
    """From starting a process until its script reaches ``steps()``; imports and data included.  As
    long a job waits for nodes, at its start or when the last has gone."""

    node_s: float = 10.0
    """Without a connection to its agent, a node is lost."""

    silent_s: float = 5.0
    """Without a word of its agent, which is connected, nothing new is started on a node.  Less than
    ``heartbeat_s``, so that who takes the place of its silent replicas is started elsewhere."""

    slow_s: float = 60.0
    """How long a replica takes far longer than the others until people hear of it."""

    exit_s: float = 30.0
    """From Release or Dismiss to the exit: the script's ``finally`` blocks."""

    finish_s: float = 3600.0
    """The same after the last step: what a script does with its result may take long."""

    @property
    def leave_s(self) -> float:
        """Return how long a replica may take to leave; processes that are ended by force longer."""
        graceful_s = self.policy.graceful_shutdown_timeout_s
        return graceful_s + FORCED_S * self.is_restarting

    @property
    def patience(self) -> Timeouts:
        """Return the time-outs; where nobody counts steps a job without one waits for ever."""
        is_set = self.timeouts.hang_s != Timeouts().hang_s
        if is_set or not self.is_restarting:
            return self.timeouts
        return replace(self.timeouts, hang_s=NEVER)

    def __post_init__(self) -> None:
        if self.restart_budget < 0:
            raise ConfigError(f"restart_budget must be at least 0, got {self.restart_budget!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica whose process is not known to be reaped."""

    node: NodeId
    state: ReplicaState = ReplicaState.STARTING

    started_at: float | None = None
    """When this coordinator has asked for its process; None: it was there before."""

    due_s: float = NEVER
    """STARTING: when it must be spare.  LEAVING, ENDING: when it must be gone."""

    is_lost: bool = False
    """The membership has given it up: what it still says is stale."""

    is_asked: bool = False
    """Its end was asked for, so that it costs nothing of the restart budget."""

    is_reclaimed: bool = False
    """The outside takes its device back."""

    reason: str = ""
    """Why it leaves or ends."""

    farewell: Command | None = None
    """ENDING: by what it was told; said again until it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A replica or node lost that nobody had asked to go."""

    at_s: float
    kind: ExitKind
    sentence: str
    committed: int = 0

    signature: str = ""
    """Equal for failures that a script alone may explain; empty: others had a part in it."""

    reached: ReplicaState = ReplicaState.STARTING
    """How far the replica had come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """What is remembered of one that is slow."""

    tenths: int
    """How many times as long it takes as the others, in tenths."""

    since_s: float

    is_told: bool = False
    """It has been slow for so long that people hear of it."""


Slowness = Table[ReplicaId, Slow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of a job, and on which of them nothing is started now."""

    devices: Table[NodeId, int] = field(default_factory=Table)
    """Devices of each node."""

    labels: Table[NodeId, Labels] = field(default_factory=Table)
    """Where each node says it is; nodes that say nothing are left out."""

    unheard: Table[NodeId, float] = field(default_factory=Table)
    """Nodes that count as lost only at this moment: they hold the last copy of the state."""

    leaving: Table[NodeId, str] = field(default_factory=Table)
    """Nodes that are to go, and why if the outside has said so: nothing new is started there."""

    silent: frozenset[NodeId] = frozenset()
    """Nodes whose agents are connected and say nothing.  Until they speak nothing is started there,
    and replicas that are on their way there do not count."""

    held: frozenset[NodeId] = frozenset()
    """Nodes where a joiner was refused.  As long as enough replicas train, nothing is started there
    until somebody asks for a size or a policy."""

    apart: Apartness = field(default_factory=Table)
    """Nodes that could not reach each other."""

    aside: AsideNodes = field(default_factory=Table)
    """Nodes where a start met a cause of the host: the next start there is later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What the policy is told, what it remembers and what it has said (``sizing``)."""

    requested: int | None = None
    """The size that somebody asked for, as in ``Register``."""

    policy: Policy | None = None
    """The policy that was set while the job runs, as in ``Register``."""

    policy_given: Policy | None = None
    """The policy that the job was started with, if another was set; as in ``Register``."""

    is_urgent: bool = False
    """Someone has just asked for a size or a policy: nothing holds it back."""

    pace: Pace = field(default_factory=Pace)
    """What the policy remembers of its own changes and of capacity."""

    costs: Costs = field(default_factory=Costs)
    """What steps and changes have taken."""

    decision: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the outside grants (``requests``)."""

    replicas: int | None = None
    """The size; None: the outside has set none."""

    reason: str = ""

    notice_s: float | None = None
    """How long surplus replicas may take to leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Replicas that take far longer than the others (``stragglers``)."""

    slow: Slowness = field(default_factory=Table)

    look_s: float = NEVER
    """When to look at them next."""

    replaced: tuple[float, ...] = ()
    """When spares took the place of slow replicas, as far as that still counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Losses that nobody asked for, against the restart budget (``crash_loop``)."""

    losses: tuple[Loss, ...] = ()
    """The newest losses, at most one more than the budget."""

    by_devices: tuple[Loss, ...] = ()
    """The newest losses for which a device was to blame, since the last step was committed."""

    failed_at: tuple[int, str] | None = None
    """When the script failed on the last replica: the step that was committed last, and the
    signature (``Loss``).  What fails alike again at the same step always will."""

    restarted: Generation = NO_GENERATION
    """The newest in which a script has failed that is started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the first generation of a history waits for (``sizing``, ``lifecycle``)."""

    reference: Spare | None = None
    """The first spare: what later ones must agree with."""

    by_s: float = NEVER
    """When the first generation no longer waits for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the job stops and ends (``lifecycle``)."""

    stop: StopKind | None = None
    """As in ``Register``."""

    stop_for: str = ""
    """Why it is to stop, if the outside wants it and no person."""

    stop_by_s: float = NEVER
    """When a stop no longer waits for a step boundary; behind the last one, for scripts."""

    stop_rest_s: float = NEVER
    """For how long it waits once more then, without those for whom the others wait; 0: it does.
    NEVER: nobody is in a hurry."""

    last_step: tuple[Lineage, int] | None = None
    """A replica has done the last step: of which history, and how many steps that are."""

    last_step_by_s: float = NEVER
    """By when the others should have done it, too."""

    lacking: tuple[int, bool, bool] | None = None
    """After how many steps all finished replicas lack the leader of the last tail, and of what
    stands behind it.  Where the script asks for no leader nothing is lacking."""

    outcome: Outcome | None = None
    """As in ``Register``."""

    exit_code: int | None = None

    reason: str = ""
    """Why the job finishes or has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """RECOVERING: what this coordinator waits for before it decides anything (``registration``)."""

    homes: Table[ReplicaId, NodeId] = field(default_factory=Table)
    """The nodes of the members, as in ``Register``."""

    registered: Table[ReplicaId, Registered] = field(default_factory=Table)
    """Replicas that have said where they stand."""

    kept: tuple[Event, ...] = ()
    """What came since, in order."""

    by_s: float = NEVER
    """When members that have not said where they stand are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What is known of durable checkpoints, and who may still write one (``restoring``)."""

    exist: bool = False
    """As in ``Register``: without one, the run begins again from nothing only if this is false."""

    may_exist: bool = False
    """Somebody was told to publish one: whether it is there, new replicas will say."""

    saved: tuple[CheckpointInfo, ...] = ()
    """The newest checkpoints that became durable in this process's time, oldest first."""

    damaged: frozenset[str] = frozenset()
    """Checkpoints that could not be loaded."""

    publishers: frozenset[ReplicaId] = frozenset()
    """Replicas that may have been told to publish: until they are gone, a checkpoint may come."""

    asking: Table[ReplicaId, float] = field(default_factory=Table)
    """Replicas that asked to publish what is lost, and until when at most each is waited for."""

    looking: frozenset[ReplicaId] = frozenset()
    """Spares that look anew for checkpoints."""

    outdated: frozenset[ReplicaId] = frozenset()
    """Replicas on their way that must look anew: what they said is older than the loss."""

    asked_after: int | None = None
    """Someone wants a checkpoint of more committed steps than this, which is not there yet."""

    looks: int = 0
    """How often this coordinator has had the waiting replicas look anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What came last, for reports (``controller``)."""

    seen_s: float = 0.0
    """When the last event came."""

    stale: int = 0
    """Messages from the lost or about the unknown."""

    events: EventHistory = field(default=(), compare=False)
    """The newest events, oldest first, for the report should one come where it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything the controller knows; a plain value, safe to log.  Each part has one owner."""

    membership: Membership
    phase: JobPhase = JobPhase.RECOVERING
    replicas: Table[ReplicaId, Replica] = field(default_factory=Table)

    named: int = 0
    """How many replicas were named, as in ``Register``."""

    nodes: Nodes = Nodes()
    sizing: Sizing = Sizing()
    offer: Offer = Offer()
    stragglers: Stragglers = Stragglers()
    budget: Budget = Budget()
    start: Start = Start()
    ending: Ending = Ending()
    registration: Registration = Registration()
    checkpoints: Checkpoints = Checkpoints()
    history: History = History()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """A request of a person that is not carried out, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a step of the controller asks of its driver.

    Write-ahead: if ``register`` is not None it must be written by compare-and-swap, and the write
    confirmed, *before* any of ``commands`` is carried out, in their order.
    """

    incarnation: Incarnation
    """Goes onto the wire with every command (R3)."""

    register: Register | None = None
    commands: tuple[Command, ...] = ()

    again: tuple[Command, ...] = ()
    """What the workers of the node that has just said what it runs were told already, and have not
    answered: for that node only, and no news for anybody else."""

    decision: Decision | None = None
    """Set when the policy's answer or its reason has changed."""

    declined: Declined | None = None
    """Set when the event was a request that is refused."""

    notes: tuple[str, ...] = ()
    """One sentence for each thing that was decided."""


def live(job: Job) -> tuple[ReplicaId, ...]:
    """Return the replicas that train or are on their way in, without those that leave or end."""
    gone = (ReplicaState.LEAVING, ReplicaState.ENDING)
    found = tuple(name for name, one in job.replicas.items() if one.state not in gone)
    return (
        tuple(n for n in found if not is_doubtful(job, job.replicas[n]))
        if job.nodes.silent
        else found
    )


def is_doubtful(job: Job, replica: Replica) -> bool:
    """Whether nobody knows if it was started at all: its node is silent."""
    return replica.state is ReplicaState.STARTING and replica.node in job.nodes.silent


def company(job: Job) -> frozenset[NodeId]:
    """Return the nodes that one who joins must reach: of those who hold the state, else of all."""
    membership = job.membership
    names = [n for n in members(membership) if n not in outsiders(membership)]
    there = (job.replicas.get(name) for name in names or live(job))
    return frozenset(replica.node for replica in there if replica is not None)


def spares(job: Job) -> list[ReplicaId]:
    """Return the replicas that wait to join."""
    return [n for n, replica in job.replicas.items() if replica.state is ReplicaState.SPARE]


def trainers(job: Job) -> list[ReplicaId]:
    """Return the members that are to stay."""
    present = members(job.membership)
    return [name for name in present if job.replicas[name].state is ReplicaState.TRAINING]


def is_member(job: Job, name: ReplicaId) -> bool:
    """Whether it is of the recorded generation, and not lost."""
    return name in members(job.membership)


def is_durable(job: Job) -> bool:
    """Whether the script keeps checkpoints, though there may be none yet."""
    says = job.start.reference is not None and job.start.reference.is_durable
    return says or job.checkpoints.exist or job.checkpoints.may_exist


def is_kept(job: Job) -> bool:
    """Whether what the members hold is durable, or is not going to be."""
    membership = job.membership
    here = (membership.lineage, membership.committed)
    return not is_durable(job) or any(
        (f.lineage, f.committed) >= here for f in job.checkpoints.saved
    )


def is_held(job: Job) -> bool:
    """Whether the members wait, too few to train."""
    order = job.membership.orders.recorded
    return order is not None and order.hold


def age(name: ReplicaId) -> int:
    """Return when it was named: the higher the newer."""
    return int(name[1:])


def heard_devices(job: Job) -> int:
    """Return how many devices there are on nodes that are not silent."""
    return sum(count for node, count in job.nodes.devices.items() if node not in job.nodes.silent)


def free_devices(job: Job) -> dict[NodeId, int]:
    """Return the nodes that have devices no process is on, with how many."""
    unused = job.nodes.leaving.keys() | job.nodes.silent
    free = {node: count for node, count in job.nodes.devices.items() if node not in unused}
    for replica in job.replicas.values():
        if replica.node in free:
            free[replica.node] -= 1
    return {node: count for node, count in free.items() if count > 0}


def is_lacking(job: Job) -> bool:
    """Whether the leader was lost at what it alone does, and nobody who is left has done it."""
    count = job.membership.committed
    return job.ending.lacking in ((count, True, True), (count, True, False), (count, False, True))


def is_done(job: Job, now_s: float) -> bool:
    """Whether a replica that is started now would find nothing to do.

    Not once a new history has begun or must begin, or somebody went on; and not for longer than a
    step may take: what ends one script need not end those that are left.
    """
    membership = job.membership
    if (
        job.ending.last_step is None
        or membership.phase is Phase.LOST
        or now_s >= job.ending.last_step_by_s
    ):
        return False
    lineage, count = job.ending.last_step
    return lineage == membership.lineage and membership.committed <= count
