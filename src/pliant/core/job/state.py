"""One job as the controller sees it: its replicas, nodes and settings, and what follows from them.

Owns the value and plain facts about it: who counts as live, which device is free, how much of the
restart budget is left.  Decides nothing; ``controller`` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from pliant.core.commands import Command
from pliant.core.errors import ConfigError
from pliant.core.events import Event, ExitKind, Registered, Spare
from pliant.core.membership import state as group
from pliant.core.membership.state import NEVER, Membership, Moment, Timeouts
from pliant.core.policy.costs import Costs
from pliant.core.policy.decide import NOTHING_DONE, NOTHING_KNOWN, Decision, Policy, PolicyView
from pliant.core.policy.hysteresis import Pace
from pliant.core.table import Table
from pliant.core.values import Found, Incarnation, NodeId, Register, ReplicaId, StopKind


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What the user may set about the job's life, beside the policy."""

    policy: Policy = Policy()  # noqa: RUF009 - frozen
    """Until someone sets another while the job runs."""

    timeouts: Timeouts = Timeouts()  # noqa: RUF009 - frozen

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
    """From starting a process until its script reaches ``steps()``; imports and data included."""

    exit_s: float = 30.0
    """From Release or Dismiss to the exit: the script's ``finally`` blocks."""

    finish_s: float = 3600.0
    """The same after the last step: what a script does with its result may take long."""

    def __post_init__(self) -> None:
        if self.restart_budget < 0:
            raise ConfigError(f"restart_budget must be >= 0, got {self.restart_budget!r}")
        for name in (
            "restart_forget_s",
            "start_wait_s",
            "start_s",
            "exit_s",
            "finish_s",
        ):
            value = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"{name} must be > 0 seconds, got {value!r}")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A replica or node lost that nobody had asked to go."""

    at_s: float
    kind: ExitKind
    sentence: str

    committed: int = 0
    """Committed steps at that time."""


NO_NODES: Table[NodeId, int] = Table()
NO_REPLICAS: Table[ReplicaId, Replica] = Table()
NO_HOMES: Table[ReplicaId, NodeId] = Table()
NO_REGISTRATIONS: Table[ReplicaId, Registered] = Table()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything the controller knows; a plain value, safe to log."""

    membership: Membership
    stage: Stage = Stage.STARTING

    nodes: Table[NodeId, int] = NO_NODES
    """Devices of each node."""

    replicas: Table[ReplicaId, Replica] = NO_REPLICAS

    named: int = 0
    """Replicas ever named: ``r1`` to ``r<named>``."""

    wished: int | None = None
    """Size that someone asked for last."""

    policy: Policy | None = None
    """What someone has set while the job ran."""

    policy_given: Policy | None = None
    """What it took the place of."""

    is_urgent: bool = False
    """Someone has just asked for a size or a policy: nothing holds it back."""

    offered: int | None = None
    """Size that the outside grants."""

    offer_reason: str = ""
    """What it says about that, for people."""

    offer_notice_s: float | None = None
    """How long those may take to leave that are too many for it; None: it does not say."""

    pace: Pace = NOTHING_DONE
    """What the policy remembers of its own changes and of capacity."""

    costs: Costs = NOTHING_KNOWN
    """What steps and changes have taken."""

    reference: Spare | None = None
    """The first spare: what later ones must agree with."""

    start_by_s: float = NEVER
    """When the first generation goes without those that are not spare yet."""

    stop: StopKind | None = None
    """What someone who asked to stop had in mind."""

    stop_for: str = ""
    """Why it is to stop, if the outside wants it and no person."""

    stop_by_s: float = NEVER
    """When a stop no longer waits for a step boundary."""

    homes: Table[ReplicaId, NodeId] = NO_HOMES
    """RECOVERING: where the members ran, as the register tells."""

    registered: Table[ReplicaId, Registered] = NO_REGISTRATIONS
    """RECOVERING: who has said where it stands."""

    kept: tuple[Event, ...] = ()
    """RECOVERING: what came since, in order."""

    register_by_s: float = NEVER
    """RECOVERING: when members that have not said where they stand are lost."""

    saved: tuple[Found, ...] = ()
    """The newest checkpoints that became durable in this process's time, oldest first."""

    damaged: frozenset[str] = frozenset()
    """Checkpoints that could not be loaded."""

    has_checkpoints: bool = False
    """Somebody has seen one: without any the run does not begin again from nothing."""

    may_have_checkpoints: bool = False
    """Somebody was told to publish one: whether it is there, new replicas will say."""

    losses: tuple[Loss, ...] = ()
    """The newest losses, at most one more than the budget."""

    seen_s: float = 0.0
    """When the last event came."""

    decision: Decision | None = None
    """What the policy said last."""

    exit_code: int | None = None
    reason: str = ""
    """Why the job finishes or has ended."""

    stale: int = 0
    """Messages from the lost or about the unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """A request of a person that is not carried out, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the outside must know of a job to give it what it can use."""

    min_replicas: int
    """With fewer nothing trains."""

    ask_replicas: int
    """The size that the policy wants, if capacity were no question."""

    sizes: tuple[int, ...] | None
    """The only sizes that the policy takes, up to that one; None: any from the minimum on."""

    num_slots: int | None
    """K of its step; None until the first script has reported it."""

    can_suspend: bool
    """Its script keeps checkpoints, so that it can go on after all its replicas have left."""

    notice_s: float
    """How long its replicas may take to leave."""


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
    decision: Decision | None = None
    """Set when the policy's answer or its reason has changed."""

    declined: Declined | None = None
    """Set when the event was a request that is refused."""

    notes: tuple[str, ...] = ()
    """One sentence for each thing that was decided."""


