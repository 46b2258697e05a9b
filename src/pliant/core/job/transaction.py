"""One call of the controller in the making: what it has changed, ordered and noted so far.

Owns the value that every part of the controller works on: a draft of the job, which is frozen once.
Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from operator import attrgetter

from pliant.core.commands import Command, Reform
from pliant.core.job.state import (
    Budget,
    Checkpoints,
    Declined,
    Ending,
    History,
    Job,
    JobPhase,
    JobSettings,
    Nodes,
    Offer,
    Registration,
    Replica,
    ReplicaState,
    Sizing,
    Start,
    Stragglers,
    heard_devices,
)
from pliant.core.job.transitions import JobPhaseCause, ReplicaCause, phase_after, replicas_after
from pliant.core.membership.state import Membership, Moment
from pliant.core.table import Table
from pliant.core.values import ReplicaId


class JobDraft(Job):
    """A job in the making: the one kind of Job whose fields can be set.  Its parts are values."""

    __slots__ = ()
    __setattr__ = object.__setattr__

    membership: Membership
    phase: JobPhase
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
            timeouts=self.settings.patience.at_steps_of(self.job.sizing.costs.usual_step_s),
            min_replicas=self.settings.policy.min_replicas,
        )

    def enter(self, phase: JobPhase, cause: JobPhaseCause) -> None:
        """Bring the job to another phase."""
        self.job.phase = phase_after(self.job, phase, cause)

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
