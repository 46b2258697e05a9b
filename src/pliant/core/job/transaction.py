"""One call of the controller in the making: what it has changed, ordered and noted so far.

Owns the value that every part of the controller works on, and what a loss costs of the restart
budget.  Decides nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from operator import attrgetter

from pliant.core.commands import Command, Reform
from pliant.core.events import OUT_OF_MEMORY, Exited, ExitKind
from pliant.core.job.state import (
    Budget,
    Checkpoints,
    Declined,
    Ending,
    History,
    Job,
    JobSettings,
    Loss,
    Nodes,
    Offer,
    Registration,
    Replica,
    ReplicaState,
    Sizing,
    Stage,
    Start,
    Stragglers,
    heard_devices,
)
from pliant.core.job.transitions import ReplicaCause, StageCause, replicas_after, stage_after
from pliant.core.membership.state import Membership, Moment
from pliant.core.table import Table
from pliant.core.values import ReplicaId

CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGSYS", OUT_OF_MEMORY)
"""Ends by a signal that a process brings upon itself."""

WAY_IN = (ReplicaState.STARTING, ReplicaState.SPARE, ReplicaState.TRAINING)
"""The states of a replica on its way to the first step, in order."""


class JobDraft(Job):
    """A job in the making: the one kind of Job whose fields can be set.  Its parts are values."""

    __slots__ = ()
    __setattr__ = object.__setattr__

    membership: Membership
    stage: Stage
    replicas: Table[ReplicaId, Replica]
    named: int
    nodes: Nodes
    sizing: Sizing
    offer: Offer
    stragglers: Stragglers
    budget: Budget
    start: Start
    ending: Ending
    registration: Registration
    checkpoints: Checkpoints
    history: History


_NAMES = tuple(one.name for one in fields(Job))
_values_of = attrgetter(*_NAMES)


def draft_of(job: Job) -> JobDraft:
    """Return a copy of a job that can be changed."""
    draft = object.__new__(JobDraft)
    for name, value in zip(_NAMES, _values_of(job), strict=True):
        object.__setattr__(draft, name, value)
    return draft


def frozen(draft: JobDraft) -> Job:
    """Return what a draft has become; from now on it cannot be changed."""
    job: Job = draft
    job.__class__ = Job
    return job


@dataclass(slots=True, kw_only=True)
class Transaction:
    """One call of ``step`` in the making; never outlives it."""

    job: JobDraft
    now_s: float
    settings: JobSettings
    commands: list[Command] = field(default_factory=list)
    again: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    declined: Declined | None = None
    must_advance: bool = True
    """False after a mere sign of life: a thousand agents send two thousand a second."""

    @property
    def moment(self) -> Moment:
        """What the membership needs to know of now and the settings."""
        return Moment(
            now_s=self.now_s,
            timeouts=self.settings.timeouts.at_steps_of(self.job.sizing.costs.usual_step_s),
            min_replicas=self.settings.policy.min_replicas,
        )

    def enter(self, stage: Stage, cause: StageCause) -> None:
        """Bring the job to another stage."""
        self.job.stage = stage_after(self.job, stage, cause)

    def move(
        self, name: ReplicaId, replica: Replica, state: ReplicaState, cause: ReplicaCause
    ) -> None:
        """Bring a replica to another state; the rest of its record is to be ``replica``."""
        self.job.replicas = replicas_after(self.job, name, replica, state, cause)

    def put(self, name: ReplicaId, replica: Replica) -> None:
        """Keep this record of a replica."""
        self.job.replicas = self.job.replicas.put(name, replica)

    def standing_commands(self) -> tuple[Command, ...]:
        """Return the commands without a Reform that a newer one overtakes, which is recorded."""
        if len(self.commands) < 2:
            return tuple(self.commands)
        reforms = [command for command in self.commands if isinstance(command, Reform)]
        newest = max((one.order.generation for one in reforms), default=None)
        overtaken = [one for one in reforms if one.order.generation != newest]
        return tuple(command for command in self.commands if command not in overtaken)

    def decline(self, reason: str) -> None:
        """Refuse what a person has asked for."""
        self.declined = Declined(reason=reason)

    def count_stale(self) -> None:
        """Count a message that is about the past or the unknown."""
        self.job.history = replace(self.job.history, stale=self.job.history.stale + 1)


def start_wait_s(tx: Transaction) -> float:
    """Return how long the first generation waits for others, now that there is one to begin with.

    While the nodes that are heard are too few, and others may come or be heard again, it is as long
    as for the first of them.
    """
    is_room = heard_devices(tx.job) >= tx.moment.min_replicas
    is_all = is_room or not (tx.settings.nodes_may_come or tx.job.nodes.silent)
    return tx.settings.start_wait_s if is_all else tx.settings.start_s


def recent_losses(job: Job, settings: JobSettings, now_s: float) -> tuple[Loss, ...]:
    """Return the losses that count against the restart budget: before the first step another."""
    old_s, committed = now_s - settings.restart_forget_s, job.membership.committed
    alike = (x for x in job.budget.losses if bool(x.committed) == bool(committed))
    return tuple(x for x in alike if x.at_s > old_s or x.committed == committed)


def is_spent(tx: Transaction) -> bool:
    """Whether nothing may be started any more, for now."""
    return len(recent_losses(tx.job, tx.settings, tx.now_s)) > tx.settings.restart_budget


def likeness(event: Exited) -> str:
    """Say what failures of a script have in common: the exception's type, or a signal of its own.

    Its text may contain a path or an address.
    """
    if event.kind is ExitKind.SCRIPT:
        return event.detail.partition(":")[0]
    is_own = event.kind is ExitKind.SIGNAL and event.detail in CRASHES
    return event.detail if is_own else ""


def deterministic_failure(job: Job) -> Loss | None:
    """Return the newest loss if the script may fail like that before its first step wherever it is
    started: two have, and nobody who is left has come further.
    """
    last = job.budget.losses[-1] if job.budget.losses else None
    if last is None or not last.likeness or job.membership.committed:
        return None
    alike = sum(loss.likeness == last.likeness and not loss.committed for loss in job.budget.losses)
    further = WAY_IN[WAY_IN.index(last.reached) + 1 :]
    has_company = any(replica.state in further for replica in job.replicas.values())
    return last if alike > 1 and not has_company else None


def charge(
    tx: Transaction,
    kind: ExitKind,
    sentence: str,
    *,
    likeness: str = "",
    reached: ReplicaState = ReplicaState.STARTING,
) -> None:
    """Count a loss that nobody asked for against the restart budget."""
    committed = tx.job.membership.committed
    loss = Loss(
        at_s=tx.now_s,
        kind=kind,
        sentence=sentence,
        committed=committed,
        likeness=likeness,
        reached=reached,
    )
    other = [one for one in tx.job.budget.losses if bool(one.committed) != bool(committed)]
    alike = [one for one in tx.job.budget.losses if bool(one.committed) == bool(committed)]
    was_spent = is_spent(tx)
    kept = (*other, *[*alike, loss][-(tx.settings.restart_budget + 1) :])
    tx.job.budget = replace(tx.job.budget, losses=kept)
    if not was_spent and is_spent(tx):
        tx.notes.append(
            f"the restart budget of {tx.settings.restart_budget} is spent: nothing is started "
            f"until a loss is older than {tx.settings.restart_forget_s:g} s and a step was "
            "committed since"
        )
