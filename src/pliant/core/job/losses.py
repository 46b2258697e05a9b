"""What follows when a process exits, a node is gone, or time has passed in silence.

Owns what an exit means at its time: an end that was due, a loss to go on without, or the end of the
job.  What becomes of the job without its state is in ``lifecycle``.
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.events import Exited, ExitKind
from pliant.core.exits import EXIT_FAILED, EXIT_USAGE
from pliant.core.job import lifecycle, replicas
from pliant.core.job.budget import charge
from pliant.core.job.state import Replica, ReplicaState, Stage, is_member
from pliant.core.job.transaction import Transaction
from pliant.core.job.transitions import ReplicaCause, StageCause
from pliant.core.membership import changes
from pliant.core.policy import hysteresis
from pliant.core.values import NodeId

NOW = 0.0
"""A moment that has come: no deadline any more."""


def on_exited(tx: Transaction, event: Exited) -> None:
    """Go on without a process that has ended, and whose device is free."""
    replica = tx.job.replicas.get(event.replica)
    if replica is None:
        tx.count_stale()
        return
    membership = tx.job.membership
    is_outside = membership.formed and event.replica in membership.joiners
    was_training = is_member(tx.job, event.replica) and not is_outside
    tx.move(event.replica, replica, ReplicaState.GONE, ReplicaCause.EXITED)
    if replica.is_reclaimed and tx.job.offered is None:  # else the offer says what there is
        devices = tx.job.nodes.get(replica.node, 0)
        tx.job = replace(tx.job, nodes=tx.job.nodes.put(replica.node, max(0, devices - 1)))
    if tx.job.stage is Stage.FINISHING:
        _fail_after_the_end(tx, event, replica)
    elif not replica.is_lost:
        _lose_one(tx, event, replica, was_training=was_training)


def _fail_after_the_end(tx: Transaction, event: Exited, replica: Replica) -> None:
    """Let a script that fails after its last step decide the exit code."""
    if event.kind in (ExitKind.SCRIPT, ExitKind.USAGE) and not replica.is_lost:
        code = EXIT_USAGE if event.kind is ExitKind.USAGE else EXIT_FAILED
        tx.job = replace(tx.job, exit_code=code, reason=f"after its last step, {_sentence(event)}")


def _lose_one(tx: Transaction, event: Exited, replica: Replica, *, was_training: bool) -> None:
    """Go on without one that the membership counted on, if its script or input may be right."""
    what = _sentence(event)
    is_first = tx.job.membership.recorded is None or tx.job.stage is Stage.STARTING
    refused = StageCause.INPUT_REFUSED
    if event.kind is ExitKind.USAGE and (was_training or is_first):
        lifecycle.end_job(tx, EXIT_USAGE, event.detail or f"{what} (wrong use)", refused)
        return
    if event.kind is ExitKind.EARLY and is_first:
        lifecycle.end_job(tx, EXIT_USAGE, event.detail or what, refused)
        return
    if not replica.is_asked and event.kind is not ExitKind.TAKEN:  # the script has no part in it
        charge(tx, event.kind, what)
    tx.notes.append(f"lost {what}")
    lifecycle.lose(tx, frozenset({event.replica}), event.kind, what)


def on_node_lost(tx: Transaction, node: NodeId) -> None:
    """Go on without a node and whatever it ran."""
    lost = {n: replica for n, replica in tx.job.replicas.items() if replica.node == node}
    is_known = node in tx.job.nodes
    tx.job = replace(tx.job, nodes=tx.job.nodes.drop(node))
    for name, replica in lost.items():
        tx.move(name, replica, ReplicaState.GONE, ReplicaCause.EXITED)
    if not is_known or tx.job.stage is Stage.FINISHING:
        return
    what = f"node {node} with {', '.join(sorted(lost)) or 'no replica'}"
    if lost:
        charge(tx, ExitKind.SIGNAL, what)
        tx.job = replace(tx.job, pace=hysteresis.lost(tx.job.pace, tx.now_s))
    tx.notes.append(f"lost {what}")
    lifecycle.lose(tx, frozenset(lost), ExitKind.SIGNAL, what)


def on_tick(tx: Transaction) -> None:
    """Take silence past a deadline for a loss."""
    if tx.job.start_by_s <= tx.now_s:
        tx.job = replace(tx.job, start_by_s=NOW)
    if tx.job.membership.retry_at_s <= tx.now_s:
        tx.job = replace(tx.job, membership=replace(tx.job.membership, retry_at_s=NOW))
    if tx.job.stage is not Stage.FINISHING:  # a released process may be silent as long as it likes
        _expire_membership(tx)
    lifecycle.end_if_stop_is_overdue(tx)
    if tx.job.stage is not Stage.ENDED:
        replicas.end_overdue(tx)


def _expire_membership(tx: Transaction) -> None:
    """Let every deadline of the membership pass that is over; one may bring the next."""
    for _ in range(len(tx.job.replicas) + 1):
        before = tx.job.membership
        replicas.accept_membership(tx, changes.tick(before, tx.moment))
        if tx.job.membership == before:
            break


def _sentence(event: Exited) -> str:
    detail = f": {event.detail}" if event.detail else ""
    words = {
        ExitKind.FINISHED: "exited before it was released",
        ExitKind.LEFT: "left",
        ExitKind.USAGE: "refused its input",
        ExitKind.SCRIPT: "failed",
        ExitKind.SIGNAL: "was killed",
        ExitKind.EARLY: "ended without having trained to the end",
        ExitKind.TAKEN: "could not have its device",
    }
    return f"{event.replica} {words[event.kind]}{detail}"
