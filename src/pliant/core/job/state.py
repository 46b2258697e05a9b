"""One job as the controller sees it: its replicas, nodes and settings, and what follows from them.

Owns the value and plain facts about it: who counts as live, which device is free, how much of the
restart budget is left.  Decides nothing; ``controller`` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pliant.core.commands import Command
from pliant.core.errors import ConfigError
from pliant.core.events import Event, ExitKind, Registered, Spare
from pliant.core.job.apart import Apartness
from pliant.core.job.aside import AsideNodes
from pliant.core.job.slowness import Slowness
from pliant.core.membership import state as group
from pliant.core.membership.state import NEVER, Membership, Timeouts
from pliant.core.policy.costs import Costs
from pliant.core.policy.decide import Decision, Policy
from pliant.core.policy.hysteresis import Pace
from pliant.core.sites import PlacementRule
from pliant.core.table import Table
from pliant.core.transitions import Story
from pliant.core.values import (
    Found,
    Incarnation,
    Labels,
    Lineage,
    NodeId,
    Outcome,
    Register,
    ReplicaId,
    StopKind,
)


class Stage(StrEnum):
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

    def __post_init__(self) -> None:
        if self.restart_budget < 0:
            raise ConfigError(f"restart_budget must be at least 0, got {self.restart_budget!r}")
        limits = ("restart_forget_s", "start_wait_s", "start_s", "slow_s", "exit_s", "finish_s")
        for name in (*limits, "silent_s"):
            value = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"{name} must be more than 0 seconds, got {value!r}")


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

    likeness: str = ""
    """Equal for failures that a script alone may explain; empty: others had a part in it."""

    reached: ReplicaState = ReplicaState.STARTING
    """How far the replica had come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything the controller knows; a plain value, safe to log."""

    membership: Membership
    stage: Stage = Stage.RECOVERING

    nodes: Table[NodeId, int] = field(default_factory=Table)
    """Devices of each node."""

    labels: Table[NodeId, Labels] = field(default_factory=Table)
    """What nodes say of where they are; of none that says nothing."""

    unheard_nodes: Table[NodeId, float] = field(default_factory=Table)
    """Nodes that count as lost only then: the last holders of the state are there."""

    leaving: frozenset[NodeId] = frozenset()
    """Nodes whose agents were told to end: nothing is started there any more."""

    silent: frozenset[NodeId] = frozenset()
    """Nodes whose agents say nothing, though they are connected: until they do nothing is started
    there, and who is on its way there is not counted on."""

    held: frozenset[NodeId] = frozenset()
    """Nodes where one was refused that came to join: as long as enough train, nothing is started
    there until somebody asks for a size or a policy."""

    apart: Apartness = field(default_factory=Table)
    """Nodes that could not reach each other."""

    aside: AsideNodes = field(default_factory=Table)
    """Nodes where a start met a cause of the host: the next one is later."""

    replicas: Table[ReplicaId, Replica] = field(default_factory=Table)

    named: int = 0
    wished: int | None = None
    policy: Policy | None = None
    policy_given: Policy | None = None
    has_checkpoints: bool = False
    stop: StopKind | None = None
    outcome: Outcome | None = None
    homes: Table[ReplicaId, NodeId] = field(default_factory=Table)
    """These as in ``Register``; ``homes`` only while RECOVERING, and without checkpoints the run
    does not begin again from nothing."""

    failed_at: tuple[int, str] | None = None
    """When the script failed on the last replica: the step that was committed last, and the
    likeness (``Loss``).  What fails alike again at the same step always will."""

    last_step: tuple[Lineage, int] | None = None
    """A replica has done the last step: of which history, and how many steps that are."""

    lacking: tuple[int, bool, bool] | None = None
    """After how many steps all who have finished lack the leader of the last tail, and of what
    stands behind it; of what the script asks nobody for nothing is lacking."""

    last_step_by_s: float = NEVER
    """By when the others should have done it, too."""

    is_urgent: bool = False
    """Someone has just asked for a size or a policy: nothing holds it back."""

    offered: int | None = None
    offer_reason: str = ""
    offer_notice_s: float | None = None
    """Size that the outside grants, why, and how long those may take to leave that are too many."""

    slow: Slowness = field(default_factory=Table)
    """Replicas that take far longer than the others."""

    slow_look_s: float = NEVER
    """When they are to be looked at."""

    replaced_slow: tuple[float, ...] = ()
    """When spares took the place of such, as far as that counts still."""

    pace: Pace = field(default_factory=Pace)
    """What the policy remembers of its own changes and of capacity."""

    costs: Costs = field(default_factory=Costs)
    """What steps and changes have taken."""

    reference: Spare | None = None
    """The first spare: what later ones must agree with."""

    start_by_s: float = NEVER
    """When the first generation no longer waits for others."""

    stop_for: str = ""
    """Why it is to stop, if the outside wants it and no person."""

    stop_by_s: float = NEVER
    """When a stop no longer waits for a step boundary."""

    registered: Table[ReplicaId, Registered] = field(default_factory=Table)
    kept: tuple[Event, ...] = ()
    """RECOVERING: who has said where it stands, and what came since, in order."""

    register_by_s: float = NEVER
    """RECOVERING: when members that have not said where they stand are lost."""

    saved: tuple[Found, ...] = ()
    """The newest checkpoints that became durable in this process's time, oldest first."""

    looking: frozenset[ReplicaId] = frozenset()
    outdated: frozenset[ReplicaId] = frozenset()
    """Spares that look anew for checkpoints, and replicas on their way that are to: what they have
    said is older than the loss of the state."""

    looks: int = 0
    """How often this coordinator has had those who wait look anew."""

    publishers: frozenset[ReplicaId] = frozenset()
    """Who may have been told to publish: until it is gone, a checkpoint may come of it."""

    asking: Table[ReplicaId, float] = field(default_factory=Table)
    """Who has asked to publish what is lost, and until when at most it is waited for."""

    damaged: frozenset[str] = frozenset()
    """Checkpoints that could not be loaded."""

    may_have_checkpoints: bool = False
    """Somebody was told to publish one: whether it is there, new replicas will say."""

    losses: tuple[Loss, ...] = ()
    """The newest losses, at most one more than the budget."""

    seen_s: float = 0.0
    """When the last event came."""

    decision: Decision | None = None
    exit_code: int | None = None
    reason: str = ""
    """Why the job finishes or has ended."""

    stale: int = 0
    """Messages from the lost or about the unknown."""

    story: Story = field(default=(), compare=False)
    """The newest events, oldest first, for the report should one come where it cannot."""


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
    return tuple(n for n in found if not is_doubtful(job, job.replicas[n])) if job.silent else found


