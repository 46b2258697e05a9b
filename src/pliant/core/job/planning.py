"""Who joins and who leaves now: what the membership is told of spares and leavers.

Owns with whom the first generation begins and from which checkpoint, and how many may come and go
at a time.  Must not know how the membership gets there.
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.exits import EXIT_STATE_LOST
from pliant.core.job import lifecycle, replicas, restoring
from pliant.core.job.state import ReplicaState, Stage, spares, trainers
from pliant.core.job.transaction import Transaction
from pliant.core.job.transitions import StageCause
from pliant.core.membership import changes
from pliant.core.membership import state as group
from pliant.core.membership.state import NEVER
from pliant.core.values import ReplicaId


def plan(tx: Transaction) -> None:
    """Tell the membership who may join and who is to leave now."""
    ready = _starters(tx) if tx.job.stage is Stage.STARTING else spares(tx.job)
    if tx.job.stage is Stage.ENDED:
        return
    job = tx.job
    leaving = _leaving(tx, ready)
    ready = ready[: _room(tx, leaving)]
    by_s = min((job.replicas[name].due_s for name in leaving), default=NEVER)
    replicas.accept_membership(
        tx, changes.plan(job.membership, tx.moment, join=ready, leave=leaving, leave_by_s=by_s)
    )


def _starters(tx: Transaction) -> list[ReplicaId]:
    """Choose with whom the first generation begins, once it may, and from what (R20)."""
    is_pending = restoring.is_pending(tx.job)
    if tx.job.membership.attempt is not None and not is_pending:
        return spares(tx.job)
    if not _may_start(tx, spares(tx.job)):
        return []
    if is_pending:
        _restore(tx)
    membership = tx.job.membership
    if membership.restore is None or tx.job.stage is Stage.ENDED:
        return spares(tx.job)
    for name, spare in membership.spares.items():
        if spare.calls > membership.calls:
            why = "its script is past the call of steps() in which the checkpoint was taken"
            replicas.send_away(tx, name, tx.settings.exit_s, why)
    ready = changes.joinable(tx.job.membership, spares(tx.job), is_hurried=False)
    return ready if _may_start(tx, ready) else []


def _restore(tx: Transaction) -> None:
    """Open a new history: from the newest checkpoint, or from nothing if there never was one.

    Checkpoints that were and cannot be used end the job.
    """
    found = restoring.newest(tx.job)
    if found is None and not tx.job.has_checkpoints:
        found = restoring.NOTHING
    if found is None:
        lost = StageCause.STATE_LOST
        lifecycle.end_job(tx, EXIT_STATE_LOST, restoring.nothing_left(tx.job), lost)
        return
    membership = restoring.restored(tx.job.membership, found)
    tx.notes.append(restoring.sentence(found))
    tx.job = replace(tx.job, membership=membership)
    behind = changes.fall_through(membership, membership.spares)
    tx.commands.extend(behind)
    if behind:
        tx.job = replace(tx.job, start_by_s=tx.now_s + tx.settings.start_wait_s)


def _may_start(tx: Transaction, ready: list[ReplicaId]) -> bool:
    """Whether the first generation need not wait any longer for others."""
    if not ready or len(ready) < tx.settings.policy.min_replicas:
        return False
    target = tx.job.decision.target_replicas if tx.job.decision else len(ready)
    return len(ready) >= target or tx.now_s >= tx.job.start_by_s


def _room(tx: Transaction, leaving: list[ReplicaId]) -> int:
    """Return how many may join: one that is killed has its slots until its exit is known."""
    job = tx.job
    if job.reference is None:
        return 0
    staying = len(group.members(job.membership)) - len(leaving)
    if tx.settings.policy.spares and job.decision is not None:  # they are not to join
        target = job.decision.target_replicas
        return max(0, min(job.reference.num_slots - staying, target - len(trainers(job))))
    return max(0, job.reference.num_slots - staying)


def _leaving(tx: Transaction, ready: list[ReplicaId]) -> list[ReplicaId]:
    """Choose who may leave now: never so many that too few are left, unless reclaimed."""
    job = tx.job
    present = group.members(job.membership)
    leaving = [name for name in present if job.replicas[name].state is ReplicaState.LEAVING]
    leaving.sort(key=lambda name: (not job.replicas[name].is_reclaimed, job.replicas[name].due_s))
    joining = changes.joinable(job.membership, ready, is_hurried=True)
    room = len(present) + len(joining) - tx.settings.policy.min_replicas
    forced = sum(job.replicas[name].is_reclaimed for name in leaving)
    return leaving[: max(room, forced, 0)]
