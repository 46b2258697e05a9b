"""One call of the controller in the making: what it has changed, ordered and noted so far.

Owns the value that every part of the controller works on.  Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pliant.core.commands import Command
from pliant.core.job.state import Declined, Job, JobSettings, Replica, ReplicaState, Stage
from pliant.core.job.transitions import ReplicaCause, StageCause, entered, moved
from pliant.core.membership.state import Moment
from pliant.core.values import ReplicaId


@dataclass(slots=True, kw_only=True)
class Transaction:
    """One call of ``step`` in the making; never outlives it."""

    job: Job
    now_s: float
    settings: JobSettings
    commands: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    declined: Declined | None = None
    must_advance: bool = True
    """False after a mere sign of life: a thousand agents send two thousand a second."""

    @property
    def moment(self) -> Moment:
        """What the membership needs to know of now and the settings."""
        return Moment(
            now_s=self.now_s,
            timeouts=self.settings.timeouts,
            min_replicas=self.settings.policy.min_replicas,
        )

    def enter(self, stage: Stage, cause: StageCause) -> None:
        """Bring the job to another stage."""
        self.job = entered(self.job, stage, cause)

    def move(
        self, name: ReplicaId, replica: Replica, state: ReplicaState, cause: ReplicaCause
    ) -> None:
        """Bring a replica to another state; the rest of its record is to be ``replica``."""
        self.job = moved(self.job, name, replica, state, cause)

    def put(self, name: ReplicaId, replica: Replica) -> None:
        """Keep this record of a replica."""
        self.job = replace(self.job, replicas=self.job.replicas.put(name, replica))

    def decline(self, reason: str) -> None:
        """Refuse what a person has asked for."""
        self.declined = Declined(reason=reason)

    def count_stale(self) -> None:
        """Count a message that is about the past or the unknown."""
        self.job = replace(self.job, stale=self.job.stale + 1)
