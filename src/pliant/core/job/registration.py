"""Calls the roll after a restart, before anything is decided about the job (R4).

Owns the stage RECOVERING: whom to ask, what to keep, when everybody was heard, and what becomes of
each process then.  What follows for the generation is in ``restart``.

A worker answers RollCall with Registered, which contains all that it said before, except what it
Saved; what it says afterwards is kept and taken up once the roll is complete.  Heartbeats are not
worth keeping.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pliant.core.commands import EndReplica, RollCall, Stop
from pliant.core.events import (
    DrainRequested,
    Event,
    Exited,
    ExitKind,
    KillRequested,
    NodeJoined,
    NodeLost,
    Offered,
    PolicySet,
    Progressed,
    Reclaimed,
    Registered,
    Saved,
    Scaled,
    StopRequested,
    SuspendRequested,
    Ticked,
)
from pliant.core.job.state import (
    Declined,
    Job,
    JobSettings,
    Replica,
    ReplicaState,
    Stage,
    reference_of,
)
from pliant.core.job.transaction import Transaction, charge, let_go
from pliant.core.membership import rejoin
from pliant.core.membership import state as group
from pliant.core.membership.state import NEVER
from pliant.core.policy.hysteresis import restarted
from pliant.core.table import Table
from pliant.core.values import NodeId, Register, ReplicaId

UNWANTED = "it belongs to a generation that the job has left behind"


def remembered(register: Register | None, *, now_s: float, settings: JobSettings) -> Job:
    """Return the job that a register tells of; RECOVERING if members may be alive."""
    membership = rejoin.remembered(register)
    job = Job(membership=membership, start_by_s=now_s + settings.start_s, seen_s=now_s)
    if register is None:
        return job
    is_kept = register.policy_given == settings.policy
    job = replace(
        job,
        named=register.named,
        wished=register.wished,
        policy=register.policy if is_kept else None,
        policy_given=register.policy_given if is_kept else None,
        pace=restarted(
            now_s=now_s,
            num_changes=register.num_changes,
            backoff_level=register.backoff_level,
        ),
        has_checkpoints=register.has_checkpoints,
    )
    if not group.members(membership):
        return job
    return replace(
        job,
        stage=Stage.RECOVERING,
        homes=Table(register.homes),
        stop=register.stop,
        register_by_s=now_s + settings.timeouts.register_s,
    )


def meet_node(turn: Transaction, event: NodeJoined) -> None:
    """Take note of a node, and ask the workers that it runs already where they stand."""
    job = turn.job
    turn.job = replace(job, nodes=job.nodes.put(event.node, event.devices))
    is_calling = job.stage is Stage.RECOVERING
    if is_calling:
        here = {name for name, node in job.homes.items() if node == event.node}
        _forget(turn, frozenset(here) - set(event.replicas))
    asked = []
    for name in event.replicas:
        if name not in job.replicas and job.stage is Stage.FINISHING:
            turn.commands.append(EndReplica(replica=name, reason=job.reason))
        elif name not in job.replicas:
            due_s = turn.now_s + turn.settings.start_s
            turn.change(name, Replica(node=event.node, due_s=due_s))
            asked.append(name)
        elif is_calling and name not in job.registered:
            asked.append(name)
    if asked:
        turn.commands.append(RollCall(to=tuple(asked)))


def hear(turn: Transaction, event: Event) -> tuple[Event, ...]:
    """Take one event; once the roll is complete, return what spares said and what was kept."""
    match event:
        case NodeJoined():
            meet_node(turn, event)
        case NodeLost(node=node):
            turn.job = replace(turn.job, nodes=turn.job.nodes.drop(node))
            _forget(turn, _at(turn.job, node))
        case Exited(replica=name):
            _forget(turn, frozenset({name}))
        case Registered(replica=name):
            _register(turn, event)
        case Scaled() | PolicySet() | DrainRequested() | KillRequested():
            reason = "the coordinator has just started again; ask once more in a few seconds"
            turn.declined = Declined(reason=reason)
        case StopRequested() | SuspendRequested() | Offered() | Reclaimed():
            turn.job = replace(turn.job, kept=(*turn.job.kept, event))
        case Ticked() | Progressed():
            pass
        case _ if isinstance(event, Saved) or event.replica in turn.job.registered:
            turn.job = replace(turn.job, kept=(*turn.job.kept, event))
        case _:
            turn.job = replace(turn.job, stale=turn.job.stale + 1)
    return _conclude(turn)


def _register(turn: Transaction, event: Registered) -> None:
    job = turn.job
    if event.replica not in job.replicas or event.asked_by != job.membership.incarnation:
        turn.job = replace(job, stale=job.stale + 1)
        return
    turn.job = replace(job, registered=job.registered.put(event.replica, event))


def _at(job: Job, node: NodeId) -> frozenset[ReplicaId]:
    running = {name for name, replica in job.replicas.items() if replica.node == node}
    return frozenset(running | {name for name, home in job.homes.items() if home == node})


def _forget(turn: Transaction, names: frozenset[ReplicaId]) -> None:
    """Take note that these processes are gone."""
    job = turn.job
    gone = names & frozenset(group.members(job.membership))
    turn.notes.extend(f"lost {name} while no coordinator was there" for name in sorted(gone))
    turn.job = replace(
        job,
        replicas=job.replicas.drop(*names),
        registered=job.registered.drop(*names),
        membership=replace(job.membership, gone=job.membership.gone | gone),
    )


def _conclude(turn: Transaction) -> tuple[Event, ...]:
    """Go on if everybody was heard who can be; return what is to be heard again then.

    What a spare has said of itself is examined like any spare's: the coordinator before may have
    died before it did.
    """
    job = turn.job
    silent = rejoin.awaited(job.membership, job.registered)
    if silent and turn.now_s < job.register_by_s:
        return ()
    for name in sorted(silent):
        _give_up(turn, name)
    _forget_silent(turn, silent)
    _place(turn)
    job = turn.job
    turn.job = replace(
        job,
        stage=Stage.RUNNING,
        homes=Table(),
        registered=Table(),
        kept=(),
        register_by_s=NEVER,
        reference=reference_of(job.registered.values()),
        has_checkpoints=job.has_checkpoints or _have_seen(job.registered.values()),
    )
    if group.members(job.membership):
        turn.take(rejoin.reunited(job.membership, job.registered, turn.moment))
        _stop_again(turn)
    else:
        turn.notes.append("no member of the newest generation is left")
        membership = rejoin.without_members(job.membership, job.registered, turn.moment)
        turn.job = replace(
            turn.job,
            stage=Stage.STARTING,
            stop=None,
            membership=membership,
            start_by_s=turn.now_s + turn.settings.start_s,
        )
    waiting = tuple(
        replace(event.spare, replica=name)
        for name, event in job.registered.items()
        if event.spare is not None
        and not rejoin.is_past(event)
        and name not in group.members(job.membership)
    )
    return (*waiting, *job.kept)


def _give_up(turn: Transaction, name: ReplicaId) -> None:
    """Count a member that did not say where it stands as lost; end it where it runs."""
    waited_s = turn.settings.timeouts.register_s
    reason = f"did not say where it stands within {waited_s:g} s of the coordinator's start"
    turn.notes.append(f"lost {name}: it {reason}")
    if name in turn.job.replicas:
        charge(turn, ExitKind.SIGNAL, f"{name} ({reason})")
        turn.commands.append(EndReplica(replica=name, reason=reason))
        let_go(turn, name, reason, due_s=turn.now_s + turn.settings.exit_s)


def _forget_silent(turn: Transaction, silent: frozenset[ReplicaId]) -> None:
    membership = turn.job.membership
    turn.job = replace(turn.job, membership=replace(membership, gone=membership.gone | silent))


def _place(turn: Transaction) -> None:
    """Give every process that registered its place in the job."""
    membership = turn.job.membership
    present = group.members(membership)
    for name, event in turn.job.registered.items():
        place_one(turn, event, is_member=name in present, is_leaver=name in membership.leavers)


def place_one(turn: Transaction, event: Registered, *, is_member: bool, is_leaver: bool) -> None:
    """Say what a process is that has said where it stands."""
    name = event.replica
    replica = turn.job.replicas[name]
    if is_member:
        state = ReplicaState.TRAINING if event.has_state else ReplicaState.SPARE
        turn.change(name, replace(replica, state=state, due_s=NEVER))
    elif is_leaver:
        due_s = turn.now_s + turn.settings.policy.graceful_shutdown_timeout_s
        leaver = replace(replica, state=ReplicaState.LEAVING, due_s=due_s, is_asked=True)
        turn.change(name, replace(leaver, reason="left behind by a resize"))
    elif rejoin.is_past(event):
        turn.commands.append(EndReplica(replica=name, reason=UNWANTED))
        let_go(turn, name, UNWANTED, due_s=turn.now_s + turn.settings.exit_s)


def _stop_again(turn: Transaction) -> None:
    """Go on stopping, where someone had asked for it: the word may not have come through."""
    job = turn.job
    if job.stop is None:
        return
    turn.job = replace(
        job, stage=Stage.STOPPING, stop_by_s=turn.now_s + turn.settings.timeouts.step_s
    )
    to = group.members(job.membership)
    turn.commands.append(Stop(to=to))


def _have_seen(registrations: Iterable[Registered]) -> bool:
    return any(event.spare and event.spare.checkpoints for event in registrations)
