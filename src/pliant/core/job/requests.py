"""What people and the outside ask of a job: what is declined, and what comes of the rest.

Owns the answer to each request but stop and suspend (``lifecycle``) and a new policy (``sizing``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pliant.core.events import DrainRequested, Offered, PolicySet
from pliant.core.job import replicas, sizing
from pliant.core.job.sizing import view
from pliant.core.job.state import ReplicaState, Stage, is_member, live, trainers
from pliant.core.job.transaction import Transaction
from pliant.core.job.transitions import ReplicaCause
from pliant.core.policy.decide import objection
from pliant.core.values import ReplicaId


def _is_too_late(tx: Transaction) -> bool:
    """Decline what makes no sense in a job that is on its way out."""
    if tx.job.stage in (Stage.STARTING, Stage.RUNNING):
        return False
    tx.decline(f"the job is {tx.job.stage}")
    return True


def on_scaled(tx: Transaction, target: int) -> None:
    """Let the policy head for another size, if it allows for it."""
    if _is_too_late(tx):
        return
    why = objection(target, view(tx.job), tx.settings.policy)
    if why is not None:
        tx.decline(why)
        return
    tx.job = replace(tx.job, wished=target, is_urgent=True)


def on_policy_set(tx: Transaction, event: PolicySet) -> None:
    """Let another policy count from now on."""
    if not _is_too_late(tx):
        sizing.set_policy(tx, event)


def on_drain(tx: Transaction, event: DrainRequested) -> None:
    """Let one replica leave, and the target fall by one, if those that stay can spare it."""
    name, replica = event.replica, tx.job.replicas.get(event.replica)
    if _is_too_late(tx):
        return
    if replica is None or replica.state is ReplicaState.ENDING:
        tx.decline(f"there is no replica {name} to drain")
        return
    if replica.state is ReplicaState.LEAVING:  # only the notice can change
        due_s = min(replica.due_s, tx.now_s + event.notice_s)
        tx.put(name, replace(replica, due_s=due_s))
        return
    wanted = tx.job.decision.target_replicas if tx.job.decision else len(live(tx.job))
    rest = tx.settings.policy.largest(wanted - 1) or wanted - 1
    why = objection(rest, view(tx.job), tx.settings.policy)
    if why is None and is_member(tx.job, name):
        why = _below_minimum(tx, name)
    if why is not None:
        tx.decline(f"{name} is not drained: {why}")
        return
    tx.job = replace(tx.job, wished=rest, is_urgent=True)
    replicas.send_away(tx, name, event.notice_s, "drained")


def _below_minimum(tx: Transaction, name: ReplicaId) -> str | None:
    """Say why the members cannot spare this one now, or None."""
    rest = [r for r in trainers(tx.job) if r != name]
    minimum = tx.settings.policy.min_replicas
    if len(rest) >= minimum:
        return None
    return f"{len(rest)} would be left training, below minReplicas={minimum}"


def on_kill(tx: Transaction, name: ReplicaId) -> None:
    """Kill a replica; that it is lost the membership learns from its exit."""
    if name not in tx.job.replicas:
        tx.decline(f"there is no replica {name} to kill")
        return
    replicas.end(tx, name, ReplicaCause.KILLED, "killed on request", is_lost=False)


def on_offered(tx: Transaction, event: Offered) -> None:
    """Take note of what the outside grants, and let those go whose devices it takes."""
    said_s, usual_s = event.notice_s, tx.settings.policy.graceful_shutdown_timeout_s
    tx.job = replace(
        tx.job, offered=event.replicas, offer_notice_s=said_s, offer_reason=event.reason
    )
    on_reclaimed(tx, event.leave, usual_s if said_s is None else said_s)


def on_reclaimed(tx: Transaction, names: Iterable[ReplicaId], notice_s: float) -> None:
    """Let these go, whatever that leaves."""
    for name in names:
        replicas.send_away(tx, name, notice_s, "reclaimed", is_reclaimed=True)
