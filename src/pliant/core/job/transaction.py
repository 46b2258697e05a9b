"""One call of the controller in the making: what it has changed, ordered and noted so far.

Owns the moves that every part of the controller needs: taking over what the membership decided,
counting a loss, letting a replica go, ending the job.  Does not choose when to make them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pliant.core.commands import (
    Command,
    Dismiss,
    EndJob,
    EndReplica,
    Prepare,
    Reform,
    Release,
    Switch,
)
from pliant.core.events import ExitKind
from pliant.core.job.state import (
    Declined,
    Job,
    JobSettings,
    Loss,
    Replica,
    ReplicaState,
    Stage,
    is_budget_spent,
    moment,
    put,
)
from pliant.core.membership import changes
from pliant.core.membership import state as group
from pliant.core.membership.state import Moment, Outcome
from pliant.core.policy import costs
from pliant.core.values import ReplicaId

NOW = 0.0
"""A moment that has come: no deadline any more."""


@dataclass(slots=True, kw_only=True)
class Transaction:
    """One call of ``step`` in the making; never outlives it."""

    job: Job
    now_s: float
    settings: JobSettings
    commands: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    declined: Declined | None = None
    is_worth_a_look: bool = True
    """False after a mere sign of life: a thousand agents send two thousand a second."""

    @property
    def moment(self) -> Moment:
        """What the membership needs to know of now."""
        return moment(self.settings, self.now_s)

    def is_asked(self, name: ReplicaId) -> bool:
        """Whether the end of this one was asked for, so that it costs nothing of the budget."""
        return name not in self.job.replicas or self.job.replicas[name].is_asked

    def change(self, name: ReplicaId, replica: Replica) -> None:
        """Keep this record of a replica."""
        self.job = put(self.job, name, replica)

    def take(self, outcome: Outcome) -> None:
        """Accept what the membership decided, and follow up on whom it lets go."""
        membership, commands = outcome
        self.job = replace(self.job, membership=membership)
        for command in commands:
            self.commands.append(command)
            match command:
                case EndReplica(replica=name, reason=reason):
                    if not self.is_asked(name):
                        charge(self, ExitKind.SIGNAL, f"{name} ({reason})")
                    let_go(self, name, reason, due_s=self.now_s + self.settings.exit_s)
                case Dismiss(to=names, reason=reason):
                    for name in names:
                        charge(self, ExitKind.LEFT, f"{name} was refused: {reason}")
                        let_go(self, name, reason, due_s=self.now_s + self.settings.exit_s)
                case Release(to=names):
                    for name in names:
                        let_go(self, name, "released", due_s=self.now_s + self.settings.exit_s)
                case Switch():
                    self.job = replace(self.job, costs=costs.crossed(self.job.costs))
                case Prepare(order=order):
                    self.notes.append(
                        f"prepare generation {order.generation}: {', '.join(order.replicas)}"
                    )
                case Reform(order=order, to=to) if set(to) & set(order.replicas):
                    self.job = replace(self.job, costs=costs.interrupted(self.job.costs))
                    self.notes.append(
                        f"reform as generation {order.generation}: {', '.join(order.replicas)}"
                        + (f" hold, below minReplicas={self.moment.min_replicas}" * order.hold)
                    )
                case _:
                    pass


def charge(turn: Transaction, kind: ExitKind, sentence: str) -> None:
    """Count a loss that nobody asked for against the restart budget."""
    committed = turn.job.membership.committed
    loss = Loss(at_s=turn.now_s, kind=kind, sentence=sentence, committed=committed)
    kept = (*turn.job.losses, loss)[-(turn.settings.restart_budget + 1) :]
    was_spent = is_budget_spent(turn.job, turn.settings, turn.now_s)
    turn.job = replace(turn.job, losses=kept)
    if not was_spent and is_budget_spent(turn.job, turn.settings, turn.now_s):
        turn.notes.append(
            f"the restart budget of {turn.settings.restart_budget} is spent: nothing is started "
            f"until a loss is older than {turn.settings.restart_forget_s:g} s and a step was "
            "committed since"
        )


def let_go(turn: Transaction, name: ReplicaId, reason: str, *, due_s: float) -> None:
    """Take note that the membership no longer counts on this replica, which is to exit."""
    replica = turn.job.replicas.get(name)
    if replica is None:
        return
    turn.change(
        name,
        replace(
            replica,
            state=ReplicaState.ENDING,
            is_lost=True,
            is_asked=True,
            due_s=due_s,
            reason=reason,
        ),
    )


def let_leave(
    turn: Transaction, name: ReplicaId, notice_s: float, reason: str, *, is_reclaimed: bool = False
) -> None:
    """Let a replica go: a member at the next boundary, anyone else at once."""
    replica = turn.job.replicas.get(name)
    if replica is None:
        return
    due_s = turn.now_s + notice_s
    if replica.state is ReplicaState.ENDING:
        turn.change(name, replace(replica, is_reclaimed=replica.is_reclaimed or is_reclaimed))
        return
    if name in group.members(turn.job.membership):
        turn.change(
            name,
            replace(
                replica,
                state=ReplicaState.LEAVING,
                due_s=min(due_s, replica.due_s),
                is_asked=True,
                is_reclaimed=replica.is_reclaimed or is_reclaimed,
                reason=reason,
            ),
        )
        return
    turn.change(name, replace(replica, is_reclaimed=is_reclaimed))
    turn.commands.append(EndReplica(replica=name, reason=reason))
    let_go(turn, name, reason, due_s=turn.now_s + turn.settings.exit_s)
    turn.take(changes.lose(turn.job.membership, frozenset({name}), turn.moment))


def end_job(turn: Transaction, exit_code: int, reason: str) -> None:
    """End every process and the job; nothing that was decided in this turn matters any more."""
    names = sorted(turn.job.replicas, key=age)
    turn.commands.extend(EndReplica(replica=name, reason="the job ends") for name in names)
    turn.commands.append(EndJob(exit_code=exit_code, reason=reason))
    turn.notes.append(reason)
    turn.job = replace(turn.job, stage=Stage.ENDED, exit_code=exit_code, reason=reason)


def age(name: ReplicaId) -> int:
    """Return when it was named: the higher the newer."""
    return int(name[1:])
