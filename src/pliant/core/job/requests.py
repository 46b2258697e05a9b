"""What people and the outside ask of a job: sizes, policies, and replicas that are to go.

Owns which of that is declined, and why.  What follows is the business of ``sizing`` and
``replicas``; stop and suspend are in ``lifecycle``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pliant.core import events
from pliant.core.commands import SaveNow
from pliant.core.job import lifecycle, replicas, sizing
from pliant.core.job.state import (
    JobPhase,
    ReplicaState,
    free_devices,
    is_durable,
    is_held,
    is_kept,
    is_member,
    live,
    trainers,
)
from pliant.core.job.transaction import Transaction
from pliant.core.job.transitions import ReplicaCause
from pliant.core.membership.state import members
from pliant.core.policy.decide import objection
from pliant.core.values import ReplicaId


def _is_too_late(tx: Transaction) -> bool:
    """Decline what makes no sense in a job that is on its way out."""
    if tx.job.phase in (JobPhase.STARTING, JobPhase.RUNNING):
        return False
    tx.decline(f"the job is {tx.job.phase}")
    return True


def on_scaled(tx: Transaction, target: int) -> None:
    """Let the policy head for another size, if it allows for it."""
    if _is_too_late(tx):
        return
    why = objection(target, sizing.view(tx.job, tx.settings), tx.settings.policy)
    if why is not None:
        tx.decline(why)
        return
    tx.job.sizing = replace(tx.job.sizing, requested=target, is_urgent=True)
    tx.job.nodes = replace(tx.job.nodes, held=frozenset())


def on_policy_set(tx: Transaction, event: events.PolicySet) -> None:
    """Let another policy count from now on."""
    if not _is_too_late(tx):
        tx.job.nodes = replace(tx.job.nodes, held=frozenset())
        sizing.set_policy(tx, event)


def on_checkpoint(tx: Transaction) -> None:
    """Have the members propose to save the boundary that comes next, if they can."""
    job, present = tx.job, members(tx.job.membership)
    if _is_too_late(tx):
        return
    if tx.settings.is_restarting:
        tx.decline("its script is started again at each change and saves by itself, unasked")
    elif not present or job.phase is JobPhase.STARTING:
        tx.decline("no replica trains yet; ask again once a step is done")
    elif not is_durable(job):
        tx.decline("its script keeps no checkpoints; name a place for them in its Session")
    elif is_held(job):
        kept = "is in a checkpoint" if is_kept(job) else "is being saved"
        tx.decline(
            f"too few replicas are left, so no step ends; what they have, of step "
            f"{job.membership.committed}, {kept}"
        )
    else:
        count = job.membership.committed
        tx.job.checkpoints = replace(job.checkpoints, asked_after=count)
        tx.commands.append(SaveNow(to=present, after=count))
        tx.notes.append(f"a checkpoint of step {count + 1}, or of one soon after it, is saved")


def on_drain(tx: Transaction, event: events.DrainRequested) -> None:
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
    wanted = tx.job.sizing.decision.target_replicas if tx.job.sizing.decision else len(live(tx.job))
    rest = tx.settings.policy.largest(wanted - 1) or wanted - 1
    why = objection(rest, sizing.view(tx.job, tx.settings), tx.settings.policy)
    if why is None and is_member(tx.job, name):
        why = _below_minimum(tx, name)
    if why is not None:
        tx.decline(f"{name} is not drained: {why}")
        return
    tx.job.sizing = replace(tx.job.sizing, requested=rest, is_urgent=True)
    replicas.send_away(tx, name, event.notice_s, "drained")


def _below_minimum(tx: Transaction, name: ReplicaId) -> str | None:
    """Say why the members cannot spare this one now, or None."""
    rest = [r for r in trainers(tx.job) if r != name]
    minimum = tx.settings.policy.min_replicas
    if len(rest) >= minimum:
        return None
    return f"{len(rest)} would be left training, below minReplicas={minimum}"


def relieve(tx: Transaction, names: Iterable[ReplicaId]) -> bool:
    """Let one of those go that are on devices that fail; return whether one does.

    One at a time, and only if a device is free for another or enough train without it.
    """
    job, going = tx.job, (ReplicaState.LEAVING, ReplicaState.ENDING)
    name = next((name for name in names if name in job.replicas), None)
    is_calm = job.phase in (JobPhase.STARTING, JobPhase.RUNNING)
    if name is None or not is_calm or any(r.state in going for r in job.replicas.values()):
        return False
    if not free_devices(job) and _below_minimum(tx, name) is not None:
        return False
    tx.notes.append(f"{name} leaves its device, which is not healthy")
    notice_s = tx.settings.leave_s
    replicas.send_away(tx, name, notice_s, "its device is not healthy")
    return True


def on_kill(tx: Transaction, name: ReplicaId) -> None:
    """Kill a replica; that it is lost the membership learns from its exit, while there is one."""
    replica = tx.job.replicas.get(name)
    if replica is None:
        tx.decline(f"there is no replica {name} to kill")
        return
    is_over = tx.job.phase is JobPhase.FINISHING
    if is_over and not replica.is_lost:
        lifecycle.lose_after_the_end(tx, name, f"{name} was killed on request", is_final=True)
    replicas.end(tx, name, ReplicaCause.KILLED, "killed on request", is_lost=is_over)


def on_offered(tx: Transaction, event: events.Offered) -> None:
    """Take note of what the outside grants, and let those go whose devices it takes."""
    said_s, usual_s = event.notice_s, tx.settings.leave_s
    tx.job.offer = replace(
        tx.job.offer, replicas=event.replicas, notice_s=said_s, reason=event.reason
    )
    on_reclaimed(tx, event.leave, usual_s if said_s is None else said_s)


def on_reclaimed(tx: Transaction, names: Iterable[ReplicaId], notice_s: float) -> None:
    """Let these go, whatever that leaves."""
    for name in names:
        replicas.send_away(tx, name, notice_s, "reclaimed", is_reclaimed=True)
