"""What the operator does next for one job: a snapshot and the time in, actions and a status out.

Owns the life of a job on Kubernetes, and in which order its objects are made and go.  Must not know
how anything is read or requested, or the clock.  Crash-only: everything that must be known later is
in the objects or in the status, so that a plan made after any prefix of another one's actions goes
on from there; and where nothing has changed, nothing is done.

                    base admitted                   coordinator says so
    PENDING ------------------------> RUNNING ----------------------------> ENDED
       ^                                 |
       |                                 | base evicted, or suspended by its user
       +--- quota released <--- SUSPENDING: agents leave, then the coordinator, then the Workloads

Kueue decides quota, the operator which Workloads the job holds, the coordinator its size.
"""

from __future__ import annotations

from pliant.core.errors import EXIT_OK, EXIT_STOPPED, EXIT_TAKEN_OVER
from pliant.core.operator import increments, pods
from pliant.core.operator.actions import (
    ApplyPart,
    CreateWorkload,
    DeletePod,
    DeleteWorkload,
    FinishWorkload,
    Plan,
    RequeueWorkload,
    SetPodsReady,
)
from pliant.core.operator.draft import PlanDraft, coordinator_of
from pliant.core.operator.increments import Held, Increment, IncrementState, is_ready
from pliant.core.operator.state import (
    BASE,
    MADE_ONCE,
    PART_KINDS,
    JobEnding,
    JobOutcome,
    Part,
    PodPhase,
    PodView,
    Snapshot,
    WorkloadView,
    part_name,
    workload_name,
)
from pliant.core.operator.status import status_of

BY_USER = "suspended by its user"

SOON_S = 0.05
"""No plan is looked at again sooner because of the time alone."""

SILENT_S = 20.0
"""A coordinator that was made so recently need not answer yet."""

REQUEUED_AFTER = ("Preempted", "NodeFailures")
"""Evictions after which a Workload is queued again at once; after others Kueue says when."""


def plan(snapshot: Snapshot, now_s: float) -> Plan:
    """Decide what to do now; pure.

    Args:
        snapshot: everything about the job, read after the caller's own newest writes.
        now_s: seconds since 1970.
    """
    draft = PlanDraft.of(snapshot, now_s)
    if snapshot.job.is_deleting:
        return Plan(status=snapshot.status)
    pods.forget(draft)
    _note_coordinator(draft)
    held = increments.held_by(draft)
    if draft.memory.outcome is not None:
        _finish(draft, draft.memory.outcome)
    elif not draft.is_queued or snapshot.cluster.has_kueue:
        held = _live(draft, held)
    wakes = [at_s for at_s in draft.wakes if at_s > now_s]
    is_soon = len(wakes) < len(draft.wakes)
    return Plan(
        status=status_of(draft, held),
        actions=tuple(draft.actions),
        events=tuple(draft.events),
        requeue_after_s=SOON_S if is_soon else max(SOON_S, min(wakes) - now_s) if wakes else None,
    )


def _live(draft: PlanDraft, held: Held) -> Held:
    """Go on with a job that has not ended."""
    _parts(draft)
    base = held.get(0)
    if draft.job.is_suspended or base is None or base.state is not IncrementState.GIVEN:
        _wind_down(draft, base)
    else:
        held = increments.give_back(draft, held)
        pods.coordinator(draft, is_base_ready=is_ready(draft, base))
        pods.agents(draft, held)
        increments.release(draft, held)
        increments.ask(draft, held)
        for increment in held.values():
            _pods_ready(draft, increment)
    return held


# --- parts


def _parts(draft: PlanDraft) -> None:
    """Make what is missing; pods wait for it."""
    for part in Part:
        name = part_name(draft.job.name, part)
        if part in draft.snapshot.parts:
            if part in draft.snapshot.outdated:
                draft.act(ApplyPart(part=part))
            continue
        draft.may_create = False
        if draft.is_foreign(PART_KINDS[part], name):
            continue
        if part in MADE_ONCE and draft.memory.begun_s is not None:
            what = f"{PART_KINDS[part]} {name}"
            draft.holds.append(f"{what} is gone, and none can replace it; restore it")
        else:
            draft.act(ApplyPart(part=part))


# --- the coordinator's word


def _note_coordinator(draft: PlanDraft) -> None:
    """Remember how the job ended, and since when its coordinator has been silent."""
    pod, view = coordinator_of(draft.snapshot), draft.snapshot.coordinator
    is_silent = pod is not None and pod.phase is PodPhase.RUNNING and not view.is_reached
    if pod is None or not is_silent or not draft.is_due(pod.created_s + SILENT_S):
        draft.remember(silent_s=None)
    elif draft.memory.silent_s is None:
        draft.remember(silent_s=draft.now_s)
    if pod is None or pod.ending is None or draft.memory.outcome is not None:
        return
    if _is_final(draft, pod.ending):
        draft.remember(
            outcome=JobOutcome(ending=pod.ending, at_s=draft.now_s), asks=(), told=(), returning=()
        )


def _is_final(draft: PlanDraft, ending: JobEnding) -> bool:
    """Whether the job is over; one that was suspended from here only stopped."""
    if ending.exit_code == EXIT_TAKEN_OVER:
        return False
    return ending.exit_code != EXIT_STOPPED or draft.memory.suspended_s is None