def is_doubtful(job: Job, replica: Replica) -> bool:
    """Whether nobody knows if it was started at all: its node is silent."""
    return replica.state is ReplicaState.STARTING and replica.node in job.silent


def company(job: Job) -> frozenset[NodeId]:
    """Return the nodes that one who joins must reach: of those who hold the state, else of all."""
    membership = job.membership
    names = [n for n in group.members(membership) if n not in group.outsiders(membership)]
    there = (job.replicas.get(name) for name in names or live(job))
    return frozenset(replica.node for replica in there if replica is not None)


def spares(job: Job) -> list[ReplicaId]:
    """Return the replicas that wait to join."""
    return [n for n, replica in job.replicas.items() if replica.state is ReplicaState.SPARE]


def trainers(job: Job) -> list[ReplicaId]:
    """Return the members that are to stay."""
    members = group.members(job.membership)
    return [name for name in members if job.replicas[name].state is ReplicaState.TRAINING]


def is_member(job: Job, name: ReplicaId) -> bool:
    """Whether it is of the recorded generation, and not lost."""
    return name in group.members(job.membership)


def is_durable(job: Job) -> bool:
    """Whether the script keeps checkpoints, though there may be none yet."""
    says = job.reference is not None and job.reference.is_durable
    return says or job.has_checkpoints or job.may_have_checkpoints


def is_kept(job: Job) -> bool:
    """Whether what the members hold is durable, or is not going to be."""
    membership = job.membership
    here = (membership.lineage, membership.committed)
    return not is_durable(job) or any((f.lineage, f.committed) >= here for f in job.saved)


def is_held(job: Job) -> bool:
    """Whether the members wait, too few to train."""
    order = job.membership.recorded
    return order is not None and order.hold


def age(name: ReplicaId) -> int:
    """Return when it was named: the higher the newer."""
    return int(name[1:])