def record(job: Job) -> Register:
    """Return what must be durable before the commands of this state are sent (R1, R2)."""
    register = group.register(job.membership)
    names = group.members(job.membership)
    homes = [(name, home) for name in names if (home := _home(job, name)) is not None]
    return replace(
        register,
        named=job.named,
        wished=job.wished,
        policy=job.policy,
        policy_given=job.policy_given,
        num_changes=len(job.pace.changed_at),
        backoff_level=job.pace.backoff_level,
        has_checkpoints=job.has_checkpoints,
        homes=tuple(homes),
        stop=job.stop,
    )


def record_to_write(before: Job, after: Job) -> Register | None:
    """Return the record of ``after`` if it differs; a sign of life costs no look at each member."""
    old, new = before.membership, after.membership
    parts = ("phase", "issued", "lineage", "restore", "recorded", "gone", "joiners", "leavers")
    jobs = ("replicas", "homes", "named", "wished", "policy", "pace", "has_checkpoints", "stop")
    if all(getattr(old, name) is getattr(new, name) for name in parts) and all(
        getattr(before, name) is getattr(after, name) for name in jobs
    ):
        return None
    register = record(after)
    return register if register != record(before) else None


def _home(job: Job, name: ReplicaId) -> NodeId | None:
    replica = job.replicas.get(name)
    return job.homes.get(name) if replica is None else replica.node


def reference_of(registrations: Iterable[Registered]) -> Spare | None:
    """Return what later spares must agree with: what one that trains said of itself."""
    return next((event.spare for event in registrations if event.has_state and event.spare), None)


def moment(settings: JobSettings, now_s: float) -> Moment:
    """Return what the membership needs to know of now and the settings."""
    return Moment(
        now_s=now_s,
        timeouts=settings.timeouts,
        min_replicas=settings.policy.min_replicas,
    )


def put(job: Job, name: ReplicaId, replica: Replica) -> Job:
    """Return the job with this record of a replica."""
    return replace(job, replicas=job.replicas.put(name, replica))


