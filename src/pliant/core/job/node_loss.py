"""What follows when the agent of a node leaves, or is not heard any more.

Owns whether the job goes on without the node, or waits for it because nothing is left without it.
Must not know how that was noticed, nor what replicas are started instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pliant.core.errors import EXIT_FAILED
from pliant.core.events import ExitKind, NodeFailed, NodeLeaving
from pliant.core.job import lifecycle, node_pauses, replicas
from pliant.core.job.crash_loop import charge
from pliant.core.job.state import (
    Job,
    JobPhase,
    Replica,
    ReplicaState,
    free_devices,
    heard_devices,
    is_durable,
    is_kept,
    spares,
)
from pliant.core.job.transaction import Transaction, start_wait_s
from pliant.core.job.transitions import JobPhaseCause, ReplicaCause
from pliant.core.membership.state import dispensable, members
from pliant.core.policy import hysteresis
from pliant.core.text import counted
from pliant.core.values import NodeId, ReplicaId, StopKind

SHOWN = 8
"""Names of nodes, and of replicas, in a sentence about a loss."""


def on_nodes_lost(tx: Transaction, nodes: Sequence[NodeId], *, has_left: bool = False) -> None:
    """Go on without nodes and whatever they ran; one without which nothing is left is waited for.

    Lost at the same moment they are one fault, and lead to one new generation.  ``has_left``: they
    have said so, and ended what they ran, so that there is nothing to wait for.
    """
    gone: list[NodeId] = []
    for node in nodes:
        if has_left or not _is_waited_for(tx.job, node, gone):
            gone.append(node)
        elif node not in tx.job.nodes.unheard:
            _wait_for(tx, node)
    if gone:
        lose_nodes(tx, gone)


def _wait_for(tx: Transaction, node: NodeId) -> None:
    wait_s = tx.settings.start_s
    tx.job.nodes = replace(tx.job.nodes, unheard=tx.job.nodes.unheard.put(node, tx.now_s + wait_s))
    is_over = tx.job.phase is JobPhase.FINISHING
    what = "what follows the last step is done" if is_over else "what is left of the run is"
    tx.notes.append(
        f"node {node} is not heard; {what} there, so it is waited for, {wait_s:g} s at most"
    )


def on_nodes_silent(tx: Transaction, nodes: Sequence[NodeId]) -> None:
    """Start nothing on nodes whose agents say nothing, until they do.

    Whom they run is left alone: whether a replica is silent its own signs of life tell, and those
    who come in the place of one that is lost are to be started where somebody hears of it.
    """
    job = tx.job
    found = [node for node in nodes if node in job.nodes.devices and node not in job.nodes.silent]
    if not found or job.phase is JobPhase.FINISHING:
        return
    tx.job.nodes = replace(job.nodes, silent=job.nodes.silent.union(found))
    _wait_as_at_the_start(tx)
    agents = "the agent of node" if len(found) == 1 else "the agents of nodes"
    tx.notes.append(f"nothing is heard of {agents} {_listed(found)}: nothing new is started there")


def speaks_again(tx: Transaction, node: NodeId) -> bool:
    """Take note that the agent of a node has said something; whether it was silent."""
    if node not in tx.job.nodes.silent:
        return False
    tx.job.nodes = replace(tx.job.nodes, silent=tx.job.nodes.silent - {node})
    tx.notes.append(f"the agent of node {node} is heard again")
    if tx.job.phase is JobPhase.STARTING and spares(tx.job):
        wait_s = tx.now_s + start_wait_s(tx)
        tx.job.start = replace(tx.job.start, by_s=min(tx.job.start.by_s, wait_s))
    return True


def _wait_as_at_the_start(tx: Transaction) -> None:
    """Let a job that has too few nodes to begin wait for others, as it did for the first."""
    if tx.job.phase is JobPhase.STARTING and heard_devices(tx.job) < tx.moment.min_replicas:
        tx.job.start = replace(tx.job.start, by_s=tx.now_s + tx.settings.start_s)


def on_node_failed(tx: Transaction, event: NodeFailed) -> None:
    """Start nothing on a node any more; where no other can, wait for one that may come, or end.

    What it runs may live on, and have what no checkpoint has: that is saved before the job ends.
    """
    if tx.job.phase is JobPhase.FINISHING or event.node not in tx.job.nodes.devices:
        return
    tx.job.nodes = replace(tx.job.nodes, devices=tx.job.nodes.devices.put(event.node, 0))
    tx.notes.append(f"node {event.node} can start nothing any more: {event.reason}")
    if any(tx.job.nodes.devices.values()):
        return
    if not tx.settings.nodes_may_come:
        _end_for(tx, event.reason)
    elif tx.job.phase is JobPhase.STARTING:
        tx.job.start = replace(tx.job.start, by_s=tx.now_s + tx.settings.start_s)


def _end_for(tx: Transaction, reason: str) -> None:
    """End the job for want of a node; a stop that is under way saves what there is anyway."""
    job = tx.job
    if job.phase is JobPhase.STOPPING:
        return
    if not members(job.membership) or is_kept(job):
        lifecycle.end_job(tx, EXIT_FAILED, reason, JobPhaseCause.INPUT_REFUSED)
        return
    # With these it ends should nobody come to the boundary: its workers died with a fork server.
    tx.job.ending = replace(job.ending, stop_for=reason, exit_code=EXIT_FAILED, reason=reason)
    lifecycle.stop(tx, StopKind.SUSPEND)


def on_node_leaving(tx: Transaction, event: NodeLeaving) -> None:
    """Let those leave between two steps that a node runs which is to go.

    As what the outside reclaims: nobody asks whether the job can spare them, and nothing is started
    there any more.  Where nobody else has the state, or room to take it over, it is saved and the
    job suspended, as where all are reclaimed; without checkpoints they train on until it is gone.
    """
    job, node = tx.job, event.node
    if node not in job.nodes.devices or job.phase not in (JobPhase.STARTING, JobPhase.RUNNING):
        return
    if _is_irreplaceable(job, node):
        is_saved, steps = is_durable(job), counted(job.membership.committed, "step")
        follows = (
            "it is saved, and the job suspended"
            if is_saved
            else f"without checkpoints all is lost with it, {steps} by now"
        )
        tx.notes.append(f"node {node} leaves, and no other has the state or room for it: {follows}")
        if not is_saved:
            return
    here = [name for name, replica in job.replicas.items() if replica.node == node]
    devices = job.nodes.devices.put(node, min(job.nodes.devices[node], len(here)))
    reason = event.reason or job.nodes.leaving.get(node, "")
    tx.job.nodes = replace(job.nodes, devices=devices, leaving=job.nodes.leaving.put(node, reason))
    why = f"node {node} leaves" + f", {reason}" * bool(reason)
    for name in here:
        replicas.send_away(tx, name, event.notice_s, why, is_reclaimed=True)


def _is_irreplaceable(job: Job, node: NodeId) -> bool:
    """Whether all that train are on this node or must go as well, and nobody else could come."""
    present = frozenset(members(job.membership))
    go = frozenset(n for n, one in job.replicas.items() if one.node == node or one.is_reclaimed)
    is_held_elsewhere = bool(present - go) and dispensable(job.membership, go) == go
    coming = {n for n, one in job.replicas.items() if one.state in replicas.ON_THE_WAY} - go
    room = bool(coming or free_devices(job).keys() - {node})
    return bool(present) and not is_held_elsewhere and not room


def lose_nodes(tx: Transaction, nodes: Sequence[NodeId]) -> None:
    """Go on without nodes and whatever they ran."""
    lost = {n: replica for n, replica in tx.job.replicas.items() if replica.node in nodes}
    is_free = all(_never_began(tx.job, replica) for replica in lost.values())
    is_known = any(node in tx.job.nodes.devices for node in nodes)
    for node in nodes:
        tx.job.nodes = replace(
            tx.job.nodes,
            unheard=tx.job.nodes.unheard.drop(node),
            devices=tx.job.nodes.devices.drop(node),
            labels=tx.job.nodes.labels.drop(node),
            apart=node_pauses.without(tx.job.nodes.apart, node),
            aside=tx.job.nodes.aside.drop(node),
            leaving=tx.job.nodes.leaving.drop(node),
            silent=tx.job.nodes.silent - {node},
        )
    for name, replica in lost.items():
        tx.move(name, replica, ReplicaState.GONE, ReplicaCause.EXITED)
        if tx.job.phase is JobPhase.FINISHING and not replica.is_lost:
            lifecycle.lose_after_the_end(tx, name, f"{name} was lost with node {replica.node}")
    if not is_known or tx.job.phase is JobPhase.FINISHING:
        return
    _wait_as_at_the_start(tx)
    word = "node" if len(nodes) == 1 else "nodes"
    what = f"{word} {_listed(nodes)} with {_listed(sorted(lost)) or 'no replica'}"
    if lost and not is_free:
        charge(tx, ExitKind.SIGNAL, what)
        tx.job.sizing = replace(tx.job.sizing, pace=hysteresis.lost(tx.job.sizing.pace, tx.now_s))
    tx.notes.append(f"lost {what}")
    lifecycle.lose(tx, frozenset(lost), ExitKind.SIGNAL, what)


def _never_began(job: Job, replica: Replica) -> bool:
    """Whether a replica was to start where nothing can be started: that says nothing of it."""
    is_refused = job.nodes.devices.get(replica.node, 0) == 0
    return is_refused and replica.state in (ReplicaState.STARTING, ReplicaState.ENDING)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"


def lose_overdue(tx: Transaction) -> None:
    """Lose those that were waited for in vain, or without which the job can now go on."""
    for node, until_s in tx.job.nodes.unheard.items():
        if until_s <= tx.now_s or not _is_waited_for(tx.job, node):
            lose_nodes(tx, [node])


def hear_again(tx: Transaction, node: NodeId, running: frozenset[ReplicaId]) -> None:
    """Take note that the agent of a node is back; one that has begun anew has none of its workers.

    Of some that are missing the agent tells how they ended; of all of them if they were released.
    """
    known = {name for name, replica in tx.job.replicas.items() if replica.node == node}
    is_over = tx.job.phase is JobPhase.FINISHING
    if node in tx.job.nodes.unheard and known and not (is_over or known & running):
        lose_nodes(tx, [node])
    tx.job.nodes = replace(tx.job.nodes, unheard=tx.job.nodes.unheard.drop(node))
    speaks_again(tx, node)


def _is_waited_for(job: Job, node: NodeId, gone: Sequence[NodeId] = ()) -> bool:
    if job.phase is JobPhase.FINISHING:
        return lifecycle.is_end_awaited(job, node)
    return is_last_refuge(job, node, gone)


def is_last_refuge(job: Job, node: NodeId, gone: Sequence[NodeId] = ()) -> bool:
    """Whether without this node, and those that are gone already, nothing is left to go on from,
    or nowhere to go on."""
    without = {node, *gone}
    here = frozenset(name for name, replica in job.replicas.items() if replica.node in without)
    others = sum(devices for name, devices in job.nodes.devices.items() if name not in without)
    holds_all = dispensable(job.membership, here) != here
    return holds_all and not (is_durable(job) and others)
