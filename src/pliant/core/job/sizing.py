"""How the controller follows the policy: what it is told, what comes of its decisions.

Owns what the policy remembers and measures between its decisions, whom to let go when there are
too many, and a policy that is set while the job runs.  Chooses no size (``policy``) and starts
nothing (the controller).
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.errors import ConfigError
from pliant.core.events import PolicySet, Progressed
from pliant.core.job.state import Declined, Job, ReplicaState, live, view
from pliant.core.job.transaction import Transaction, age, let_leave
from pliant.core.membership.state import Membership
from pliant.core.policy import costs
from pliant.core.policy.decide import Decision, Policy, consider, require_slots
from pliant.core.values import ReplicaId

LOOK_STEPS = 100
"""Committed steps between two looks at what each replica adds, where the policy asks for that."""


def follow(turn: Transaction) -> int:
    """Ask the policy how many there should be; let go who is too many, return who is missing."""
    decision, pace = consider(view(turn.job), turn.settings.policy, now_s=turn.now_s)
    turn.job = replace(turn.job, pace=pace, is_urgent=False)
    if _is_news(turn.job.decision, decision):
        turn.job = replace(turn.job, decision=decision)
    names, wanted = live(turn.job), decision.target_replicas + decision.spare_replicas
    for name in _surplus(turn.job, len(names) - wanted):
        let_leave(turn, name, _notice_s(turn, len(names)), "more than the target")
    return wanted - len(names)


def set_policy(turn: Transaction, event: PolicySet) -> None:
    """Let another policy count from now on; new sizes at once, as whoever sets them wants them."""
    old, new, job = turn.settings.policy, event.policy, turn.job
    why = _impossible(job, new)
    if why is not None:
        turn.declined = Declined(reason=why)
        return
    turn.job = replace(
        job,
        policy=new,
        policy_given=job.policy_given or old,
        is_urgent=job.is_urgent or _sizes(old) != _sizes(new),
    )
    turn.settings = replace(turn.settings, policy=new)
    turn.notes.append(f"policy set: {event.said}" if event.said else "policy set")


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
    """Return why this job cannot have this policy, or None."""
    devices = sum(job.nodes.values())
    if policy.min_replicas > devices:
        return f"minReplicas={policy.min_replicas}, but the nodes can run {devices}"
    try:
        if job.reference is not None:
            require_slots(policy, job.reference.num_slots)
    except ConfigError as error:
        return str(error)
    return None


def measure(turn: Transaction, event: Progressed, before: Membership, after: Membership) -> bool:
    """Learn from a commit what a step or a change takes; whether the policy should know now."""
    order, known = after.recorded, turn.job.costs
    if after.committed == before.committed or order is None:
        return False
    num_steps, now_s = after.committed - before.committed, turn.now_s
    if event.generation == order.generation:
        size = len(order.members)
        learnt = costs.committed(known, size=size, num_steps=num_steps, now_s=now_s)
    else:  # the boundary of a Switch that is on its way
        learnt = costs.committed(
            replace(known, is_crossing=False), size=known.size, num_steps=num_steps, now_s=now_s
        )
        learnt = replace(learnt, is_crossing=known.is_crossing)
    turn.job = replace(turn.job, costs=learnt)
    if not turn.settings.policy.min_marginal_efficiency:
        return False
    was, now = (len(one.step_s.get(learnt.size, ())) for one in (known, learnt))
    every = after.committed // LOOK_STEPS > before.committed // LOOK_STEPS
    return was < costs.RIPE <= now or every


def _is_news(old: Decision | None, new: Decision) -> bool:
    """Whether it says something else; that nothing was to be waited for yet is no news."""
    if old is None or old.is_waiting or new.is_waiting:
        return old != new
    return old != replace(new, earliest_s=old.earliest_s)


def _notice_s(turn: Transaction, num_live: int) -> float:
    """Return how long those may take that leave: what the outside said, if it is its will."""
    offered, notice_s = turn.job.offered, turn.job.offer_notice_s
    if offered is not None and notice_s is not None and num_live > offered:
        return notice_s
    return turn.settings.policy.graceful_shutdown_timeout_s


def _surplus(job: Job, count: int) -> list[ReplicaId]:
    """Choose whom the job can best do without: the least far on the way in, then the newest."""
    if count <= 0:
        return []
    progress = (ReplicaState.STARTING, ReplicaState.SPARE, ReplicaState.TRAINING)

    def cost(name: ReplicaId) -> tuple[int, int]:
        return progress.index(job.replicas[name].state), -age(name)

    return sorted(live(job), key=cost)[:count]
