"""What of a job is durable: the record in the register, written and read back.

Owns which of a job's facts outlive its coordinator.  Does not write: the driver does.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter, is_

from pliant.core.job.state import History, Job, JobPhase, JobSettings, Start
from pliant.core.job.transitions import JobPhaseCause, phase_after
from pliant.core.membership import rejoin
from pliant.core.membership.state import members, register
from pliant.core.policy.hysteresis import restarted
from pliant.core.table import Table
from pliant.core.values import NodeId, Register, ReplicaId

_of_membership = attrgetter(
    *("phase", "lineage", "restore", "orders.issued", "orders.recorded", "orders.gone"),
    *("orders.joiners", "orders.leavers"),
)
_of_job = attrgetter(
    *("registration.homes", "named", "sizing.requested", "sizing.policy", "sizing.pace"),
    *("checkpoints.exist", "ending.stop", "ending.outcome", "ending.last_step"),
)


def remembered(register: Register | None, *, now_s: float, settings: JobSettings) -> Job:
    """Return the job that a register tells of; RECOVERING if members may be alive."""
    membership = rejoin.remembered(register)
    job = Job(
        membership=membership,
        start=Start(by_s=now_s + settings.start_s),
        history=History(seen_s=now_s),
    )
    if register is None:
        return replace(job, phase=phase_after(job, JobPhase.STARTING, JobPhaseCause.NONE_RECORDED))
    is_policy_kept = register.policy_given == settings.policy
    job = replace(
        job,
        named=register.named,
        sizing=replace(
            job.sizing,
            requested=register.wished,
            policy=register.policy if is_policy_kept else None,
            policy_given=register.policy_given if is_policy_kept else None,
            pace=restarted(
                now_s=now_s, num_changes=register.num_changes, backoff_level=register.backoff_level
            ),
        ),
        checkpoints=replace(job.checkpoints, exist=register.has_checkpoints),
        ending=replace(
            job.ending,
            outcome=register.outcome,
            last_step=register.last_step,
            last_step_by_s=now_s + settings.timeouts.step_s,
        ),
    )
    if not members(membership) and register.outcome is None:
        return replace(job, phase=phase_after(job, JobPhase.STARTING, JobPhaseCause.NONE_RECORDED))
    return replace(
        job,
        registration=replace(
            job.registration, homes=Table(register.homes), by_s=now_s + settings.timeouts.register_s
        ),
        ending=replace(job.ending, stop=register.stop),
    )


def record(job: Job) -> Register:
    """Return what must be durable before the commands of this state are sent (R1, R2)."""
    names = members(job.membership)
    if job.ending.outcome is not None and job.membership.orders.recorded is not None:
        names = job.membership.orders.recorded.replicas  # until it was heard how each has left
    homes = [(name, home) for name in names if (home := _home(job, name)) is not None]
    return replace(
        register(job.membership),
        named=job.named,
        wished=job.sizing.requested,
        policy=job.sizing.policy,
        policy_given=job.sizing.policy_given,
        num_changes=len(job.sizing.pace.changed_at),
        backoff_level=job.sizing.pace.backoff_level,
        has_checkpoints=job.checkpoints.exist,
        homes=tuple(homes),
        stop=job.ending.stop,
        outcome=job.ending.outcome,
        last_step=job.ending.last_step,
    )


def record_to_write(before: Job, after: Job) -> Register | None:
    """Return the record of ``after`` if it differs.

    A sign of life and an answer cost no look at each member: a replica stays where it was started.
    """
    old, new = before.membership, after.membership
    if (
        all(map(is_, _of_membership(old), _of_membership(new)))
        and all(map(is_, _of_job(before), _of_job(after)))
        and (before.replicas is after.replicas or before.replicas.keys() == after.replicas.keys())
    ):
        return None
    register = record(after)
    return register if register != record(before) else None


def _home(job: Job, name: ReplicaId) -> NodeId | None:
    replica = job.replicas.get(name)
    return job.registration.homes.get(name) if replica is None else replica.node
