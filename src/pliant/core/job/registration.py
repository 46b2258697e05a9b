"""Registers the workers after a restart, before anything is decided about the job (R4).

Owns the phase RECOVERING: whom to ask, what to keep, when everybody has registered, and what
becomes of each process then.  What follows for the generation is in ``membership.rejoin``.

A worker answers RollCall with Registered, which contains all that it said before, except what it
Saved; what it says afterwards is kept and taken up once all have registered.  Heartbeats are not
worth keeping.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pliant.core.commands import (
    Command,
    EndReplica,
    ListCheckpoints,
    RollCall,
    SaveNow,
    StartReplica,
    Stop,
)
from pliant.core.events import (
    CheckpointRequested,
    DiedTogether,
    DrainRequested,
    Event,
    Exited,
    ExitKind,
    Finished,
    KillRequested,
    NodeFailed,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeSilent,
    Offered,
    PolicySet,
    Progressed,
    Reclaimed,
    Registered,
    Running,
    Saved,
    Scaled,
    StopRequested,
    SuspendRequested,
    Ticked,
    WorkerEvent,
)
from pliant.core.job import node_loss, requests
from pliant.core.job.crash_loop import charge
from pliant.core.job.lifecycle import (
    begin_stop,
    go_on_ending,
    hear_finished,
    leave_after_the_end,
    lose_after_the_end,
    stop_at_once,
)
from pliant.core.job.replicas import accept_membership, end
from pliant.core.job.state import (
    Job,
    JobPhase,
    Registration,
    Replica,
    ReplicaState,
    age,
    is_done,
    spares,
)
from pliant.core.job.transaction import Transaction
from pliant.core.job.transitions import JobPhaseCause, ReplicaCause
from pliant.core.membership import changes, rejoin
from pliant.core.membership.state import NEVER, members
from pliant.core.values import NodeId, ReplicaId

UNWANTED = "it belongs to a generation that the job has left behind"


def on_node_joined(tx: Transaction, event: NodeJoined) -> None:
    """Take note of a node, and ask the workers that it runs already where they stand."""
    node_loss.hear_again(tx, event.node, frozenset(event.replicas))
    job = tx.job
    tx.job.nodes = replace(
        job.nodes,
        devices=job.nodes.devices.put(event.node, event.devices),
        labels=job.nodes.labels.put(event.node, event.labels),
        held=job.nodes.held - {event.node},
    )
    tx.job.checkpoints = replace(
        job.checkpoints,
        # What is said again on a new connection was said before they were asked to look.
        outdated=job.checkpoints.outdated | job.checkpoints.looking.intersection(event.replicas),
    )
    is_registering = job.phase is JobPhase.RECOVERING
    if is_registering:
        here = {name for name, node in job.registration.homes.items() if node == event.node}
        _forget(tx, frozenset(here) - set(event.replicas))
    unknown = _take_in(tx, event.node, event.replicas)
    silent = [
        n
        for n in event.replicas
        if is_registering and n not in (*unknown, *job.registration.registered)
    ]
    if unknown or silent:
        tx.commands.append(RollCall(to=(*unknown, *silent)))


def on_running(tx: Transaction, event: Running) -> None:
    """Say again what the workers of a node have not answered: it may never have come there."""
    job, unknown = tx.job, []
    if event.node in job.nodes.devices:
        unknown = _take_in(tx, event.node, event.replicas)
    if unknown:
        tx.commands.append(RollCall(to=tuple(unknown)))
    does_go = requests.relieve(tx, event.ailing)
    tx.must_advance = node_loss.speaks_again(tx, event.node) or bool(unknown) or does_go
    here = {name for name, replica in job.replicas.items() if replica.node == event.node}
    is_over = is_done(job, tx.now_s)
    for name in sorted(here, key=age):
        tx.again.extend(_orders_so_far(job, name, is_there=name in event.replicas, is_over=is_over))
    tx.again.extend(changes.unanswered(job.membership, here))
    if job.ending.outcome is not None:  # to hear how they ended
        left = (n for n, node in job.registration.homes.items() if node == event.node)
        missing = sorted(set(left).difference(event.replicas), key=age)
        tx.again.extend(EndReplica(replica=name, reason="it is not there") for name in missing)
    if job.checkpoints.looking and (
        looking := here.intersection(job.checkpoints.looking, spares(job))
    ):
        tx.again.append(
            ListCheckpoints(to=tuple(sorted(looking, key=age)), number=job.checkpoints.looks)
        )
    if job.phase is JobPhase.STOPPING and job.ending.stop is not None:
        present = here.intersection(members(job.membership))
        if present:
            tx.again.append(Stop(to=tuple(sorted(present, key=age))))
    if (after := job.checkpoints.asked_after) is not None:
        training = here.intersection(members(job.membership))
        if training:
            tx.again.append(SaveNow(to=tuple(sorted(training, key=age)), after=after))


def _orders_so_far(
    job: Job, name: ReplicaId, *, is_there: bool, is_over: bool
) -> tuple[Command, ...]:
    """Return what one was told that has neither come nor gone; anyone else is known by its voice.

    Who is to end and is not there has ended: what its agent answers says how.  ``is_over``: who is
    started now would find nothing to do.
    """
    replica = job.replicas[name]
    if replica.state is ReplicaState.ENDING:
        end_it = EndReplica(replica=name, reason=replica.reason)
        return (replica.farewell or end_it,) if is_there else (end_it,)
    if replica.state is not ReplicaState.STARTING:
        return ()
    if name in job.registration.registered:
        return ()
    if replica.started_at is None:  # of a coordinator before
        ask, is_gone = RollCall(to=(name,)), EndReplica(replica=name, reason="it is not there")
        return (ask,) if is_there else (is_gone,)
    return () if is_there or is_over else (StartReplica(replica=name, node=replica.node),)


def _take_in(tx: Transaction, node: NodeId, names: Iterable[ReplicaId]) -> list[ReplicaId]:
    """Take note of workers that nobody here has started; return those that are to be asked."""
    unknown = [name for name in names if name not in tx.job.replicas]
    if tx.job.phase is JobPhase.FINISHING:
        reason = tx.job.ending.reason
        tx.commands.extend(EndReplica(replica=name, reason=reason) for name in unknown)
        return []
    for name in unknown:
        tx.put(name, Replica(node=node, due_s=tx.now_s + tx.settings.start_s))
    tx.job.checkpoints = replace(
        tx.job.checkpoints, publishers=tx.job.checkpoints.publishers.union(unknown)
    )
    return unknown


def collect(tx: Transaction, event: Event) -> tuple[Event, ...]:
    """Keep one event; once all have registered, return what spares said and what was kept."""
    match event:
        case NodeJoined():
            on_node_joined(tx, event)
        case Running():
            on_running(tx, event)
        case NodeSilent(node=node, others=others):
            node_loss.on_nodes_silent(tx, (node, *others))
        case NodeLost(node=node, others=others):
            _lose_nodes(tx, (node, *others))
        case Exited(replica=name):
            leave_after_the_end(tx, event)
            _forget(tx, frozenset({name}))
            tx.job.registration = replace(
                tx.job.registration, homes=tx.job.registration.homes.drop(name)
            )
        case Registered(replica=name):
            _register(tx, event)
        case Scaled() | PolicySet() | CheckpointRequested() | DrainRequested() | KillRequested():
            tx.decline("the coordinator has just started again; ask once more in a few seconds")
        case StopRequested(at_once=True):
            stop_at_once(tx)
            return ()
        case (
            StopRequested()
            | SuspendRequested()
            | Offered()
            | Reclaimed()
            | NodeFailed()
            | NodeLeaving()
        ):
            tx.job.registration = replace(
                tx.job.registration, kept=(*tx.job.registration.kept, event)
            )
        case Progressed(replica=name) if name in rejoin.awaited(
            tx.job.membership, tx.job.registration.registered
        ):  # it lives, and cannot say more yet: its script keeps the interpreter lock
            patience_s = tx.now_s + tx.settings.timeouts.heartbeat_s
            by_s = max(tx.job.registration.by_s, min(patience_s, tx.job.start.by_s))
            tx.job.registration = replace(tx.job.registration, by_s=by_s)
        case Ticked() | Progressed() | DiedTogether():
            pass
        case _:
            _hear_worker(tx, event)
    return _conclude(tx)


def _hear_worker(tx: Transaction, event: WorkerEvent) -> None:
    """Keep what is said after a registration; what is said before is contained in it.

    That somebody has finished counts at once: who says so may be gone soon, and this coordinator.
    """
    if isinstance(event, Finished):
        hear_finished(tx, event)
    if isinstance(event, Saved) or event.replica in tx.job.registration.registered:
        tx.job.registration = replace(tx.job.registration, kept=(*tx.job.registration.kept, event))
    else:
        tx.count_stale()


def _register(tx: Transaction, event: Registered) -> None:
    job = tx.job
    if event.replica not in job.replicas or event.asked_by != job.membership.incarnation:
        tx.count_stale()
        return
    tx.job.registration = replace(
        job.registration, registered=job.registration.registered.put(event.replica, event)
    )
    if event.finished:
        hear_finished(tx, event)
    drop_publisher(tx, event)


def drop_publisher(tx: Transaction, event: Registered) -> None:
    """Take note that one has nothing to publish: it holds no state, and obeys nobody before."""
    if not rejoin.is_past(event):
        others, outdated = (
            x - {event.replica}
            for x in (tx.job.checkpoints.publishers, tx.job.checkpoints.outdated)
        )
        tx.job.checkpoints = replace(tx.job.checkpoints, publishers=others, outdated=outdated)


def _lose_nodes(tx: Transaction, lost: Sequence[NodeId]) -> None:
    for node in lost:
        here = _at(tx.job, node)
        for name in sorted(here & tx.job.registration.homes.keys(), key=age):
            lose_after_the_end(tx, name, f"{name} was lost with node {node}")
        _forget(tx, here)
        nodes, homes = tx.job.nodes.devices.drop(node), tx.job.registration.homes.drop(*here)
        tx.job.nodes = replace(tx.job.nodes, devices=nodes, silent=tx.job.nodes.silent - {node})
        tx.job.registration = replace(tx.job.registration, homes=homes)


def _at(job: Job, node: NodeId) -> frozenset[ReplicaId]:
    running = {name for name, replica in job.replicas.items() if replica.node == node}
    return frozenset(
        running | {name for name, home in job.registration.homes.items() if home == node}
    )


def _forget(tx: Transaction, names: frozenset[ReplicaId]) -> None:
    """Take note that these processes are gone."""
    job = tx.job
    gone = names & frozenset(members(job.membership))
    if job.ending.outcome is None:
        tx.notes.extend(f"lost {name} while no coordinator was there" for name in sorted(gone))
    tx.job.registration = replace(
        job.registration, registered=job.registration.registered.drop(*names)
    )
    tx.job.membership = replace(
        job.membership,
        orders=replace(job.membership.orders, gone=job.membership.orders.gone | gone),
    )
    for name in names & job.replicas.keys():
        tx.move(name, job.replicas[name], ReplicaState.GONE, ReplicaCause.EXITED)


def _conclude(tx: Transaction) -> tuple[Event, ...]:
    """Go on if everybody has registered who can; return the events that are to be applied then.

    What a spare has said of itself is examined like any spare's: the coordinator before may have
    died before it did.
    """
    silent = rejoin.awaited(tx.job.membership, tx.job.registration.registered)
    if silent and tx.now_s < tx.job.registration.by_s:
        return ()
    if _is_end_unheard(tx.job) and tx.now_s < tx.job.registration.by_s:
        return ()
    running = sorted(silent & tx.job.replicas.keys())
    if running and _is_nobody_registered(tx.job) and tx.job.registration.by_s < tx.job.start.by_s:
        tx.notes.append(f"no member says where it stands; {', '.join(running)} are waited for")
        tx.job.registration = replace(tx.job.registration, by_s=tx.job.start.by_s)
        return ()
    for name in sorted(silent):
        _give_up(tx, name)
    membership = tx.job.membership
    tx.job.membership = replace(
        membership, orders=replace(membership.orders, gone=membership.orders.gone | silent)
    )
    if (kept := _ended_before(tx)) is not None:
        return kept
    present = frozenset(members(tx.job.membership))
    for event in tx.job.registration.registered.values():
        _place(tx, event, present)
    membership, known = tx.job.membership, tx.job.registration
    there, registrations = members(membership), known.registered.values()
    tx.job.registration = Registration()
    tx.job.start = replace(
        tx.job.start,
        reference=next((one.spare for one in registrations if one.has_state and one.spare), None),
    )
    tx.job.checkpoints = replace(
        tx.job.checkpoints,
        exist=tx.job.checkpoints.exist
        or any(event.spare and event.spare.checkpoints for event in registrations),
    )
    if there:
        tx.enter(JobPhase.RUNNING, JobPhaseCause.REGISTERED)
        accept_membership(tx, rejoin.reunited(membership, known.registered, tx.moment))
        if tx.job.ending.stop is not None:  # the word may not have come through
            begin_stop(tx, JobPhaseCause.STOP_ASKED)
            tx.commands.append(Stop(to=members(tx.job.membership)))
    else:
        tx.notes.append("no member of the newest generation is left")
        tx.enter(JobPhase.STARTING, JobPhaseCause.NONE_LEFT)
        tx.job.ending = replace(tx.job.ending, stop=None)
        tx.job.membership = rejoin.without_members(membership, known.registered, tx.moment)
        tx.job.start = replace(tx.job.start, by_s=tx.now_s + tx.settings.start_s)
    waiting = tuple(
        replace(event.spare, replica=name)
        for name, event in known.registered.items()
        if event.spare is not None and not rejoin.is_past(event) and name not in there
    )
    return (*waiting, *known.kept)


def _is_end_unheard(job: Job) -> bool:
    """Whether it is yet to be heard how a member has left whose job has finished."""
    return (
        job.ending.outcome is not None
        and not job.registration.homes.keys() <= job.registration.registered.keys()
    )


def _ended_before(tx: Transaction) -> tuple[Event, ...] | None:
    """Go on with the end that is recorded, and return what was kept; None if the job goes on.

    It does where all were lost at what their script does after the last step.
    """
    known, outcome = tx.job.registration, tx.job.ending.outcome
    if outcome is None:
        return None
    here = {
        n: event
        for n, event in known.registered.items()
        if event.lineage == tx.job.membership.lineage
    }
    done = frozenset(n for n, event in here.items() if event.finished or event.leaving)
    if not (outcome.is_final or any(here[name].finished for name in done)):
        tx.notes.append("all were lost after their last step, before any had left by itself")
        tx.job.ending = replace(tx.job.ending, outcome=None, exit_code=None, reason="")
        return None
    for name in sorted(known.homes.keys() - known.registered.keys(), key=age):
        lose_after_the_end(tx, name, f"{name} was not heard of again")
    tx.job.registration = Registration()
    go_on_ending(tx, tx.job.ending.outcome or outcome, done)
    return known.kept


def _is_nobody_registered(job: Job) -> bool:
    """Whether no member has registered, so that the state may be with the silent alone."""
    return not any(name in job.registration.registered for name in members(job.membership))


def _give_up(tx: Transaction, name: ReplicaId) -> None:
    """Count a member that did not say where it stands as lost; end it where it runs."""
    waited_s = tx.settings.timeouts.register_s
    reason = f"did not say where it stands within {waited_s:g} s of the coordinator's start"
    tx.notes.append(f"lost {name}: it {reason}")
    if name in tx.job.replicas:
        charge(tx, ExitKind.SIGNAL, f"{name} ({reason})")
        end(tx, name, ReplicaCause.LOST, reason)


def _place(tx: Transaction, event: Registered, present: frozenset[ReplicaId]) -> None:
    """Give a process that has registered in time its place in the job."""
    name, registered = event.replica, ReplicaCause.REGISTERED
    replica = tx.job.replicas[name]
    if name in present:
        state = ReplicaState.TRAINING if event.has_state else ReplicaState.SPARE
        tx.move(name, replace(replica, due_s=NEVER), state, registered)
    elif name in tx.job.membership.orders.leavers and present:
        leaver = replace(
            replica,
            due_s=tx.now_s + tx.settings.leave_s,
            is_asked=True,
            reason="left behind by a resize",
        )
        tx.move(name, leaver, ReplicaState.LEAVING, registered)
    elif rejoin.is_past(event):
        end_past(tx, name)


def end_past(tx: Transaction, name: ReplicaId) -> None:
    """End a process that belongs to the past of the job."""
    end(tx, name, ReplicaCause.SENT_AWAY, UNWANTED)