# --- the end


def _finish(draft: PlanDraft, outcome: JobOutcome) -> None:
    """Remove what runs, then give the quota back; pods that have ended keep their logs."""
    running = [pod for pod in draft.snapshot.pods if not pod.is_over]
    _delete(draft, running)
    if running:
        return
    for view in draft.snapshot.workloads:
        if not view.is_finished and not view.is_deleting:
            is_good = outcome.ending.exit_code == EXIT_OK
            draft.act(
                FinishWorkload(
                    name=view.name,
                    uid=view.uid,
                    reason="Succeeded" if is_good else "Failed",
                    message=outcome.ending.reason or f"exit code {outcome.ending.exit_code}",
                )
            )


def _delete(draft: PlanDraft, running: list[PodView]) -> None:
    for pod in running:
        if pod.is_deleting:
            draft.force(pod)
        else:
            draft.act(DeletePod(name=pod.name, uid=pod.uid))


# --- suspended, by the user or by Kueue


def _wind_down(draft: PlanDraft, base: Increment | None) -> None:
    """Let all pods leave, the coordinator last, then give back what was held."""
    agents = [pod for pod in draft.snapshot.pods if not pod.is_coordinator and not pod.is_over]
    running = [pod for pod in draft.snapshot.pods if not pod.is_over]
    why = _why_suspended(draft, base)
    if not draft.snapshot.pods and draft.memory.suspended_reason == BY_USER != why:
        draft.remember(suspended_s=None, suspended_reason="")
    if draft.memory.suspended_s is None and (running or draft.job.is_suspended):
        draft.remember(suspended_s=draft.now_s, suspended_reason=why, surplus_since_s=None)
        draft.tell("Suspending", why)
        demand = draft.snapshot.coordinator.demand
        if running and demand is not None and not demand.can_suspend:
            note = "the job has no checkpoints: its steps are lost, and it begins anew"
            draft.tell("StateLost", note, is_warning=True)
    draft.dismiss(agents, why)
    done = [pod for pod in draft.snapshot.pods if pod.is_over or pod.is_coordinator]
    _delete(draft, [pod for pod in done if pod.is_over or pod.is_deleting or not agents])
    draft.remember(asks=())
    _give_back_all(draft, base, is_empty=not running)


def _why_suspended(draft: PlanDraft, base: Increment | None) -> str:
    if draft.job.is_suspended:
        return BY_USER
    if base is not None and base.why:
        return f"the base was {base.why}" if base.workload and base.workload.eviction else base.why
    return "the base is not admitted"


def _give_back_all(draft: PlanDraft, base: Increment | None, *, is_empty: bool) -> None:
    """Delete the Workloads whose pods are gone; queue the base again, unless the user suspends."""
    busy = {pod.increment for pod in draft.snapshot.pods if not pod.is_over}
    for view in draft.snapshot.workloads:
        is_kept = view.increment == BASE and not draft.job.is_suspended and not view.is_finished
        if not is_kept and not view.is_deleting and view.increment not in busy:
            if view.increment != BASE or is_empty:
                draft.act(DeleteWorkload(name=view.name, uid=view.uid))
        elif is_kept and is_empty:
            _requeue(draft, view)
    name = workload_name(draft.job.name, BASE)
    may_ask = draft.is_queued and not draft.job.is_suspended and not draft.holds
    if base is None and may_ask and not draft.is_foreign("Workload", name):
        count = increments.count_of(draft, 0) or 0
        draft.act(CreateWorkload(increment=BASE, count=count))


def _requeue(draft: PlanDraft, view: WorkloadView) -> None:
    """Release the quota of an evicted base; its pods are not ready any more."""
    if view.pods_ready:
        _set_ready(draft, view, is_now=False, reason="WaitForStart")
    if view.eviction is None or not view.has_quota or view.is_deleting:
        return
    draft.act(
        RequeueWorkload(
            name=view.name,
            uid=view.uid,
            is_requeued=view.eviction.reason in REQUEUED_AFTER,
            reason=view.eviction.reason,
            message=view.eviction.message,
        )
    )
    draft.tell(
        "QuotaReleased", f"the base waits for admission: {increments.reason_of(view.eviction)}"
    )


# --- WaitForPodsReady


def _pods_ready(draft: PlanDraft, increment: Increment) -> None:
    """Say whether all pods of a Workload are ready, in the words that Kueue's own jobs use."""
    view = increment.workload
    if view is None or increment.state is not IncrementState.GIVEN:
        return
    is_now = is_ready(draft, increment)
    was = view.pods_ready_reason
    has_started = view.pods_ready or was in ("WaitForRecovery", "Recovered")
    if is_now:
        reason = "Recovered" if was in ("WaitForRecovery", "Recovered") else "Started"
    else:
        reason = "WaitForRecovery" if has_started else "WaitForStart"
    if view.pods_ready is not is_now or was != reason:
        _set_ready(draft, view, is_now=is_now, reason=reason)


def _set_ready(draft: PlanDraft, view: WorkloadView, *, is_now: bool, reason: str) -> None:
    message = "all pods are ready" if is_now else "not all pods are ready"
    draft.act(
        SetPodsReady(name=view.name, uid=view.uid, is_ready=is_now, reason=reason, message=message)
    )
