"""One job from its first process to its exit code: policy, membership and lifecycle together.

Owns every decision about a job: whom to start where, whom to let go, when to begin, stop, give up,
and with which exit code.  Knows nothing of sockets, processes, files, torch or the wall clock: a
driver translates the world into events, passes ``now_s`` in, and carries the commands out.

    STARTING --first generation prepared--> RUNNING --stop requested--> STOPPING
                                               |                           |
                                               +---all finished------------+--> FINISHING
    any --input wrong, state lost, budget spent--> ENDED <--every process gone------+

``step`` is the only way in; a local run, a simulator and an operator drive the same one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from pliant.core.commands import Dismiss, EndReplica, Publish, Release, StartReplica, Stop
from pliant.core.errors import ConfigError
from pliant.core.events import (
    Busy,
    DrainRequested,
    Event,
    Exited,
    ExitKind,
    Finished,
    KillRequested,
    NodeJoined,
    NodeLost,
    Offered,
    PeopleEvent,
    PolicySet,
    Progressed,
    PublishAsked,
    Reclaimed,
    Registered,
    Saved,
    Scaled,
    Spare,
    StopRequested,
    SuspendRequested,
    Ticked,
    Unrestorable,
    WorkerEvent,
)
from pliant.core.exits import EXIT_FAILED, EXIT_OK, EXIT_STATE_LOST, EXIT_STOPPED, EXIT_USAGE
from pliant.core.job import registration, restoring, sizing
from pliant.core.job.state import (
    Declined,
    Demand,
    Job,
    JobSettings,
    Ready,
    Replica,
    ReplicaState,
    Stage,
    demand_of,
    difference,
    free_devices,
    is_budget_spent,
    live,
    recent_losses,
    record,
    record_to_write,
    view,
)
from pliant.core.job.transaction import NOW, Transaction, age, charge, end_job, let_go, let_leave
from pliant.core.membership import changes, rejoin, worker_events
from pliant.core.membership import state as group
from pliant.core.membership.state import NEVER, Membership, Phase
from pliant.core.policy import costs
from pliant.core.policy.decide import objection, require_slots
from pliant.core.policy.hysteresis import lost
from pliant.core.values import Found, NodeId, Register, ReplicaId, StopKind


def begin(
    *, now_s: float, settings: JobSettings, register: Register | None = None
) -> tuple[Job, Ready]:
    """Return a job without nodes, and the register that must be written before anything else.

    Args:
        now_s: monotonic seconds.
        settings: policy and waits.
        register: what is recorded; None if this is the job's first coordinator.
    """
    job = registration.remembered(register, now_s=now_s, settings=settings)
    return job, Ready(incarnation=job.membership.incarnation, register=record(job))


def step(job: Job, event: Event, *, now_s: float, settings: JobSettings) -> tuple[Job, Ready]:
    """Apply one event; return the next state and what the driver is to do.

    Pure: same arguments, same result.

    Args:
        job: the value returned by the previous call.
        event: what happened.  The driver sends ``Ticked`` at ``next_deadline_s``, and once a
            second, so that a restart budget can recover.
        now_s: monotonic seconds; must not run backwards between calls.
        settings: policy and waits; the same in every call.
    """
    if job.policy is not None:
        settings = replace(settings, policy=job.policy)
    turn = Transaction(job=replace(job, seen_s=now_s), now_s=now_s, settings=settings)
    if job.stage is not Stage.ENDED:
        if now_s - job.seen_s > settings.timeouts.heartbeat_s / 2:
            membership = changes.woken(job.membership, turn.moment)
            register_by_s = max(job.register_by_s, now_s + settings.timeouts.heartbeat_s / 4)
            turn.job = replace(
                turn.job,
                membership=membership,
                register_by_s=register_by_s,
                costs=costs.interrupted(turn.job.costs),
            )
        _apply(turn, event)
        if turn.is_worth_a_look:
            _advance(turn)
    elif isinstance(event, PeopleEvent) and not isinstance(event, Offered | Reclaimed):
        turn.declined = Declined(reason=f"the job has ended: {job.reason}")
    return turn.job, Ready(
        incarnation=job.membership.incarnation,
        register=record_to_write(job, turn.job),
        commands=tuple(turn.commands),
        decision=turn.job.decision if turn.job.decision != job.decision else None,
        declined=turn.declined,
        notes=tuple(turn.notes),
    )


def next_deadline_s(job: Job) -> float:
    """Return when a ``Ticked`` will next change something, if nothing else happens."""
    if job.stage is Stage.ENDED:
        return NEVER
    if job.stage is Stage.RECOVERING:
        return job.register_by_s
    due_s = min((replica.due_s for replica in job.replicas.values()), default=NEVER)
    if job.stage is Stage.FINISHING:
        return due_s
    retry_s = job.membership.retry_at_s or NEVER
    start_s = (job.start_by_s or NEVER) if job.stage is Stage.STARTING else NEVER
    look_s = job.decision.earliest_s if job.decision and job.decision.is_waiting else NEVER
    if job.stage is Stage.STOPPING:
        look_s = NEVER
    deadline_s = group.next_deadline_s(job.membership)
    return min(deadline_s, due_s, start_s, retry_s, job.stop_by_s, look_s)


def demand(job: Job, *, settings: JobSettings) -> Demand:
    """Return what the outside must know to give the job what it can use."""
    policy = job.policy or settings.policy
    return demand_of(
        policy,
        ask_replicas=job.decision.ask_replicas if job.decision else policy.min_replicas,
        num_slots=job.reference.num_slots if job.reference else None,
        can_suspend=_is_durable(job),
    )


# --- events --------------------------------------------------------------------------


def _apply(turn: Transaction, event: Event) -> None:
    if turn.job.stage is Stage.RECOVERING:
        for kept in registration.hear(turn, event):
            if turn.job.exit_code is None:
                _apply(turn, kept)
        turn.is_worth_a_look = turn.job.stage is not Stage.RECOVERING
        return
    match event:
        case NodeJoined():
            registration.meet_node(turn, event)
        case NodeLost(node=node):
            _on_node_lost(turn, node)
        case Exited():
            _on_exited(turn, event)
        case Ticked():
            _on_tick(turn)
        case _ if isinstance(event, WorkerEvent):
            _on_worker(turn, event)
        case _:
            _on_request(turn, event)


def _on_request(turn: Transaction, event: PeopleEvent) -> None:
    match event:
        case Scaled(target=target):
            _on_scaled(turn, target)
        case DrainRequested(replica=replica, notice_s=notice_s):
            _on_drain(turn, replica, notice_s)
        case KillRequested(replica=replica):
            _on_kill(turn, replica)
        case StopRequested():
            _on_stop(turn, StopKind.STOP)
        case SuspendRequested(reason=reason):
            _on_suspend(turn, reason)
        case Offered(replicas=replicas, notice_s=notice, reason=reason, leave=names):
            turn.job = replace(
                turn.job, offered=replicas, offer_notice_s=notice, offer_reason=reason
            )
            leave_s = turn.settings.policy.graceful_shutdown_timeout_s if notice is None else notice
            for name in names:
                let_leave(turn, name, leave_s, "reclaimed", is_reclaimed=True)
        case PolicySet():
            if not _is_too_late(turn):
                sizing.set_policy(turn, event)
        case Reclaimed(replicas=names, notice_s=notice_s):
            for name in names:
                let_leave(turn, name, notice_s, "reclaimed", is_reclaimed=True)
        case _:
            assert_never(event)


def _on_worker(turn: Transaction, event: WorkerEvent) -> None:
    before = turn.job.membership
    # A survivor may refuse on behalf of a joiner; what counts is that the joiner is known.
    replica = turn.job.replicas.get(event.replica)
    if isinstance(event, PublishAsked):
        _on_publish_asked(turn, event)
    if replica is None or replica.is_lost:
        turn.is_worth_a_look = False
        if not isinstance(event, Progressed | Busy | PublishAsked):
            turn.job = replace(turn.job, stale=turn.job.stale + 1)
        return
    if isinstance(event, Spare) and not _accept_spare(turn, event, replica):
        return
    turn.take(worker_events.hear(before, event, turn.moment))
    match event:
        case Registered():
            _on_registered(turn, event)
        case Unrestorable():
            _on_unrestorable(turn, event)
        case Saved(lineage=lineage) if lineage == before.lineage:
            turn.job = restoring.saved(turn.job, event)
        case _:
            pass
    after = turn.job.membership
    is_news = isinstance(event, Progressed) and sizing.measure(turn, event, before, after)
    if not isinstance(event, Spare | Finished | Registered | Saved):
        turn.is_worth_a_look = is_news or _changed_course(before, after)


def _changed_course(before: Membership, after: Membership) -> bool:
    """Whether more has changed than who has answered so far."""
    return (
        before.phase is not after.phase
        or before.attempt is not after.attempt
        or before.recorded is not after.recorded
        or before.calls != after.calls
        or before.leavers != after.leavers
        or before.spares.keys() != after.spares.keys()
    )


def _accept_spare(turn: Transaction, event: Spare, replica: Replica) -> bool:
    """Take note of a spare; False if the job or the spare ends because of what it is."""
    reference = turn.job.reference
    if reference is None:
        try:
            require_slots(turn.settings.policy, event.num_slots)
        except ConfigError as error:
            end_job(turn, EXIT_USAGE, str(error))
            return False
        wait_s = turn.now_s + turn.settings.start_wait_s
        turn.job = replace(turn.job, reference=event, start_by_s=wait_s)
    elif (why := difference(event, reference)) is not None:
        membership, commands = changes.lose(
            turn.job.membership, frozenset({event.replica}), turn.moment
        )
        turn.take((membership, (Dismiss(to=(event.replica,), reason=why), *commands)))
        turn.notes.append(f"{event.replica} cannot join: {why}")
        return False
    if replica.state is ReplicaState.STARTING:
        turn.change(event.replica, replace(replica, state=ReplicaState.SPARE, due_s=NEVER))
        if replica.started_at is not None and turn.job.stage is Stage.RUNNING:
            known = costs.started(turn.job.costs, turn.now_s - replica.started_at)
            turn.job = replace(turn.job, costs=known)
    if event.checkpoints:
        turn.job = replace(turn.job, has_checkpoints=True)
    if turn.job.stage is Stage.STARTING:
        wait_s = turn.now_s + turn.settings.start_wait_s
        turn.job = replace(turn.job, start_by_s=min(turn.job.start_by_s, wait_s))
    return True


def _on_registered(turn: Transaction, event: Registered) -> None:
    """Place a worker that came too late for the roll: it may join if it never trained."""
    replica = turn.job.replicas[event.replica]
    is_known = event.replica in group.members(turn.job.membership)
    if (
        event.asked_by != turn.job.membership.incarnation
        or replica.state is not ReplicaState.STARTING
        or is_known
    ):
        turn.job = replace(turn.job, stale=turn.job.stale + 1)
    elif rejoin.is_past(event):
        registration.place_one(turn, event, is_member=False, is_leaver=False)
        turn.take(changes.lose(turn.job.membership, frozenset({event.replica}), turn.moment))
    elif event.spare is not None:
        _on_worker(turn, replace(event.spare, replica=event.replica))


def _on_publish_asked(turn: Transaction, event: PublishAsked) -> None:
    """Allow what was written in the current history, whoever of it asks (R20).

    Also to one that is lost: that all shares are there shows that all members had committed.
    """
    known = event.replica in turn.job.replicas
    if known and event.lineage == turn.job.membership.lineage:
        turn.commands.append(Publish(to=(event.replica,), checkpoint=event.checkpoint))
        turn.job = replace(turn.job, may_have_checkpoints=True)  # if its Saved is never heard
    else:
        turn.job = replace(turn.job, stale=turn.job.stale + 1)


def _on_unrestorable(turn: Transaction, event: Unrestorable) -> None:
    """Take the next checkpoint, in a history of its own, or end the job if there is none."""
    membership = turn.job.membership
    order = membership.recorded
    if (
        order is None
        or order.restore is None
        or (event.generation, event.replica) != (order.generation, order.origin)
        or event.checkpoint != order.restore.checkpoint
    ):
        turn.job = replace(turn.job, stale=turn.job.stale + 1)
        return
    turn.job = replace(turn.job, damaged=turn.job.damaged | {event.checkpoint})
    turn.notes.append(f"{event.checkpoint} cannot be restored: {event.reason}")
    found = restoring.newest(turn.job)
    if found is None:
        end_job(turn, EXIT_STATE_LOST, restoring.nothing_left(turn.job))
    elif found.calls == membership.calls:
        _note_restore(turn, found)
        turn.take(restoring.retried(membership, found, turn.moment))
    else:
        _start_over(turn, f"{found.name} is of another call of steps()")


def _on_exited(turn: Transaction, event: Exited) -> None:
    replica = turn.job.replicas.get(event.replica)
    if replica is None:
        turn.job = replace(turn.job, stale=turn.job.stale + 1)
        return
    was_training = _is_training(turn.job.membership, event.replica)
    job = replace(turn.job, replicas=turn.job.replicas.drop(event.replica))
    if replica.is_reclaimed and job.offered is None:  # else the offer says what there is
        devices = job.nodes.get(replica.node, 0)
        job = replace(job, nodes=job.nodes.put(replica.node, max(0, devices - 1)))
    turn.job = job
    what = _ending(event)
    if job.stage is Stage.FINISHING:
        if event.kind in (ExitKind.SCRIPT, ExitKind.USAGE) and not replica.is_lost:
            code = EXIT_USAGE if event.kind is ExitKind.USAGE else EXIT_FAILED
            turn.job = replace(job, exit_code=code, reason=f"after its last step, {what}")
        return
    if replica.is_lost:
        return
    is_first = job.membership.recorded is None or job.stage is Stage.STARTING
    if event.kind is ExitKind.USAGE and (was_training or is_first):
        end_job(turn, EXIT_USAGE, event.detail or f"{what} (wrong use)")
        return
    if event.kind is ExitKind.EARLY and is_first:
        end_job(turn, EXIT_USAGE, event.detail or what)
        return
    if not replica.is_asked and event.kind is not ExitKind.TAKEN:  # the script has no part in it
        charge(turn, event.kind, what)
    turn.notes.append(f"lost {what}")
    _lose(turn, frozenset({event.replica}), event.kind, what)


def _on_node_lost(turn: Transaction, node: NodeId) -> None:
    names = frozenset(n for n, replica in turn.job.replicas.items() if replica.node == node)
    known = node in turn.job.nodes
    turn.job = replace(
        turn.job, nodes=turn.job.nodes.drop(node), replicas=turn.job.replicas.drop(*names)
    )
    if not known or turn.job.stage is Stage.FINISHING:
        return
    what = f"node {node} with {', '.join(sorted(names)) or 'no replica'}"
    if names:
        charge(turn, ExitKind.SIGNAL, what)
        turn.job = replace(turn.job, pace=lost(turn.job.pace, turn.now_s))
    turn.notes.append(f"lost {what}")
    _lose(turn, names, ExitKind.SIGNAL, what)


def _on_scaled(turn: Transaction, target: int) -> None:
    if _is_too_late(turn):
        return
    why = objection(target, view(turn.job), turn.settings.policy)
    if why is not None:
        turn.declined = Declined(reason=why)
        return
    turn.job = replace(turn.job, wished=target, is_urgent=True)


def _on_drain(turn: Transaction, name: ReplicaId, notice_s: float) -> None:
    replica = turn.job.replicas.get(name)
    if _is_too_late(turn):
        return
    if replica is None or replica.state is ReplicaState.ENDING:
        turn.declined = Declined(reason=f"there is no replica {name} to drain")
        return
    if replica.state is ReplicaState.LEAVING:  # only the notice can change
        due_s = min(replica.due_s, turn.now_s + notice_s)
        turn.change(name, replace(replica, due_s=due_s))
        return
    wanted = turn.job.decision.target_replicas if turn.job.decision else len(live(turn.job))
    rest = turn.settings.policy.largest(wanted - 1) or wanted - 1
    why = objection(rest, view(turn.job), turn.settings.policy)
    if why is None and name in group.members(turn.job.membership):
        why = _below_minimum(turn, name)
    if why is not None:
        turn.declined = Declined(reason=f"{name} is not drained: {why}")
        return
    turn.job = replace(turn.job, wished=rest, is_urgent=True)
    let_leave(turn, name, notice_s, "drained")


def _below_minimum(turn: Transaction, name: ReplicaId) -> str | None:
    """Say why the members cannot spare this one now, or None."""
    rest = [r for r in _trainers(turn.job) if r != name]
    minimum = turn.settings.policy.min_replicas
    if len(rest) >= minimum:
        return None
    return f"{len(rest)} would be left training, below minReplicas={minimum}"


def _on_kill(turn: Transaction, name: ReplicaId) -> None:
    replica = turn.job.replicas.get(name)
    if replica is None:
        turn.declined = Declined(reason=f"there is no replica {name} to kill")
        return
    reason = "killed on request"
    turn.commands.append(EndReplica(replica=name, reason=reason))
    turn.change(
        name,
        replace(
            replica,
            state=ReplicaState.ENDING,
            is_asked=True,
            due_s=turn.now_s + turn.settings.exit_s,
            reason=reason,
        ),
    )


def _on_stop(turn: Transaction, kind: StopKind) -> None:
    job = turn.job
    if job.stage is Stage.FINISHING or job.stop in (kind, StopKind.SUSPEND):
        return
    present = group.members(job.membership)
    order = job.membership.recorded
    turn.job = job = replace(job, stop=kind)
    is_held = order is not None and order.hold
    if order is None or not present or (is_held and _is_kept(job)):
        end_job(turn, EXIT_STOPPED, _stopped(job))
        return
    if job.stage is not Stage.STOPPING:
        stop_by_s = turn.now_s + turn.settings.timeouts.step_s
        turn.job = replace(job, stage=Stage.STOPPING, stop_by_s=stop_by_s)
    turn.commands.append(Stop(to=present))
    why = f": {job.stop_for}" if job.stop_for else ", on request"
    turn.notes.append(f"{kind} after the next step{why}")


def _on_suspend(turn: Transaction, reason: str) -> None:
    if turn.job.reference is not None and not _is_durable(turn.job):
        why = "its script keeps no checkpoints to go on from; pliant stop ends it"
        turn.declined = Declined(reason=why)
        return
    if turn.job.stop is None:
        turn.job = replace(turn.job, stop_for=reason)
    _on_stop(turn, StopKind.SUSPEND)


def _busy_until_s(membership: Membership, now_s: float) -> float:
    """Return until when a member has asked to be waited for; now if none has."""
    pulses = (membership.pulses.get(name) for name in group.members(membership))
    return max((pulse.busy_until_s for pulse in pulses if pulse is not None), default=now_s)


def _stopped(job: Job) -> str:
    how = "suspended" if job.stop is StopKind.SUSPEND else "stopped"
    return f"{how} for others" if job.stop_for else f"{how} on request"


def _on_tick(turn: Transaction) -> None:
    job = turn.job
    if job.start_by_s <= turn.now_s:
        job = replace(job, start_by_s=NOW)
    if job.membership.retry_at_s <= turn.now_s:
        job = replace(job, membership=replace(job.membership, retry_at_s=NOW))
    turn.job = job
    # Once released, a process may be silent for as long as its script likes.
    for _ in range(0 if job.stage is Stage.FINISHING else len(job.replicas) + 1):
        before = turn.job.membership
        turn.take(changes.tick(before, turn.moment))
        if turn.job.membership == before:
            break
    if turn.job.stop_by_s <= turn.now_s:  # who saves its last state says that it is busy
        turn.job = replace(turn.job, stop_by_s=_busy_until_s(turn.job.membership, turn.now_s))
    if turn.job.stop_by_s <= turn.now_s:
        late = f"{_stopped(turn.job)}, without reaching a step boundary in time"
        is_given_up = turn.job.exit_code is not None
        end_job(turn, turn.job.exit_code or EXIT_STOPPED, turn.job.reason if is_given_up else late)
        return
    for name, replica in turn.job.replicas.items():
        if replica.due_s <= turn.now_s:
            _overdue(turn, name, replica)


def _overdue(turn: Transaction, name: ReplicaId, replica: Replica) -> None:
    """End a replica that has not started, left or exited in its time."""
    if (
        replica.state is ReplicaState.LEAVING
        and not replica.is_reclaimed
        and name in group.members(turn.job.membership)
        and len(_trainers(turn.job)) < turn.settings.policy.min_replicas
    ):
        notice_s = turn.settings.policy.graceful_shutdown_timeout_s
        turn.change(name, replace(replica, due_s=turn.now_s + notice_s))
        return
    if replica.state is ReplicaState.STARTING:
        reason = f"did not reach steps() within {turn.settings.start_s:g} s"
        charge(turn, ExitKind.SIGNAL, f"{name} ({reason})")
    elif replica.state is ReplicaState.LEAVING:
        reason = f"{replica.reason}, and its notice is over"
    else:
        reason = replica.reason
    turn.commands.append(EndReplica(replica=name, reason=reason))
    turn.change(
        name,
        replace(
            replica,
            state=ReplicaState.ENDING,
            is_asked=True,
            due_s=turn.now_s + turn.settings.exit_s,
            reason=reason,
        ),
    )


# --- losing, leaving, ending ------------------------------------------------------------


def _lose(turn: Transaction, names: frozenset[ReplicaId], kind: ExitKind, what: str) -> None:
    turn.take(changes.lose(turn.job.membership, names, turn.moment))
    if turn.job.membership.phase is Phase.LOST and turn.job.stage is not Stage.STARTING:
        _state_lost(turn, kind, what)


def _state_lost(turn: Transaction, kind: ExitKind, what: str) -> None:
    """Begin again from a checkpoint where that is possible, else end the job."""
    count = turn.job.membership.committed
    last = f"the last committed step is number {count}" if count else "no step was committed"
    if _is_durable(turn.job):
        if turn.job.stage is Stage.STOPPING and turn.job.exit_code is not None:
            end_job(turn, turn.job.exit_code, turn.job.reason)
        elif turn.job.stage is Stage.STOPPING:
            before = "its last replica was lost before the step boundary"
            end_job(turn, EXIT_STOPPED, f"{_stopped(turn.job)}; {before}: {what}")
        else:
            _start_over(turn, f"the last holder of the state was lost: {what}; {last}")
        return
    if kind in (ExitKind.SCRIPT, ExitKind.EARLY):
        end_job(turn, EXIT_FAILED, f"the script failed on every replica; last: {what}; {last}")
    else:
        end_job(turn, EXIT_STATE_LOST, f"the last holder of the state was lost: {what}; {last}")


def _is_durable(job: Job) -> bool:
    """Whether the script keeps checkpoints, though there may be none yet."""
    says = job.reference is not None and job.reference.is_durable
    return says or job.has_checkpoints or job.may_have_checkpoints


def _start_over(turn: Transaction, why: str) -> None:
    """Let everybody go who has trained, and wait for spares to restore a checkpoint with."""
    turn.notes.append(f"{why}; a checkpoint will be restored")
    turn.job = replace(
        turn.job,
        stage=Stage.STARTING,
        start_by_s=turn.now_s + turn.settings.start_wait_s,
        membership=changes.given_up(turn.job.membership),
        pace=replace(turn.job.pace, restarted_at=turn.now_s),
        costs=costs.interrupted(turn.job.costs),
    )
    kept = (ReplicaState.STARTING, ReplicaState.SPARE, ReplicaState.ENDING)
    members = group.under_way(turn.job.membership).replicas
    for name, replica in turn.job.replicas.items():
        if replica.state not in kept or (
            name in members and replica.state is not ReplicaState.ENDING
        ):
            let_leave(turn, name, turn.settings.exit_s, "the job goes back to a checkpoint")


# --- what follows from the state ----------------------------------------------------------


def _advance(turn: Transaction) -> None:
    """Bring the job on its way, whatever the event was."""
    _settle(turn)
    is_training = turn.job.stage in (Stage.RUNNING, Stage.STOPPING)
    if is_training and turn.job.membership.phase is Phase.LOST:
        _state_lost(turn, ExitKind.SIGNAL, _last_loss(turn.job))
    if turn.job.stage in (Stage.RUNNING, Stage.STOPPING):
        _finish_if_done(turn)
    if turn.job.stage is Stage.FINISHING and not turn.job.replicas:
        end_job(turn, turn.job.exit_code or EXIT_OK, turn.job.reason)
    if turn.job.stage is Stage.STOPPING:
        turn.take(changes.plan(turn.job.membership, turn.moment, join=(), leave=()))
    if turn.job.stage in (Stage.STARTING, Stage.RUNNING):
        _resize(turn)
    if turn.job.stage in (Stage.STARTING, Stage.RUNNING):
        _plan(turn)
    if turn.job.stage is Stage.RUNNING and _is_last_notice(turn.job):
        turn.notes.append("every replica is reclaimed and there is no room for another")
        _on_stop(turn, StopKind.SUSPEND)


def _is_last_notice(job: Job) -> bool:
    """Whether all who hold the state must go, and nobody can come for whom they could wait."""
    members = group.members(job.membership)
    coming = (ReplicaState.STARTING, ReplicaState.SPARE)
    return (
        _is_durable(job)
        and bool(members)
        and all(job.replicas[name].is_reclaimed for name in members)
        and not any(replica.state in coming for replica in job.replicas.values())
        and (job.offered == 0 or not free_devices(job))
    )


def _settle(turn: Transaction) -> None:
    """Call those training that are in, and the job running once a generation was prepared."""
    membership = turn.job.membership
    for name in group.members(membership):
        replica = turn.job.replicas.get(name)
        if (
            replica is not None
            and replica.state is ReplicaState.SPARE
            and name not in membership.joiners
        ):
            turn.change(name, replace(replica, state=ReplicaState.TRAINING))
    has_begun = membership.recorded is not None and membership.phase is not Phase.LOST
    if turn.job.stage is Stage.STARTING and has_begun:
        turn.job = replace(turn.job, stage=Stage.RUNNING)


def _finish_if_done(turn: Transaction) -> None:
    """Once every member has done its last step, let them all go."""
    if not group.is_finished(turn.job.membership):
        order = turn.job.membership.recorded
        is_held = order is not None and order.hold
        if turn.job.stage is Stage.STOPPING and is_held and _is_kept(turn.job):
            end_job(turn, *_ending_of_a_hold(turn.job))
        return
    is_stop = turn.job.stage is Stage.STOPPING
    count = turn.job.membership.committed
    stopped = f"{_stopped(turn.job)} after {count} steps"
    reason = stopped if is_stop else f"finished {count} steps"
    turn.job = replace(
        turn.job,
        stage=Stage.FINISHING,
        exit_code=EXIT_STOPPED if is_stop else EXIT_OK,
        reason=reason,
        stop_by_s=NEVER,
    )
    turn.notes.append(reason)
    done = turn.job.membership.finished | turn.job.membership.leavers
    released = tuple(name for name in sorted(turn.job.replicas, key=age) if name in done)
    turn.commands.append(Release(to=released))
    for name in sorted(turn.job.replicas, key=age):
        if name in done:
            due_s = turn.now_s + turn.settings.finish_s
            replica = turn.job.replicas[name]
            turn.change(
                name, replace(replica, state=ReplicaState.ENDING, is_asked=True, due_s=due_s)
            )
        elif turn.job.replicas[name].state is not ReplicaState.ENDING:
            turn.commands.append(EndReplica(replica=name, reason=reason))
            let_go(turn, name, reason, due_s=turn.now_s + turn.settings.exit_s)


def _is_kept(job: Job) -> bool:
    """Whether what the members hold is durable, or is not going to be."""
    membership = job.membership
    here = (membership.lineage, membership.committed)
    return not _is_durable(job) or any((f.lineage, f.committed) >= here for f in job.saved)


def _ending_of_a_hold(job: Job) -> tuple[int, str]:
    """Return with what a job ends whose members wait for others that do not come any more."""
    if job.exit_code is not None:
        return job.exit_code, job.reason
    return EXIT_STOPPED, f"{_stopped(job)}, while waiting for a replacement"


def _resize(turn: Transaction) -> None:
    """Ask the policy how many there should be; start or let go the difference."""
    missing = sizing.follow(turn)
    if is_budget_spent(turn.job, turn.settings, turn.now_s):
        _give_up_if_needed(turn)
        return
    _start(turn, missing)
    if turn.job.start_by_s <= turn.now_s and turn.job.stage is Stage.STARTING:
        _check_capacity(turn)


def _start(turn: Transaction, count: int) -> None:
    free = free_devices(turn.job)
    for _ in range(count):
        if not free:
            return
        node = max(sorted(free), key=lambda name: free[name])
        free[node] -= 1
        if not free[node]:
            del free[node]
        named = turn.job.named + 1
        name = ReplicaId(f"r{named}")
        turn.job = replace(turn.job, named=named)
        due_s = turn.now_s + turn.settings.start_s
        turn.change(name, Replica(node=node, started_at=turn.now_s, due_s=due_s))
        turn.commands.append(StartReplica(replica=name, node=node))
        turn.notes.append(f"start {name} on {node}")


def _give_up_if_needed(turn: Transaction) -> None:
    """End a job that cannot go on without the replicas that it may no longer start."""
    minimum = turn.settings.policy.min_replicas
    if len(live(turn.job)) >= minimum:
        return
    losses = recent_losses(turn.job, turn.settings, turn.now_s)
    reason = (
        f"the restart budget of {turn.settings.restart_budget} is spent and fewer than "
        f"minReplicas={minimum} are left; last: {losses[-1].sentence}"
    )
    if not group.members(turn.job.membership) or _is_kept(turn.job):
        end_job(turn, EXIT_FAILED, reason)
        return
    turn.notes.append(f"{reason}; what is left of it is saved first")
    turn.job = replace(
        turn.job,
        stage=Stage.STOPPING,
        stop_by_s=turn.now_s + turn.settings.timeouts.step_s,
        exit_code=EXIT_FAILED,
        reason=reason,
    )


def _check_capacity(turn: Transaction) -> None:
    devices, minimum = sum(turn.job.nodes.values()), turn.settings.policy.min_replicas
    if devices < minimum:
        end_job(turn, EXIT_USAGE, f"minReplicas={minimum}, but the nodes can run {devices}")


def _plan(turn: Transaction) -> None:
    """Tell the membership who may join and who is to leave now."""
    spares = _starters(turn) if turn.job.stage is Stage.STARTING else _spares(turn.job)
    if turn.job.stage is Stage.ENDED:
        return
    job = turn.job
    leaving = _leaving(turn, spares)
    spares = spares[: _room(turn, leaving)]
    by_s = min((job.replicas[name].due_s for name in leaving), default=NEVER)
    turn.take(
        changes.plan(job.membership, turn.moment, join=spares, leave=leaving, leave_by_s=by_s)
    )


def _spares(job: Job) -> list[ReplicaId]:
    return [n for n, r in job.replicas.items() if r.state is ReplicaState.SPARE]


def _starters(turn: Transaction) -> list[ReplicaId]:
    """Choose with whom the first generation begins, once it may, and from what (R20)."""
    is_pending = restoring.is_pending(turn.job)
    if turn.job.membership.attempt is not None and not is_pending:
        return _spares(turn.job)
    if not _may_start(turn, _spares(turn.job)):
        return []
    if is_pending:
        _restore(turn)
    membership = turn.job.membership
    if membership.restore is None or turn.job.stage is Stage.ENDED:
        return _spares(turn.job)
    for name, spare in membership.spares.items():
        if spare.calls > membership.calls:
            why = "its script is past the call of steps() in which the checkpoint was taken"
            let_leave(turn, name, turn.settings.exit_s, why)
    ready = changes.joinable(turn.job.membership, _spares(turn.job), is_hurried=False)
    return ready if _may_start(turn, ready) else []


def _restore(turn: Transaction) -> None:
    """Open a new history: from the newest checkpoint, or from nothing if there never was one.

    Checkpoints that were and cannot be used end the job.
    """
    found = restoring.newest(turn.job)
    if found is None and not turn.job.has_checkpoints:
        found = restoring.NOTHING
    if found is None:
        end_job(turn, EXIT_STATE_LOST, restoring.nothing_left(turn.job))
        return
    membership = restoring.restored(turn.job.membership, found)
    _note_restore(turn, found)
    turn.job = replace(turn.job, membership=membership)
    behind = changes.fall_through(membership, membership.spares)
    turn.commands.extend(behind)
    if behind:
        turn.job = replace(turn.job, start_by_s=turn.now_s + turn.settings.start_wait_s)


def _note_restore(turn: Transaction, found: Found) -> None:
    if found is restoring.NOTHING:
        turn.notes.append("nothing was made durable before: the run begins again, at step 0")
        return
    turn.notes.append(f"restore {found.name}: go on from {found.committed} committed steps")


def _may_start(turn: Transaction, spares: list[ReplicaId]) -> bool:
    """Whether the first generation need not wait any longer for others."""
    if not spares or len(spares) < turn.settings.policy.min_replicas:
        return False
    target = turn.job.decision.target_replicas if turn.job.decision else len(spares)
    return len(spares) >= target or turn.now_s >= turn.job.start_by_s


def _room(turn: Transaction, leaving: list[ReplicaId]) -> int:
    """Return how many may join: one that is killed has its slots until its exit is known."""
    job = turn.job
    if job.reference is None:
        return 0
    staying = len(group.members(job.membership)) - len(leaving)
    if turn.settings.policy.spares and job.decision is not None:  # they are not to join
        target = job.decision.target_replicas
        return max(0, min(job.reference.num_slots - staying, target - len(_trainers(job))))
    return max(0, job.reference.num_slots - staying)


def _leaving(turn: Transaction, spares: list[ReplicaId]) -> list[ReplicaId]:
    """Choose who may leave now: never so many that too few are left, unless reclaimed."""
    job = turn.job
    present = group.members(job.membership)
    leaving = [name for name in present if job.replicas[name].state is ReplicaState.LEAVING]
    leaving.sort(key=lambda name: (not job.replicas[name].is_reclaimed, job.replicas[name].due_s))
    joining = changes.joinable(job.membership, spares, is_hurried=True)
    room = len(present) + len(joining) - turn.settings.policy.min_replicas
    forced = sum(job.replicas[name].is_reclaimed for name in leaving)
    return leaving[: max(room, forced, 0)]


# --- helpers -------------------------------------------------------------------------------


def _is_too_late(turn: Transaction) -> bool:
    """Decline what makes no sense in a job that is on its way out."""
    if turn.job.stage in (Stage.STARTING, Stage.RUNNING):
        return False
    turn.declined = Declined(reason=f"the job is {turn.job.stage}")
    return True


def _is_training(membership: Membership, name: ReplicaId) -> bool:
    """Whether this one is a member that has entered, so that the run depends on its script."""
    outside = membership.joiners if membership.formed else ()
    return name in group.members(membership) and name not in outside


def _trainers(job: Job) -> list[ReplicaId]:
    """Return the members that are to stay."""
    members = group.members(job.membership)
    return [name for name in members if job.replicas[name].state is ReplicaState.TRAINING]


def _ending(event: Exited) -> str:
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


def _last_loss(job: Job) -> str:
    return job.losses[-1].sentence if job.losses else "every member is gone"