def live(job: Job) -> tuple[ReplicaId, ...]:
    """Return the replicas that train or are on their way in, without those that leave or end."""
    gone = (ReplicaState.LEAVING, ReplicaState.ENDING)
    return tuple(name for name, replica in job.replicas.items() if replica.state not in gone)


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
    has_gaps = policy.replica_discrete_values or (policy.replica_increment_step or 1) > 1
    sizes = policy.sizes(ask_replicas) if has_gaps and not policy.spares else ()
    return Demand(
        min_replicas=policy.min_replicas,
        ask_replicas=ask_replicas,
        sizes=sizes or None,
        num_slots=num_slots,
        can_suspend=can_suspend,
        notice_s=policy.graceful_shutdown_timeout_s,
    )


def view(job: Job) -> PolicyView:
    """Return what the policy looks at.

    What is offered is what is left: the outside has taken off itself what it takes back.
    """
    spares = job.decision.spare_replicas if job.decision else 0
    reclaimed = sum(replica.is_reclaimed for replica in job.replicas.values())
    leavers = [one for one in job.replicas.values() if one.state is ReplicaState.LEAVING]
    taken = sum(replica.is_reclaimed for replica in leavers)
    return PolicyView(
        num_replicas=max(0, len(live(job)) - spares),
        leaving=len(leavers) - taken,
        taken=taken,
        devices=sum(job.nodes.values()),
        wished=job.wished,
        num_slots=job.reference.num_slots if job.reference else None,
        offered=job.offered,
        offer_reason=job.offer_reason,
        reclaimed=reclaimed if job.offered is None else 0,
        is_urgent=job.is_urgent or job.stage is Stage.STARTING,
        pace=job.pace,
        costs=job.costs,
    )


def free_devices(job: Job) -> dict[NodeId, int]:
    """Return the nodes that have devices no process is on, with how many."""
    free = dict(job.nodes)
    for replica in job.replicas.values():
        if replica.node in free:
            free[replica.node] -= 1
    return {node: count for node, count in free.items() if count > 0}


def recent_losses(job: Job, settings: JobSettings, now_s: float) -> tuple[Loss, ...]:
    """Return the losses that count against the restart budget."""
    old_s, committed = now_s - settings.restart_forget_s, job.membership.committed
    return tuple(x for x in job.losses if x.at_s > old_s or x.committed == committed)


def is_budget_spent(job: Job, settings: JobSettings, now_s: float) -> bool:
    """Whether nothing may be started any more, for now."""
    return len(recent_losses(job, settings, now_s)) > settings.restart_budget


def difference(spare: Spare, reference: Spare) -> str | None:
    """Say in what a spare differs from the run it is to join; None if it may join.

    Outside exact mode only what the collectives need must agree.
    """
    if spare.num_slots != reference.num_slots:
        return f"it has {spare.num_slots} slots in a step, the run has {reference.num_slots}"
    if spare.layout != reference.layout:
        return _other_model(spare.layout.splitlines(), reference.layout.splitlines())
    ours, theirs_ = dict(spare.identity), dict(reference.identity)
    is_exact = theirs_.get("reduction", "exact") == "exact"
    for name in sorted(ours.keys() | theirs_.keys()):
        if ours.get(name) != theirs_.get(name) and (is_exact or name == "reduction"):
            return f"its {name} is {ours.get(name)}, the run has {theirs_.get(name)}"
    return None


def _other_model(mine: list[str], theirs: list[str]) -> str:
    """Say where two descriptions of a model differ first; a line is ``name dtype shape``."""
    my_names = {line.partition(" ")[0] for line in mine}
    their_names = {line.partition(" ")[0] for line in theirs}
    for here, there in zip(mine, theirs, strict=False):
        if here == there:
            continue
        if there.partition(" ")[0] not in my_names:
            return f"its model lacks {there}, which the run has"
        if here.partition(" ")[0] not in their_names:
            return f"its model has {here}, which the run has not"
        return f"its model has {here} where the run has {there}"
    return "its model has other parameters than the run's"
