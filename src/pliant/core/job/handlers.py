"""What each event means for a job: what workers say, what agents and time report.

Owns the conclusions for the job; what a worker's words mean for the membership
``core.membership.worker_events`` says first.  What follows from the state whatever the event was is
in ``controller``, a node that joins in ``registration``, what people ask in ``requests``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pliant.core import events
from pliant.core.agreement import another_total
from pliant.core.commands import Dismiss, ListCheckpoints, Publish
from pliant.core.durability import LEAVE_S
from pliant.core.errors import EXIT_FAILED, EXIT_STATE_LOST, EXIT_USAGE, ConfigError
from pliant.core.job import (
    lifecycle,
    node_loss,
    node_pauses,
    registration,
    replicas,
    restoring,
    sizing,
    stragglers,
)
from pliant.core.job.crash_loop import (
    WAY_IN,
    charge,
    charge_restart,
    count_failed_device,
    signature,
)
from pliant.core.job.state import JobPhase, Replica, ReplicaState, is_member
from pliant.core.job.transaction import Transaction, start_wait_s
from pliant.core.job.transitions import JobPhaseCause, ReplicaCause
from pliant.core.membership import changes, rejoin, worker_events
from pliant.core.membership.failure import silence
from pliant.core.membership.state import NEVER, Membership, members, outsiders
from pliant.core.membership.transitions import Phase
from pliant.core.policy import costs
from pliant.core.policy.decide import require_slots
from pliant.core.values import (
    CHECKPOINT_PLACE,
    DATASET_SAMPLES,
    DEVICE,
    DEVICE_TYPE,
    KERNELS,
    NUMERICS,
    SAMPLE,
    SCRIPT_MODULE,
    TOTAL,
    NodeId,
    ReplicaId,
)

# --- workers ---------------------------------------------------------------------------


def on_worker_event(tx: Transaction, event: events.WorkerEvent) -> None:
    """Let the membership hear what a worker says, and draw the conclusions for the job."""
    before = tx.job.membership
    # A survivor may refuse on behalf of a joiner; what counts is that the joiner is known.
    replica = tx.job.replicas.get(event.replica)
    if isinstance(event, events.PublishAsked):
        _on_publish_asked(tx, event)
    if isinstance(event, events.Finished):
        lifecycle.hear_finished(tx, event)
        lifecycle.hear_lacking(tx, event)
    if replica is None or replica.is_lost:
        tx.must_advance = False
        if not isinstance(event, events.Progressed | events.Busy | events.PublishAsked):
            tx.count_stale()
        return
    if isinstance(event, events.Spare) and not _accept_spare(tx, event, replica):
        return
    replicas.accept_membership(tx, worker_events.hear_worker(before, event, tx.moment))
    _conclude(tx, event, before)
    if tx.job.phase is JobPhase.ENDED:
        return
    after = tx.job.membership
    if isinstance(event, events.Progressed):
        stragglers.hear_slowness(tx, event)
    has_learnt = isinstance(event, events.Progressed) and sizing.measure(tx, event, before, after)
    if not isinstance(event, events.Spare | events.Finished | events.Registered | events.Saved):
        has_learnt = has_learnt or _speaks_again(before, after, event.replica)
        tx.must_advance = has_learnt or _is_more_than_an_answer(before, after, event.replica)


def _conclude(tx: Transaction, event: events.WorkerEvent, before: Membership) -> None:
    """Draw the conclusions for the job from what the membership has heard."""
    match event:
        case events.Registered():
            _on_registered(tx, event)
        case events.Unrestorable():
            _on_unrestorable(tx, event)
        case events.Saved(lineage=lineage) if lineage == before.lineage:
            tx.job.checkpoints = restoring.saved(tx.job.checkpoints, event)
        case events.Switched(replica=name) if (
            name in before.wait.awaiting and name not in tx.job.membership.wait.awaiting
        ):
            replicas.enter(tx, name)
        case events.Broken() if (why := charge_restart(tx, event)) is not None:
            lifecycle.end_job(tx, EXIT_FAILED, why, JobPhaseCause.BUDGET_SPENT)
        case _:
            pass


def _is_more_than_an_answer(before: Membership, after: Membership, name: ReplicaId) -> bool:
    """Whether more has changed than who has answered so far, and is a spare no more for that."""
    return (
        before.phase is not after.phase
        or before.orders.attempt is not after.orders.attempt
        or before.orders.recorded is not after.orders.recorded
        or before.calls != after.calls
        or before.orders.leavers != after.orders.leavers
        or bool((before.spares.keys() ^ after.spares.keys()) - {name})
    )


def _speaks_again(before: Membership, after: Membership, name: ReplicaId) -> bool:
    """Whether nothing was planned because this one could not take part in it, and now it can."""
    was_mute = name in before.pulses and before.pulses[name].is_mute
    is_mute = name in after.pulses and after.pulses[name].is_mute
    is_last_unsure = bool(before.trouble.unsure) and not after.trouble.unsure
    is_heard_again = name in before.trouble.unheard and name not in after.trouble.unheard
    return (was_mute and not is_mute) or is_heard_again or is_last_unsure


def _accept_spare(tx: Transaction, event: events.Spare, replica: Replica) -> bool:
    """Take note of a spare; False if the job or the spare ends because of what it is."""
    reference = tx.job.start.reference
    if reference is None:
        try:
            require_slots(tx.settings.policy, event.num_slots)
        except ConfigError as error:
            lifecycle.end_job(tx, EXIT_USAGE, str(error), JobPhaseCause.INPUT_REFUSED)
            return False
        wait_s = tx.now_s + start_wait_s(tx)
        tx.job.start = replace(tx.job.start, reference=event, by_s=wait_s)
    elif not tx.job.membership.committed and has_more_samples(event, reference):
        _begin_with_more(tx, event, reference)
    elif (why := difference(event, reference)) is not None:
        if (
            why == ANOTHER_PLACE and tx.job.membership.orders.recorded is None
        ):  # so it is for all nodes
            lifecycle.end_job(tx, EXIT_USAGE, why, JobPhaseCause.INPUT_REFUSED)
            return False
        _refuse(tx, event.replica, replica.node, why)
        return False
    if replica.state is ReplicaState.STARTING:
        _has_started(tx, event.replica, replica)
    known, name = tx.job.checkpoints, event.replica
    looking = known.looking
    if event.is_durable and name in known.outdated and tx.job.phase is JobPhase.STARTING:
        looking |= {name}
        tx.commands.append(ListCheckpoints(to=(name,), number=known.looks))
    elif restoring.has_looked(tx.job, event):
        looking -= {name}
    tx.job.checkpoints = replace(
        known,
        looking=looking,
        outdated=known.outdated - {name},
        exist=known.exist or bool(event.checkpoints),
    )
    if tx.job.phase is JobPhase.STARTING:
        wait_s = tx.now_s + start_wait_s(tx)
        tx.job.start = replace(tx.job.start, by_s=min(tx.job.start.by_s, wait_s))
    return True


def _has_started(tx: Transaction, name: ReplicaId, replica: Replica) -> None:
    """Take note that a process is ready, and what that says of its node and of costs."""
    ready = replace(replica, due_s=NEVER)
    tx.move(name, ready, ReplicaState.SPARE, ReplicaCause.READY)
    if replica.node in tx.job.nodes.aside:
        tx.job.nodes = replace(tx.job.nodes, aside=tx.job.nodes.aside.drop(replica.node))
        tx.notes.append(f"node {replica.node} is no longer set aside: {name} is ready")
    if replica.started_at is not None and tx.job.phase is JobPhase.RUNNING:
        known = costs.started(tx.job.sizing.costs, tx.now_s - replica.started_at)
        tx.job.sizing = replace(tx.job.sizing, costs=known)


def has_more_samples(spare: events.Spare, reference: events.Spare) -> bool:
    """Whether a spare sees more of a dataset than the run, and all else is the same."""
    here, there = dict(spare.identity), dict(reference.identity)
    mine, its = (int(named.pop(DATASET_SAMPLES, "0")) for named in (here, there))
    without = replace(spare, identity=tuple(here.items()))
    return (
        mine > its
        and difference(without, replace(reference, identity=tuple(there.items()))) is None
    )


def _begin_with_more(tx: Transaction, event: events.Spare, reference: events.Spare) -> None:
    """Start those again that have read less of the dataset than this one: it was not whole yet."""
    mine, its = (dict(one.identity)[DATASET_SAMPLES] for one in (event, reference))
    why = f"it saw {its} samples, and {event.replica} sees {mine}: {PREPARE}"
    tx.job.start = replace(tx.job.start, reference=event)
    known = (ReplicaState.SPARE, ReplicaState.TRAINING)
    fewer = [name for name, one in tx.job.replicas.items() if one.state in known]
    tx.notes.extend(f"{name} is started again: {why}" for name in fewer)
    for name in fewer:
        replicas.end(tx, name, ReplicaCause.LOST, why)
    lifecycle.lose(tx, frozenset(fewer), events.ExitKind.SIGNAL, why)


def _refuse(tx: Transaction, name: ReplicaId, node: NodeId, why: str) -> None:
    """Dismiss a spare that differs; where all differ that a node starts, it starts no more."""
    accepted = (ReplicaState.SPARE, ReplicaState.TRAINING)
    homes = {one.node for one in tx.job.replicas.values() if one.state in accepted}
    is_odd = bool(homes) and node not in homes
    is_free = is_odd or replicas.are_enough(tx, but=name)
    left, commands = changes.lose(tx.job.membership, frozenset({name}), tx.moment)
    dismiss = Dismiss(to=(name,), reason=why)
    replicas.accept_membership(tx, (left, (dismiss, *commands)), is_charged=not is_free)
    tx.notes.append(f"{name} cannot join: {why}")
    if is_free and not is_odd:
        replicas.hold(tx, node, f"{name} cannot join: {why}")
    if is_odd:
        tx.job.nodes = replace(tx.job.nodes, devices=tx.job.nodes.devices.put(node, 0))
        tx.notes.append(f"nothing is started on node {node} until its agent comes anew")


def _on_registered(tx: Transaction, event: events.Registered) -> None:
    """Place a worker that registers too late: it may join if it never trained."""
    replica = tx.job.replicas[event.replica]
    if (
        event.asked_by != tx.job.membership.incarnation
        or replica.state is not ReplicaState.STARTING
        or is_member(tx.job, event.replica)
    ):
        tx.count_stale()
    elif rejoin.is_past(event):
        registration.end_past(tx, event.replica)
        replicas.drop_from_membership(tx, event.replica)
    elif event.spare is not None:
        registration.drop_publisher(tx, event)
        on_worker_event(tx, replace(event.spare, replica=event.replica))
        if tx.job.phase is JobPhase.STARTING:  # what it saw when it said so may be old
            lifecycle.look_anew(tx)


def _on_publish_asked(tx: Transaction, event: events.PublishAsked) -> None:
    """Allow what was written in the current history, whoever of it asks (R20).

    Also to one that is lost: that all shares are there shows that all members had committed.
    """
    known = event.replica in tx.job.replicas
    if known and event.lineage == tx.job.membership.lineage:
        tx.commands.append(Publish(to=(event.replica,), checkpoint=event.checkpoint))
        publishers = tx.job.checkpoints.publishers | {event.replica}
        tx.job.checkpoints = replace(
            tx.job.checkpoints,
            may_exist=True,  # if its Saved is never heard
            publishers=publishers,
        )
        if tx.job.membership.phase is Phase.LOST:
            _wait_for_publisher(tx, event.replica)
    else:
        tx.count_stale()


def _wait_for_publisher(tx: Transaction, name: ReplicaId) -> None:
    """Wait for what is near, though it has been waited for already; but not for ever."""
    job, wait_s = tx.job, tx.settings.start_wait_s
    until_s = job.checkpoints.asking.get(name, tx.now_s + LEAVE_S + wait_s)
    start_by_s = max(job.start.by_s, min(tx.now_s + wait_s, until_s))
    tx.job.checkpoints = replace(job.checkpoints, asking=job.checkpoints.asking.put(name, until_s))
    tx.job.start = replace(job.start, by_s=start_by_s)


def _on_unrestorable(tx: Transaction, event: events.Unrestorable) -> None:
    """Take the next checkpoint, in a history of its own, or end the job if there is none."""
    membership = tx.job.membership
    order = membership.orders.recorded
    if (
        tx.job.phase is JobPhase.FINISHING
        or order is None
        or order.restore is None
        or (event.generation, event.replica) != (order.generation, order.origin)
        or event.checkpoint != order.restore.checkpoint
    ):
        tx.count_stale()
        return
    tx.job.checkpoints = replace(
        tx.job.checkpoints, damaged=tx.job.checkpoints.damaged | {event.checkpoint}
    )
    tx.notes.append(f"{event.checkpoint} cannot be restored: {event.reason}")
    found = restoring.newest(tx.job)
    if found is None:
        lost = JobPhaseCause.STATE_LOST
        lifecycle.end_job(tx, EXIT_STATE_LOST, restoring.nothing_left(tx.job), lost)
    elif found.calls == membership.calls:
        tx.notes.append(restoring.sentence(found))
        replicas.accept_membership(tx, restoring.retried(membership, found, tx.moment))
    else:
        lifecycle.go_back(tx, f"{found.name} is of another call of steps()")


# --- whether a spare may join ----------------------------------------------------------

ANOTHER_PLACE = (
    "the checkpoints of some nodes go to a directory that others do not see under its path; name "
    "one that all nodes share, or an object store (s3://..., gs://...)"
)


UNLIKE_HOSTS = (
    ": it rounds differently; give every host the same of MKL_*, ONEDNN_*, DNNL_*, OMP_* and "
    "ATEN_CPU_CAPABILITY; unlike processors may agree with ATEN_CPU_CAPABILITY=avx2, "
    "MKL_CBWR=COMPATIBLE and ONEDNN_MAX_CPU_ISA=AVX2 on all"
)

UNLIKE_DEVICES = (
    ": it may round differently; give every replica the same device and libraries, or accept "
    'unlike ones with Session(reduction="fast")'
)

PREPARE = (
    "if the script writes its data, let one process do that, in pliant.once (pliant docs "
    "prepare-data)"
)

ANOTHER_FILE = "is another than the run's; give every host the same file"

ANOTHER_SAMPLE = (
    "of the dataset is another than the run's; give every host the same data and what reads them, "
    "and seed what makes data before the session"
)


def difference(spare: events.Spare, reference: events.Spare) -> str | None:
    """Say in what a spare differs from the run it is to join; None if it may join.

    Outside exact mode only what the collectives need must agree.
    """
    if spare.num_slots != reference.num_slots:
        return f"it has {spare.num_slots} micro-batches in a step, the run {reference.num_slots}"
    ours, theirs_ = dict(spare.identity), dict(reference.identity)
    kinds = ours.pop(DEVICE_TYPE, ""), theirs_.pop(DEVICE_TYPE, "")
    if all(kinds) and len(set(kinds)) > 1:  # its gradients are in other buckets, too
        return f"its {DEVICE_TYPE} is {kinds[0]}, the run has {kinds[1]}; replicas need one kind"
    if spare.layout != reference.layout:
        return _other_model(spare.layout.splitlines(), reference.layout.splitlines())
    if ours.pop(CHECKPOINT_PLACE, "") != theirs_.pop(CHECKPOINT_PLACE, ""):
        return ANOTHER_PLACE
    for name in sorted(ours.keys() | theirs_.keys()):
        if not name.startswith(TOTAL):
            continue
        mine, its = ours.pop(name, ""), theirs_.pop(name, "")
        if mine and its and mine != its:
            return another_total(mine, its)
    is_exact = theirs_.get("reduction", "exact") == "exact"
    for name in sorted(ours.keys() | theirs_.keys()):
        if ours.get(name) == theirs_.get(name) or not (is_exact or name == "reduction"):
            continue
        if not name.startswith((SCRIPT_MODULE, SAMPLE)):
            remedy = UNLIKE_HOSTS if name in (KERNELS, NUMERICS) else ""
            remedy = UNLIKE_DEVICES if name.startswith(DEVICE) else remedy
            remedy = f"; {PREPARE}" if name == DATASET_SAMPLES else remedy
            return f"its {name} is {ours.get(name)}, the run has {theirs_.get(name)}{remedy}"
        if name in ours and name in theirs_:  # one that only some import need not be there
            return f"its {name} {ANOTHER_SAMPLE if name.startswith(SAMPLE) else ANOTHER_FILE}"
    return None


def _other_model(mine: list[str], theirs: list[str]) -> str:
    """Say where two descriptions of a model differ first; a line is ``name dtype shape``."""
    my_names = {line.partition(" ")[0] for line in mine}
    their_names = {line.partition(" ")[0] for line in theirs}
    for here, there in zip(mine, theirs, strict=False):
        if here == there:
            continue
        if there.partition(" ")[0] not in my_names:
            return f"its model lacks {there}, which the run has"
        if here.partition(" ")[0] not in their_names:
            return f"its model has {here}, which the run has not"
        return f"its model has {here} where the run has {there}"
    return "its model has other parameters than the run's"


# --- processes, nodes and time ----------------------------------------------------------


def on_exited(tx: Transaction, event: events.Exited) -> None:
    """Go on without a process that has ended, and whose device is free."""
    replica = tx.job.replicas.get(event.replica)
    if replica is None:
        tx.count_stale()
        return
    membership = tx.job.membership
    is_outside = membership.orders.formed and event.replica in membership.orders.joiners
    was_training = is_member(tx.job, event.replica) and not is_outside
    tx.move(event.replica, replica, ReplicaState.GONE, ReplicaCause.EXITED)
    # What is taken back under an offer may be on another device there: the offer says how much.
    is_device_gone = tx.job.offer.replicas is None or replica.node in tx.job.nodes.leaving
    if replica.is_reclaimed and is_device_gone:
        devices = tx.job.nodes.devices.get(replica.node, 0)
        tx.job.nodes = replace(
            tx.job.nodes, devices=tx.job.nodes.devices.put(replica.node, max(0, devices - 1))
        )
    if tx.job.phase is JobPhase.FINISHING:
        if not replica.is_lost:
            lifecycle.leave_after_the_end(tx, event)
    elif not replica.is_lost:
        _lose_one(tx, event, replica, was_training=was_training)


def _lose_one(
    tx: Transaction, event: events.Exited, replica: Replica, *, was_training: bool
) -> None:
    """Go on without one that the membership counted on, if its script or input may be right."""
    what = lifecycle.sentence(event)
    is_first = tx.job.membership.orders.recorded is None or tx.job.phase is JobPhase.STARTING
    refused = JobPhaseCause.INPUT_REFUSED
    if event.kind is events.ExitKind.USAGE and (was_training or is_first):
        lifecycle.end_job(tx, EXIT_USAGE, event.detail or f"{what} (wrong use)", refused)
        return
    if event.kind is events.ExitKind.EARLY and is_first:
        lifecycle.end_job(tx, EXIT_USAGE, event.detail or what, refused)
        return
    is_refused = event.kind is events.ExitKind.USAGE and replicas.are_enough(tx)
    is_short = event.kind is events.ExitKind.SHORT and replica.state is ReplicaState.STARTING
    if is_short and not replica.is_asked:
        _set_aside(tx, replica.node, what)
    elif event.kind is events.ExitKind.DEVICE and not replica.is_asked:
        count_failed_device(tx, what)
    elif (
        not (replica.is_asked or is_refused) and event.kind is not events.ExitKind.TAKEN
    ):  # the script has no part in it
        alike = signature(event) if replica.state in WAY_IN else ""
        charge(tx, event.kind, what, signature=alike, reached=replica.state)
    tx.notes.append(f"lost {what}")
    if is_refused:
        replicas.hold(tx, replica.node, f"{event.replica} was refused: {event.detail}")
    alike = "" if replica.is_asked else signature(event)
    lifecycle.lose(tx, frozenset({event.replica}), event.kind, what, signature=alike)


def _set_aside(tx: Transaction, node: NodeId, what: str) -> None:
    """Start nothing on a node for a while: the same script trains elsewhere."""
    known = node_pauses.set_aside(tx.job.nodes.aside, node, what, tx.now_s)
    if known is not tx.job.nodes.aside:
        pause_s = known[node].again_at_s - tx.now_s
        tx.notes.append(f"node {node} is set aside for {pause_s:g} s: {what}")
    tx.job.nodes = replace(tx.job.nodes, aside=known)


def on_died_together(tx: Transaction, names: Sequence[ReplicaId]) -> None:
    """Let the others reform at once without all of these; what each end means its Exited tells.

    Where nobody would be left it is for the exits, too: the last of them is what the job ends of.
    """
    tx.must_advance = False
    present = frozenset(members(tx.job.membership))
    lost = frozenset(name for name in names if name in present)
    others = present - lost - outsiders(tx.job.membership)
    if lost and others and tx.job.phase is not JobPhase.FINISHING:
        replicas.drop_from_membership(tx, *lost)


def on_tick(tx: Transaction) -> None:
    """Take silence past a deadline for a loss."""
    if tx.job.start.by_s <= tx.now_s:
        tx.job.start = replace(tx.job.start, by_s=silence.NOW)
    tx.job.nodes = replace(
        tx.job.nodes,
        apart=node_pauses.passed(tx.job.nodes.apart, tx.now_s),
        aside=node_pauses.passed(tx.job.nodes.aside, tx.now_s),
    )
    if tx.job.membership.trouble.retry_at_s <= tx.now_s:
        tx.job.membership = replace(
            tx.job.membership, trouble=replace(tx.job.membership.trouble, retry_at_s=silence.NOW)
        )
    if tx.job.phase is JobPhase.FINISHING:  # a released process may be silent as long as it likes
        lifecycle.lose_overdue_after_the_end(tx)
    else:
        _expire_membership(tx)
    stragglers.look_at_slow(tx)
    node_loss.lose_overdue(tx)
    lifecycle.end_if_stop_is_overdue(tx)
    if tx.job.phase is not JobPhase.ENDED:
        replicas.end_overdue(tx)


def _expire_membership(tx: Transaction) -> None:
    """Let every deadline of the membership pass that is over; one may bring the next."""
    unheard = tx.job.membership.trouble.unheard
    for _ in range(len(tx.job.replicas) + 1):
        before = tx.job.membership
        replicas.accept_membership(tx, silence.tick(before, tx.moment))
        if tx.job.membership == before:
            break
    for name in sorted(tx.job.membership.trouble.unheard - unheard):
        silence_s = tx.settings.timeouts.heartbeat_s
        tx.notes.append(
            f"no sign of life of {name} for {silence_s:g} s; nobody else holds the state, so it is "
            "waited for"
        )
