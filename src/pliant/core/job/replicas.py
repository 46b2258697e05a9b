"""What becomes of the replicas of a job: how one is started, let go and ended.

Owns these moves, and what the membership's decisions mean for them.  Does not choose whom they
concern, nor what follows for the job.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pliant.core.commands import (
    Command,
    Dismiss,
    EndReplica,
    Prepare,
    Reform,
    Release,
    StartReplica,
    Switch,
)
from pliant.core.events import ExitKind
from pliant.core.job import node_pauses
from pliant.core.job.crash_loop import charge
from pliant.core.job.state import (
    JobPhase,
    Replica,
    ReplicaState,
    age,
    company,
    free_devices,
    is_member,
    live,
    trainers,
)
from pliant.core.job.transaction import Transaction
from pliant.core.job.transitions import ReplicaCause
from pliant.core.membership import changes
from pliant.core.membership.state import NEVER, Membership, Outcome, members
from pliant.core.placement import next_home, next_mover
from pliant.core.policy import costs
from pliant.core.values import NodeId, ReplicaId

ON_THE_WAY = (ReplicaState.STARTING, ReplicaState.SPARE)


def start(tx: Transaction, count: int) -> None:
    """Start so many, each where the job wants it, as far as devices are free."""
    if count <= 0:
        return
    free = _startable(tx)
    homes = [tx.job.replicas[name].node for name in live(tx.job)]
    for _ in range(count):
        if tx.job.nodes.apart or tx.job.nodes.aside:  # who was just started counts
            free = _startable(tx)
        if not free:
            return
        node, why = next_home(tx.settings.placement, free, homes, tx.job.nodes.labels)
        homes.append(node)
        free[node] -= 1
        if not free[node]:
            del free[node]
        named = tx.job.named + 1
        name = ReplicaId(f"r{named}")
        tx.job.named = named
        due_s = tx.now_s + tx.settings.start_s
        tx.put(name, Replica(node=node, started_at=tx.now_s, due_s=due_s))
        tx.commands.append(StartReplica(replica=name, node=node))
        tx.notes.append(f"start {name} on {node}" + (f": {why}" if why else ""))


def move_before_they_begin(tx: Transaction) -> None:
    """End who is to start anew elsewhere, as nodes have come, while nothing is trained yet."""
    job, labels, rule = tx.job, tx.job.nodes.labels, tx.settings.placement
    if job.phase is not JobPhase.STARTING or job.membership.orders.attempt is not None:
        return
    newest_first = sorted(live(job), key=age, reverse=True)
    names = [name for name in newest_first if job.replicas[name].state in ON_THE_WAY]
    stay, free = [job.replicas[name].node for name in names], _startable(tx)
    moved: list[NodeId] = []
    while (index := next_mover(rule, stay, [*stay, *moved], free, labels)) is not None:
        send_away(tx, names.pop(index), tx.settings.exit_s, "there is room elsewhere by now")
        stay.pop(index)
        moved.append(next_home(rule, free, [*stay, *moved], labels).node)
        free[moved[-1]] -= 1
        free = {node: count for node, count in free.items() if count}


def _startable(tx: Transaction) -> dict[NodeId, int]:
    """Return the free devices, of a node apart or set aside one at its time."""
    free = free_devices(tx.job)
    if are_enough(tx):
        for node in tx.job.nodes.held:
            free.pop(node, None)
    moments = (
        node_pauses.again_at_s(tx.job.nodes.apart, company(tx.job)) if tx.job.nodes.apart else {}
    )
    for node, one in tx.job.nodes.aside.items():
        moments[node] = max(moments.get(node, node_pauses.DUE), one.again_at_s)
    coming = {one.node for one in tx.job.replicas.values() if one.state in ON_THE_WAY}
    for node in tuple(free):
        again_s = moments.get(node)
        if again_s is not None and (again_s > tx.now_s or node in coming):
            del free[node]
        elif again_s is not None:
            free[node] = 1
    return free


def are_enough(tx: Transaction, but: ReplicaId | None = None) -> bool:
    """Whether those that train, or wait to begin, may go on without another, and without one."""
    job, stay = tx.job, (ReplicaState.SPARE, ReplicaState.TRAINING)
    here = job.replicas if job.phase is JobPhase.STARTING else members(job.membership)
    num = sum(name != but and job.replicas[name].state in stay for name in here)
    return num >= max(1, tx.settings.policy.min_replicas)


def hold(tx: Transaction, node: NodeId, what: str) -> None:
    """Start nothing on a node where one was refused: the next would be, too, until it is mended."""
    if node not in tx.job.nodes.held:
        tx.job.nodes = replace(tx.job.nodes, held=tx.job.nodes.held | {node})
        is_coming = any(one.state is ReplicaState.STARTING for one in tx.job.replicas.values())
        if tx.job.phase is JobPhase.STARTING and not (is_coming or _startable(tx)):
            tx.job.start = replace(tx.job.start, by_s=tx.now_s)  # nobody else is waited for
        tx.notes.append(f"node {node} starts nothing more until pliant scale N, as {what}")


def end(
    tx: Transaction,
    name: ReplicaId,
    cause: ReplicaCause,
    reason: str,
    *,
    told: Command | None = None,
    is_lost: bool = True,
    wait_s: float | None = None,
) -> None:
    """End a replica if it is not gone: its device is taken until its process was reaped.

    ``told``: by what it hears that it must go; None: its agent is told to kill it.
    ``is_lost``: the membership no longer counts on it; False where its exit is yet to tell.
    ``wait_s``: how long its exit may take until it is killed (again); None: ``exit_s``.
    """
    replica = tx.job.replicas.get(name)
    if replica is None:
        return
    if told is None:
        told = EndReplica(replica=name, reason=reason)
        tx.commands.append(told)
    ending = replace(
        replica,
        is_lost=replica.is_lost or is_lost,
        is_asked=True,
        due_s=tx.now_s + (tx.settings.exit_s if wait_s is None else wait_s),
        reason=reason,
        farewell=told,
    )
    tx.move(name, ending, ReplicaState.ENDING, cause)


def send_away(
    tx: Transaction, name: ReplicaId, notice_s: float, reason: str, *, is_reclaimed: bool = False
) -> None:
    """Let a replica go: a member at the next boundary, anyone else at once.

    Who is reclaimed again may be a member no more, while the others wait for it at that boundary.
    """
    replica = tx.job.replicas.get(name)
    if replica is None:
        return
    was_reclaimed = replica.is_reclaimed or is_reclaimed
    if replica.state is ReplicaState.ENDING:
        tx.put(name, replace(replica, is_reclaimed=was_reclaimed))
        return
    if is_member(tx.job, name) or (is_reclaimed and replica.state is ReplicaState.LEAVING):
        leaving = replace(
            replica,
            due_s=min(tx.now_s + notice_s, replica.due_s),
            is_asked=True,
            is_reclaimed=was_reclaimed,
            reason=reason,
        )
        tx.move(name, leaving, ReplicaState.LEAVING, ReplicaCause.SENT_AWAY)
        return
    tx.put(name, replace(replica, is_reclaimed=was_reclaimed))
    end(tx, name, ReplicaCause.SENT_AWAY, reason)
    drop_from_membership(tx, name)


def enter(tx: Transaction, name: ReplicaId) -> None:
    """Call a member training that was a spare, once it is in."""
    replica = tx.job.replicas.get(name)
    is_spare = replica is not None and replica.state is ReplicaState.SPARE
    if replica is not None and is_spare and name not in tx.job.membership.orders.joiners:
        tx.move(name, replica, ReplicaState.TRAINING, ReplicaCause.ENTERED)


def drop_from_membership(tx: Transaction, *names: ReplicaId) -> None:
    """Let the membership go on without these."""
    accept_membership(tx, changes.lose(tx.job.membership, frozenset(names), tx.moment))


def accept_membership(tx: Transaction, outcome: Outcome, *, is_charged: bool = True) -> None:
    """Accept what the membership decided, and follow up on whom it lets go.

    ``is_charged``: who is dismissed counts against the restart budget.
    """
    membership, commands = outcome
    excused: frozenset[ReplicaId] = frozenset()
    if membership.trouble.cut:
        excused = _remember_apart(tx, membership)
        membership = replace(membership, trouble=replace(membership.trouble, cut=frozenset()))
    tx.job.membership = membership
    for command in commands:
        tx.commands.append(_with_notice(tx, command))
        match command:
            case EndReplica(replica=name, reason=reason):
                _charge(tx, {name} - excused, ExitKind.SIGNAL, f"({reason})")
                end(tx, name, ReplicaCause.LOST, reason, told=command)
            case Dismiss(to=names, reason=reason):
                for name in names:
                    charged = {name} - excused if is_charged else ()
                    _charge(tx, charged, ExitKind.LEFT, f"was refused: {reason}")
                    end(tx, name, ReplicaCause.DISMISSED, reason, told=command)
            case Release(to=names):
                for name in names:
                    end(tx, name, ReplicaCause.RELEASED, "released", told=command)
            case Switch():
                tx.job.sizing = replace(tx.job.sizing, costs=costs.crossed(tx.job.sizing.costs))
            case Prepare(order=order):
                tx.notes.append(
                    f"prepare generation {order.generation}: {', '.join(order.replicas)}"
                )
            case Reform(order=order, to=to) if set(to) & set(order.replicas):
                tx.job.sizing = replace(tx.job.sizing, costs=costs.interrupted(tx.job.sizing.costs))
                tx.notes.append(
                    f"reform as generation {order.generation}: {', '.join(order.replicas)}"
                    + (f" wait, below minReplicas={tx.moment.min_replicas}" * order.hold)
                )
            case _:
                pass


def _with_notice(tx: Transaction, command: Command) -> Command:
    """Say with a Switch for how long processes may save that are started again."""
    if not (isinstance(command, Switch) and tx.settings.is_restarting):
        return command
    leavers = set(command.to) - set(command.order.replicas)
    due_s = min((tx.job.replicas[name].due_s for name in leavers), default=NEVER)
    return command if due_s == NEVER else replace(command, within_s=max(0.0, due_s - tx.now_s))


def _charge(tx: Transaction, names: Collection[ReplicaId], kind: ExitKind, what: str) -> None:
    """Count the loss of these, but of those that were to end anyway."""
    for name in names:
        replica = tx.job.replicas.get(name)
        if kind is ExitKind.LEFT or (replica is not None and not replica.is_asked):
            charge(tx, kind, f"{name} {what}")


def _remember_apart(tx: Transaction, after: Membership) -> frozenset[ReplicaId]:
    """Remember which nodes are apart; return whose loss costs nothing, as enough train on.

    One whose node has others that stay is left out for something of its own.  Where too few are
    left to train, the budget bounds the trying.
    """
    attempt, present = tx.job.membership.orders.attempt, members(after)
    stay = present or [n for n in (attempt.replicas if attempt else ()) if n in after.spares]
    home = {name: replica.node for name, replica in tx.job.replicas.items()}
    there = {home[name] for name in stay if name in home}
    ends = {end for link in after.trouble.cut for end in link if end in home}
    left = frozenset(name for name in ends if home[name] not in there)
    pairs = {
        node_pauses.pair(home[one], home[other])
        for one, other in after.trouble.cut
        if ends >= {one, other} and left & {one, other} and home[one] != home[other]
    }
    tx.job.nodes = replace(
        tx.job.nodes, apart=node_pauses.found_apart(tx.job.nodes.apart, pairs, tx.now_s)
    )
    for one, other in sorted(pairs):
        pause_s = tx.job.nodes.apart[one, other].again_at_s - tx.now_s
        tx.notes.append(
            f"nodes {one} and {other} do not reach each other: nothing is started on the one to "
            f"train with the other for {pause_s:g} s, then one replica tries it"
        )
    return left if len(stay) >= tx.moment.min_replicas else frozenset()


def send_away_apart(tx: Transaction) -> None:
    """End those on their way in on a node that could not reach the others, until it is tried."""
    if not tx.job.nodes.apart or not members(tx.job.membership):
        return
    moments = node_pauses.again_at_s(tx.job.nodes.apart, company(tx.job))
    for name, replica in tx.job.replicas.items():
        again_s = moments.get(replica.node)
        is_coming = replica.state in ON_THE_WAY and not is_member(tx.job, name)
        if is_coming and again_s is not None and again_s > tx.now_s:
            send_away(tx, name, tx.settings.exit_s, "its node does not reach the others")


def end_overdue(tx: Transaction) -> None:
    """End who has not started, left or exited in its time."""
    for name, replica in tx.job.replicas.items():
        if replica.due_s <= tx.now_s:
            _overdue(tx, name, replica)


def _overdue(tx: Transaction, name: ReplicaId, replica: Replica) -> None:
    reason = replica.reason
    if tx.job.phase is JobPhase.FINISHING and isinstance(replica.farewell, EndReplica):
        tx.notes.append(f"{name} is not waited for any more: its process could not be ended")
        tx.put(name, replace(replica, due_s=NEVER))
        return
    if replica.state is ReplicaState.STARTING:
        reason = f"did not reach steps() within {tx.settings.start_s:g} s"
        alike = "late"
        if replica.started_at is None:  # it may have been there before this coordinator was
            reason = f"did not say where it stands within {tx.settings.start_s:g} s"
            alike = ""
        charge(tx, ExitKind.SIGNAL, f"{name} ({reason})", signature=alike)
    elif replica.state is ReplicaState.LEAVING:
        if _is_needed(tx, name, replica):
            notice_s = tx.settings.leave_s
            tx.put(name, replace(replica, due_s=tx.now_s + notice_s))
            return
        reason = f"{replica.reason}, and its notice is over"
    reason = reason or "it did not exit in time"
    end(tx, name, ReplicaCause.OVERDUE, reason, is_lost=tx.job.phase is JobPhase.FINISHING)


def _is_needed(tx: Transaction, name: ReplicaId, replica: Replica) -> bool:
    """Whether one that is to leave must stay, as too few would be left."""
    is_short = len(trainers(tx.job)) < tx.settings.policy.min_replicas
    return is_short and not replica.is_reclaimed and is_member(tx.job, name)
