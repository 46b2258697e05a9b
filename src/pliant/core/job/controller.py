"""One job from its first process to its exit code: policy, membership and life cycle together.

Owns the way of an event: which handler it comes to, and what follows from the state afterwards,
whatever the event was.  Knows nothing of sockets, processes, files, torch or the wall clock: a
driver translates the world into events, passes ``now_s`` in, and carries the commands out.

``step`` is the only way in; a local run, a simulator and an operator drive the same one.  Below it
each module knows only those under it:

    controller     which handler; what follows
    handlers       what each event means for the job; registration, after a restart
    requests       what people and the outside ask
    sizing         how many there should be; whom to start, take in and send away
    lifecycle      stop, suspend, finish, lose the state, end
    replicas       start, send away and end a replica; accept what the membership decides
    crash_loop     the restart budget: what losses cost
    transaction    what this call has changed, ordered and noted so far
    transitions    the tables of phases and of replicas' states
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from pliant.core import events
from pliant.core.errors import TransitionError
from pliant.core.job import (
    handlers,
    lifecycle,
    node_loss,
    node_pauses,
    registration,
    replicas,
    requests,
    sizing,
)
from pliant.core.job.recording import record, record_to_write, remembered
from pliant.core.job.state import (
    History,
    Job,
    JobPhase,
    JobSettings,
    Ready,
    company,
    is_done,
    is_durable,
)
from pliant.core.job.transaction import Transaction, draft_of, frozen
from pliant.core.job.transitions import JobPhaseCause
from pliant.core.membership import changes
from pliant.core.membership.failure import silence
from pliant.core.membership.state import NEVER, members
from pliant.core.membership.transitions import Phase
from pliant.core.policy import costs
from pliant.core.tenancy import Demand, demand_of
from pliant.core.transitions import extended
from pliant.core.values import Register, StopKind


def begin(
    *,
    now_s: float,
    settings: JobSettings,
    register: Register | None = None,
    is_asked: bool = False,
) -> tuple[Job, Ready]:
    """Return a job without nodes, and the register that must be written before anything else.

    ``register`` is what is recorded; None if this is the job's first coordinator.  ``is_asked``:
    somebody wants the job to go on, however it ended.
    """
    if register is not None and is_asked:
        register = replace(register, outcome=None)
    job = remembered(register, now_s=now_s, settings=settings)
    return job, Ready(incarnation=job.membership.incarnation, register=record(job))


def step(
    job: Job, event: events.Event, *, now_s: float, settings: JobSettings
) -> tuple[Job, Ready]:
    """Apply one event; return the next state and what the driver is to do.

    Pure: same arguments, same result.  The driver sends ``Ticked`` at ``next_deadline_s``, and once
    a second, so that a restart budget can recover.  ``now_s`` must not run backwards between calls,
    and ``settings`` are the same in every one.

    Raises:
        TransitionError: our bug; it tells the last events of the job.
    """
    if job.sizing.policy is not None:
        settings = replace(settings, policy=job.sizing.policy)
    tx = Transaction(job=draft_of(job), now_s=now_s, settings=settings)
    tx.job.history = _seen(job.history, event, now_s)
    if job.phase is not JobPhase.ENDED:
        try:
            _excuse_own_silence(tx, now_s - job.history.seen_s)
            _apply(tx, event)
            if tx.must_advance:
                _advance(tx)
        except TransitionError as error:
            history = (*error.history, *map(_as_text, tx.job.history.events))
            raise TransitionError(phase=error.phase, event=error.event, history=history) from error
    elif isinstance(event, events.PeopleEvent) and not isinstance(
        event, events.Offered | events.Reclaimed
    ):
        tx.decline(f"the job has ended: {job.ending.reason}")
    after = frozen(tx.job)
    return after, Ready(
        incarnation=job.membership.incarnation,
        register=record_to_write(job, after),
        commands=tx.standing_commands(),
        again=tuple(tx.again),
        decision=after.sizing.decision if after.sizing.decision != job.sizing.decision else None,
        declined=tx.declined,
        notes=tuple(tx.notes),
    )


def next_deadline_s(job: Job) -> float:
    """Return when a ``Ticked`` will next change something, if nothing else happens."""
    if job.phase is JobPhase.ENDED:
        return NEVER
    if job.phase is JobPhase.RECOVERING:
        return job.registration.by_s
    due_s = min((replica.due_s for replica in job.replicas.values()), default=NEVER)
    due_s = min(due_s, *job.nodes.unheard.values(), NEVER)
    again_s = min((one.again_at_s or NEVER for one in job.nodes.apart.values()), default=NEVER)
    aside_s = min((node.again_at_s or NEVER for node in job.nodes.aside.values()), default=NEVER)
    again_s = min(again_s, aside_s)
    if job.phase is JobPhase.FINISHING:
        return due_s
    retry_s = job.membership.trouble.retry_at_s or NEVER
    start_s = (job.start.by_s or NEVER) if job.phase is JobPhase.STARTING else NEVER
    look_s = (
        job.sizing.decision.earliest_s
        if job.sizing.decision and job.sizing.decision.is_waiting
        else NEVER
    )
    if job.phase is JobPhase.STOPPING:
        look_s = again_s = NEVER
    slow_s = job.stragglers.look_s if job.phase is JobPhase.RUNNING else NEVER
    done_s = job.ending.last_step_by_s if is_done(job, job.history.seen_s) else NEVER
    deadline_s = min(silence.next_deadline_s(job.membership), slow_s, done_s)
    return min(deadline_s, due_s, start_s, retry_s, job.ending.stop_by_s, look_s, again_s)


def demand(job: Job, *, settings: JobSettings) -> Demand:
    """Return what the outside must know to give the job what it can use."""
    policy = job.sizing.policy or settings.policy
    return demand_of(
        policy,
        ask_replicas=job.sizing.decision.ask_replicas
        if job.sizing.decision
        else policy.min_replicas,
        num_slots=sizing.num_slots(job, settings),
        can_suspend=is_durable(job),
    )


# --- the event ---------------------------------------------------------------------------


def _apply(tx: Transaction, event: events.Event) -> None:
    if tx.job.phase is JobPhase.RECOVERING:
        _register(tx, event)
    elif isinstance(event, events.WorkerEvent):
        handlers.on_worker_event(tx, event)
    elif isinstance(event, events.PeopleEvent):
        _apply_request(tx, event)
    else:
        _apply_observation(tx, event)


def _register(tx: Transaction, event: events.Event) -> None:
    """Keep an event until everybody has said where it stands, then go on with what was kept."""
    for kept in registration.collect(tx, event):
        if tx.job.phase is not JobPhase.ENDED:
            _apply(tx, kept)
    tx.must_advance = tx.job.phase is not JobPhase.RECOVERING
    if tx.job.phase is JobPhase.STARTING:  # what they registered of checkpoints may be old
        lifecycle.look_anew(tx)


def _apply_observation(tx: Transaction, event: events.AgentEvent | events.Ticked) -> None:
    match event:
        case events.NodeJoined():
            registration.on_node_joined(tx, event)
        case events.Running():
            registration.on_running(tx, event)
        case events.NodeLost(node=node, others=others, has_left=has_left):
            node_loss.on_nodes_lost(tx, (node, *others), has_left=has_left)
        case events.NodeSilent(node=node, others=others):
            node_loss.on_nodes_silent(tx, (node, *others))
        case events.NodeLeaving():
            node_loss.on_node_leaving(tx, event)
        case events.NodeFailed():
            node_loss.on_node_failed(tx, event)
        case events.Exited():
            handlers.on_exited(tx, event)
        case events.DiedTogether(replicas=names):
            handlers.on_died_together(tx, names)
        case events.Ticked():
            handlers.on_tick(tx)
        case _:
            assert_never(event)


def _apply_request(tx: Transaction, event: events.PeopleEvent) -> None:
    match event:
        case events.Scaled(target=target):
            requests.on_scaled(tx, target)
        case events.PolicySet():
            requests.on_policy_set(tx, event)
        case events.CheckpointRequested():
            requests.on_checkpoint(tx)
        case events.DrainRequested():
            requests.on_drain(tx, event)
        case events.KillRequested(replica=name):
            requests.on_kill(tx, name)
        case events.StopRequested():
            _stop(tx, event)
        case events.SuspendRequested(reason=reason, notice_s=notice_s):
            lifecycle.suspend(tx, reason)
            if notice_s is not None:
                lifecycle.press(tx, notice_s)
        case events.Offered():
            requests.on_offered(tx, event)
        case events.Reclaimed(replicas=names, notice_s=notice_s):
            requests.on_reclaimed(tx, names, notice_s)
        case _:
            assert_never(event)


def _stop(tx: Transaction, event: events.StopRequested) -> None:
    if event.at_once:
        lifecycle.stop_at_once(tx)
        return
    lifecycle.stop(tx, StopKind.STOP)
    if event.is_pressed:
        lifecycle.press(tx)


# --- what follows from the state ---------------------------------------------------------


def _advance(tx: Transaction) -> None:
    """Bring the job on its way, whatever the event was.

    Each line may bring the job to another phase, so each asks for its own.
    """
    _settle(tx)
    if _is_training(tx) and tx.job.membership.phase is Phase.LOST:
        last = tx.job.budget.losses[-1].sentence if tx.job.budget.losses else "every member is gone"
        lifecycle.lose_state(tx, events.ExitKind.SIGNAL, last)
    if _is_training(tx):
        lifecycle.finish_if_done(tx)
    if tx.job.phase is JobPhase.FINISHING:
        lifecycle.end_if_all_gone(tx)
    if tx.job.phase is JobPhase.STOPPING:
        nobody = changes.plan(tx.job.membership, tx.moment, join=(), leave=())
        replicas.accept_membership(tx, nobody)
    if tx.job.phase in (JobPhase.STARTING, JobPhase.RUNNING):
        sizing.resize(tx)
    if tx.job.phase in (JobPhase.STARTING, JobPhase.RUNNING):
        sizing.plan(tx)
    if tx.job.phase is JobPhase.RUNNING:
        lifecycle.suspend_if_all_must_leave(tx)


def _is_training(tx: Transaction) -> bool:
    return tx.job.phase in (JobPhase.RUNNING, JobPhase.STOPPING)


def _settle(tx: Transaction) -> None:
    """Call those training that are in, and the job running once a generation was prepared."""
    membership = tx.job.membership
    if tx.job.nodes.apart and membership.phase is Phase.STEADY:
        tx.job.nodes = replace(
            tx.job.nodes, apart=node_pauses.met(tx.job.nodes.apart, company(tx.job))
        )
    for name in members(membership):
        replicas.enter(tx, name)
    has_begun = membership.orders.recorded is not None and membership.phase is not Phase.LOST
    if tx.job.phase is JobPhase.STARTING and has_begun:
        tx.enter(JobPhase.RUNNING, JobPhaseCause.PREPARED)


def _seen(history: History, event: events.Event, now_s: float) -> History:
    """Return what came last, with an event; mere signs of life are not worth telling."""
    if isinstance(event, events.Progressed | events.Running | events.Ticked):
        return replace(history, seen_s=now_s)
    return replace(history, seen_s=now_s, events=extended(history.events, event))


def _as_text(event: object) -> str:
    """Tell an event; a spare describes its whole model."""
    text = repr(event)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _excuse_own_silence(tx: Transaction, slept_s: float) -> None:
    """Count nobody as silent where it was this coordinator that slept."""
    heartbeat_s = tx.settings.timeouts.heartbeat_s
    if slept_s > tx.settings.timeouts.asleep_s:
        tx.job.membership = silence.woken(tx.job.membership, tx.moment)
        tx.job.registration = replace(
            tx.job.registration, by_s=max(tx.job.registration.by_s, tx.now_s + heartbeat_s / 5)
        )
        tx.job.sizing = replace(tx.job.sizing, costs=costs.interrupted(tx.job.sizing.costs))
