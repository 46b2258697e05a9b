"""How many replicas a job should have, and who joins and leaves now.

Owns what the policy is told and remembers between its decisions, whom to send away when there are
too many, a policy that is set while the job runs, with whom the first generation begins and from
which checkpoint, and how many may come and go at a time.  Chooses no size (``policy``), and must
not know how the membership gets there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pliant.core.errors import EXIT_FAILED, EXIT_STATE_LOST, EXIT_USAGE, ConfigError
from pliant.core.events import PolicySet, Progressed
from pliant.core.job import lifecycle, node_pauses, replicas, restoring
from pliant.core.job.crash_loop import (
    deterministic_failure,
    failed_devices,
    is_spent,
    recent_losses,
)
from pliant.core.job.state import (
    Job,
    JobPhase,
    JobSettings,
    ReplicaState,
    age,
    company,
    free_devices,
    heard_devices,
    is_done,
    is_doubtful,
    is_durable,
    is_kept,
    live,
    spares,
    trainers,
)
from pliant.core.job.transaction import Transaction, start_wait_s
from pliant.core.job.transitions import JobPhaseCause
from pliant.core.membership import changes
from pliant.core.membership.state import NEVER, Membership, members
from pliant.core.membership.transitions import Phase
from pliant.core.placement import PlacementRule, increment_of, next_leaver
from pliant.core.policy import costs
from pliant.core.policy.decide import Decision, Policy, PolicyView, consider, require_slots
from pliant.core.values import NodeId, ReplicaId

LOOK_STEPS = 100
"""Committed steps between two looks at what each replica adds, where the policy asks for that."""


def resize(tx: Transaction) -> None:
    """Ask the policy how many there should be; start or send away the difference."""
    _end_publishing(tx)
    replicas.send_away_apart(tx)
    replicas.move_before_they_begin(tx)
    missing = _follow_policy(tx)
    if is_done(tx.job, tx.now_s):
        return
    if is_spent(tx):
        last = recent_losses(tx.job, tx.settings, tx.now_s)[-1].sentence
        _give_up_if_too_few(
            tx, f"the restart budget of {tx.settings.restart_budget} is spent", last
        )
        return
    if (by_device := failed_devices(tx.job)) is not None:
        _give_up_if_too_few(tx, "devices fail again and again", by_device.sentence)
        return
    since_s = tx.now_s - tx.settings.start_s
    if (
        kept_out := node_pauses.lasting(tx.job.nodes.aside, free_devices(tx.job), since_s)
    ) is not None:
        _give_up_if_too_few(tx, f"no node starts any for {tx.settings.start_s:g} s", kept_out.why)
    if (failure := deterministic_failure(tx.job)) is not None:
        if not _num_left(tx.job):
            reason = (
                f"the script fails before its first step wherever it is started; last: "
                f"{failure.sentence}"
            )
            lifecycle.end_job(tx, EXIT_FAILED, reason, JobPhaseCause.INPUT_REFUSED)
        return
    replicas.start(tx, missing)
    if tx.job.start.by_s <= tx.now_s and tx.job.phase is JobPhase.STARTING:
        _end_if_impossible(tx)


def _end_publishing(tx: Transaction) -> None:
    """Once all are gone who could publish what is lost, see what there is; but not for ever."""
    job = tx.job
    left = sorted(job.checkpoints.publishers.intersection(job.replicas), key=age)
    is_over = not left or job.start.by_s <= tx.now_s
    if not job.checkpoints.publishers or job.membership.phase is not Phase.LOST or not is_over:
        return
    if left:
        what = f"{', '.join(left)} may still publish a checkpoint, and is not waited for any more"
        tx.notes.append(what)
        tx.job.checkpoints = replace(job.checkpoints, publishers=frozenset())
        return
    wait_s = tx.settings.start_wait_s
    if spares(job):
        tx.job.start = replace(job.start, by_s=max(job.start.by_s, tx.now_s + wait_s))
    lifecycle.look_anew(tx)


def _follow_policy(tx: Transaction) -> int:
    """Send away who is too many, return how many are missing."""
    seen = view(tx.job, tx.settings)
    decision, pace = consider(seen, tx.settings.policy, now_s=tx.now_s)
    tx.job.sizing = replace(tx.job.sizing, pace=pace, is_urgent=False)
    if _says_more(tx.job.sizing.decision, decision, is_going=bool(seen.reclaimed)):
        tx.job.sizing = replace(tx.job.sizing, decision=decision)
    names, wanted = live(tx.job), decision.target_replicas + decision.spare_replicas
    for name in _surplus(tx.job, len(names) - wanted, tx.settings.placement):
        replicas.send_away(tx, name, _notice_s(tx, len(names)), "more than the target")
    return wanted - len(names)


def _give_up_if_too_few(tx: Transaction, why: str, last: str) -> None:
    """End a job that cannot go on without the replicas that it may no longer start."""
    minimum = tx.settings.policy.min_replicas
    if _num_left(tx.job) >= minimum:
        return
    reason = f"{why} and fewer than minReplicas={minimum} are left; last: {last}"
    if not members(tx.job.membership) or is_kept(tx.job):
        lifecycle.end_job(tx, EXIT_FAILED, reason, JobPhaseCause.BUDGET_SPENT)
        return
    tx.notes.append(f"{reason}; what is left of it is saved first")
    lifecycle.begin_stop(tx, JobPhaseCause.BUDGET_SPENT)
    tx.job.ending = replace(tx.job.ending, exit_code=EXIT_FAILED, reason=reason)


def _num_left(job: Job) -> int:
    """Return how many may yet train, those on their way on silent nodes among them."""
    return len(live(job)) + sum(is_doubtful(job, one) for one in job.replicas.values())


def _end_if_impossible(tx: Transaction) -> None:
    devices, minimum = heard_devices(tx.job), tx.settings.policy.min_replicas
    if devices < minimum:
        reason = f"minReplicas={minimum}, but the nodes can run {devices}"
        is_mending = is_durable(tx.job) or tx.settings.nodes_may_come
        code = EXIT_FAILED if is_mending else EXIT_USAGE
        lifecycle.end_job(tx, code, reason, JobPhaseCause.INPUT_REFUSED)


def view(job: Job, settings: JobSettings) -> PolicyView:
    """Return what the policy looks at.

    What is offered is what is left: the outside has taken off itself what it takes back.
    """
    spares = job.sizing.decision.spare_replicas if job.sizing.decision else 0
    reclaimed = sum(replica.is_reclaimed for replica in job.replicas.values())
    leavers = [one for one in job.replicas.values() if one.state is ReplicaState.LEAVING]
    taken = sum(replica.is_reclaimed for replica in leavers)
    usable = _usable_devices(job)
    devices, silent = (
        sum(usable.values()),
        sum(job.nodes.devices[n] - usable[n] for n in job.nodes.silent),
    )
    return PolicyView(
        num_replicas=max(0, len(live(job)) - spares),
        leaving=len(leavers) - taken,
        taken=taken,
        devices=devices,
        core_replicas=settings.core_replicas,
        apart=sum(job.nodes.devices.values()) - devices - silent,
        silent=silent,
        requested=job.sizing.requested,
        num_slots=num_slots(job, settings),
        offered=job.offer.replicas,
        offer_reason=job.offer.reason,
        taken_for="; ".join(sorted({*filter(None, job.nodes.leaving.values())})),
        reclaimed=reclaimed if job.offer.replicas is None else 0,
        is_urgent=job.sizing.is_urgent or job.phase is JobPhase.STARTING,
        pace=job.sizing.pace,
        costs=job.sizing.costs,
    )


def num_slots(job: Job, settings: JobSettings) -> int | None:
    """Return the micro-batches of a step; None: nobody knows, or they do not matter."""
    reference = None if settings.is_restarting else job.start.reference
    return None if reference is None else reference.num_slots


def _usable_devices(job: Job) -> dict[NodeId, int]:
    """Return the devices of each node that count: those apart, or silent, have what is on them.

    Of those apart one more when it may be tried, and what is taken back: the policy takes it off.
    """
    usable = dict(job.nodes.devices)
    if not (job.nodes.apart or job.nodes.silent):
        return usable
    moments = node_pauses.again_at_s(job.nodes.apart, company(job))
    here = Counter(job.replicas[name].node for name in live(job))
    taken = Counter(replica.node for replica in job.replicas.values() if replica.is_reclaimed)
    for node, devices in job.nodes.devices.items():
        again_s = moments.get(node)
        if again_s is not None or node in job.nodes.silent:
            is_tried = again_s == node_pauses.DUE and node not in job.nodes.silent
            room = max(here[node], int(is_tried))
            usable[node] = min(devices, room + (taken[node] if job.offer.replicas is None else 0))
    return usable


def set_policy(tx: Transaction, event: PolicySet) -> None:
    """Let another policy count from now on; new sizes at once, as whoever sets them wants them."""
    old, new, job = tx.settings.policy, event.policy, tx.job
    why = _impossible(job, new)
    if why is not None:
        tx.decline(why)
        return
    tx.job.sizing = replace(
        job.sizing,
        policy=new,
        policy_given=job.sizing.policy_given or old,
        is_urgent=job.sizing.is_urgent or _sizes(old) != _sizes(new),
    )
    tx.settings = replace(tx.settings, policy=new)
    tx.notes.append(f"policy set: {event.said}" if event.said else "policy set")


def _sizes(policy: Policy) -> tuple[object, ...]:
    """Return what a person sets to have another size, not only another pace."""
    return (
        policy.min_replicas,
        policy.max_replicas,
        policy.replica_increment_step,
        policy.replica_discrete_values,
        policy.min_marginal_efficiency,
        policy.spares,
    )


def _impossible(job: Job, policy: Policy) -> str | None:
    devices = sum(job.nodes.devices.values())
    if policy.min_replicas > devices:
        return f"minReplicas={policy.min_replicas}, but the nodes can run {devices}"
    try:
        if job.start.reference is not None:
            require_slots(policy, job.start.reference.num_slots)
    except ConfigError as error:
        return str(error)
    return None


def measure(tx: Transaction, event: Progressed, before: Membership, after: Membership) -> bool:
    """Learn from a commit what a step or a change takes; whether the policy should know now."""
    order, known = after.orders.recorded, tx.job.sizing.costs
    if after.committed == before.committed or order is None:
        return False
    num_steps, now_s = after.committed - before.committed, tx.now_s
    if event.generation == order.generation:
        size = len(order.members)
        learnt = costs.committed(known, size=size, num_steps=num_steps, now_s=now_s)
    else:  # the boundary of a Switch that is on its way
        old = replace(known, is_crossing=False)
        learnt = costs.committed(old, size=known.size, num_steps=num_steps, now_s=now_s)
        learnt = replace(learnt, is_crossing=known.is_crossing)
    tx.job.sizing = replace(tx.job.sizing, costs=learnt)
    if not tx.settings.policy.min_marginal_efficiency:
        return False
    was, now = (len(one.step_s.get(learnt.size, ())) for one in (known, learnt))
    every = after.committed // LOOK_STEPS > before.committed // LOOK_STEPS
    return was < costs.RIPE <= now or every


def _says_more(old: Decision | None, new: Decision, *, is_going: bool) -> bool:
    """Whether it says something else; that nothing was to be waited for yet is no news.

    Nor is it how many of those that are taken back have not left yet (``is_going``: some have not).
    """
    if old is None or old.is_waiting or new.is_waiting:
        return old != new
    same = replace(new, earliest_s=old.earliest_s)
    return old != (replace(same, reason=old.reason) if is_going else same)


def _notice_s(tx: Transaction, num_live: int) -> float:
    """Return how long those may take that leave: what the outside said, if it is its will."""
    offered, notice_s = tx.job.offer.replicas, tx.job.offer.notice_s
    if offered is not None and notice_s is not None and num_live > offered:
        return notice_s
    return tx.settings.leave_s


def _surplus(job: Job, count: int, placement: PlacementRule) -> list[ReplicaId]:
    """Choose whom the job can best do without: those of the highest increment, of these the least
    far on the way in, then by where it is."""
    if count <= 0:
        return []
    left = sorted(live(job), key=lambda name: (*_rank(job, name), -age(name)))
    found: list[ReplicaId] = []
    while len(found) < count and left:
        alike = [name for name in left if _rank(job, name) == _rank(job, left[0])]
        here, all_here = ([job.replicas[n].node for n in names] for names in (alike, left))
        found.append(alike[next_leaver(placement, here, all_here, job.nodes.labels)])
        left.remove(found[-1])
    return found


def _rank(job: Job, name: ReplicaId) -> tuple[int, int]:
    order = (ReplicaState.STARTING, ReplicaState.SPARE, ReplicaState.TRAINING)
    labels = job.nodes.labels.get(job.replicas[name].node, ())
    return -increment_of(labels), order.index(job.replicas[name].state)


# --- who joins and leaves now ------------------------------------------------------------


def plan(tx: Transaction) -> None:
    """Tell the membership who may join and who is to leave now."""
    ready = _starters(tx) if tx.job.phase is JobPhase.STARTING else spares(tx.job)
    if tx.job.phase is JobPhase.ENDED:
        return
    job = tx.job
    if any(job.replicas[name].state is ReplicaState.ENDING for name in members(job.membership)):
        return  # its exit is near; who is to take its place must not be in a generation with it
    leaving = _leaving(tx, ready)
    if not leaving and _more_are_near(tx):
        return
    able = changes.joinable(job.membership, ready, is_hurried=False)
    ready = able[: _to_a_size(tx, leaving, min(len(able), _room(tx, leaving)))]
    by_s = min((job.replicas[name].due_s for name in leaving), default=NEVER)
    replicas.accept_membership(
        tx, changes.plan(job.membership, tx.moment, join=ready, leave=leaving, leave_by_s=by_s)
    )


def _more_are_near(tx: Transaction) -> bool:
    """Whether others are about to be ready, where each change starts all processes again."""
    since_s = tx.now_s - tx.settings.start_wait_s
    return tx.settings.is_restarting and any(
        one.state is ReplicaState.STARTING and (one.started_at or 0.0) > since_s
        for one in tx.job.replicas.values()
    )


def _starters(tx: Transaction) -> list[ReplicaId]:
    """Choose with whom the first generation begins, once it may, and from what (R20)."""
    is_pending = restoring.is_pending(tx.job)
    if tx.job.membership.orders.attempt is not None and not is_pending:
        return spares(tx.job)
    if is_pending and (_may_be_published(tx.job) or not _has_looked(tx)):
        return []
    if not _may_start(tx, spares(tx.job)):
        return []
    if is_pending:
        _restore(tx)
    membership = tx.job.membership
    if membership.restore is None or tx.job.phase is JobPhase.ENDED:
        return spares(tx.job)
    for name, spare in membership.spares.items():
        if spare.calls > membership.calls:
            why = "its script is past the call of steps() in which the checkpoint was taken"
            replicas.send_away(tx, name, tx.settings.exit_s, why)
    ready = changes.joinable(tx.job.membership, spares(tx.job), is_hurried=False)
    return ready if _may_start(tx, ready) else []


def _may_be_published(job: Job) -> bool:
    """Whether somebody may still publish a checkpoint of the history that is lost."""
    return bool(job.checkpoints.publishers) and is_durable(job)


def _has_looked(tx: Transaction) -> bool:
    """Whether all who wait have looked which checkpoints there are; who does not in time goes."""
    late = [name for name in spares(tx.job) if name in tx.job.checkpoints.looking]
    if late and tx.now_s < tx.job.start.by_s:
        return False
    for name in late:
        why = "it did not look in time which checkpoints there are"
        replicas.send_away(tx, name, tx.settings.exit_s, why)
    return True


def _restore(tx: Transaction) -> None:
    """Open a new history: from the newest checkpoint, or from nothing if there never was one.

    Checkpoints that were and cannot be used end the job.
    """
    found = restoring.newest(tx.job)
    if found is None and not tx.job.checkpoints.exist:
        found = restoring.NOTHING
    if found is None:
        lost = JobPhaseCause.STATE_LOST
        lifecycle.end_job(tx, EXIT_STATE_LOST, restoring.nothing_left(tx.job), lost)
        return
    membership = restoring.restored(tx.job.membership, found)
    tx.notes.append(restoring.sentence(found))
    tx.job.membership = membership
    behind = changes.skip_calls(membership, membership.spares)
    tx.commands.extend(behind)
    if behind:
        tx.job.start = replace(tx.job.start, by_s=tx.now_s + start_wait_s(tx))


def _may_start(tx: Transaction, ready: list[ReplicaId]) -> bool:
    """Whether the first generation need not wait any longer for others."""
    if not ready or len(ready) < tx.settings.policy.min_replicas:
        return False
    target = tx.job.sizing.decision.target_replicas if tx.job.sizing.decision else len(ready)
    return len(ready) >= target or tx.now_s >= tx.job.start.by_s


def _room(tx: Transaction, leaving: list[ReplicaId]) -> int:
    """Return how many may join: one that is killed has its slots until its exit is known."""
    job = tx.job
    if job.start.reference is None:
        return 0
    staying = len(members(job.membership)) - len(leaving)
    if tx.settings.policy.spares and job.sizing.decision is not None:  # they are not to join
        target = job.sizing.decision.target_replicas
        return max(0, min(job.start.reference.num_slots - staying, target - len(trainers(job))))
    return max(0, job.start.reference.num_slots - staying)


def _to_a_size(tx: Transaction, leaving: list[ReplicaId], count: int) -> int:
    """Return how many of so many may join, where only some sizes are allowed: the others wait for
    who is on the way.  Survivors that have none of the sizes take whoever comes."""
    policy, staying = tx.settings.policy, len(members(tx.job.membership)) - len(leaving)
    if not policy.has_gaps or policy.fitted(staying) is None:
        return count
    return (policy.largest(staying + count) or staying) - staying


def _leaving(tx: Transaction, ready: list[ReplicaId]) -> list[ReplicaId]:
    """Choose who may leave now: never so many that too few are left, unless reclaimed."""
    job = tx.job
    present = members(job.membership)
    leaving = [name for name in present if job.replicas[name].state is ReplicaState.LEAVING]
    leaving.sort(key=lambda name: (not job.replicas[name].is_reclaimed, job.replicas[name].due_s))
    joining = changes.joinable(job.membership, ready, is_hurried=True)
    room = len(present) + len(joining) - tx.settings.policy.min_replicas
    forced = sum(job.replicas[name].is_reclaimed for name in leaving)
    return leaving[: max(room, forced, 0)]
