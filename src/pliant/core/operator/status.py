"""What the status of a job says: a phase with its reason, sums, and conditions.

Owns these words; ``kubectl get`` and ``describe`` need no more than them.  Decides nothing.  The
same state of affairs gives the same status, so that nothing is written where nothing has changed;
what changes with every step is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime  # to write a moment; it is told which

from pliant.core.errors import EXIT_OK, EXIT_STOPPED
from pliant.core.operator.draft import PlanDraft, coordinator_of
from pliant.core.operator.increments import (
    Held,
    IncrementState,
    replicas_in,
    wanted_replicas,
)
from pliant.core.operator.pods import ENDED, ENDED_S
from pliant.core.operator.state import (
    BASE,
    Condition,
    JobOutcome,
    JobStatus,
    PodPhase,
    workload_name,
)
from pliant.core.text import in_words

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

Said = tuple[str, str, str, str]
"""A condition: type, status, reason, message."""

ENDING = "agents of the base have ended; its coordinator says how the job ends"
"""Reason of a job that runs."""

BAD = frozenset(
    {
        ("CoordinatorReached", UNKNOWN),
        ("QueueUsable", FALSE),
        ("RoomForPods", FALSE),
        ("Complete", FALSE),
    }
)
"""Conditions whose event is a warning."""


def status_of(draft: PlanDraft, held: Held) -> JobStatus:
    """Return the status after a plan; of each condition that has changed there is an event."""
    before = {one.type: one for one in draft.snapshot.status.conditions}
    conditions = []
    phase, reason = _phase(draft, held)
    for kind, state, why, message in _conditions(draft, held, phase, reason):
        old = before.get(kind)
        since_s = old.since_s if old is not None and old.status == state else draft.now_s
        is_news = (old.status, old.reason) != (state, why) if old else (kind, state) in BAD
        if is_news and all(event.reason != why for event in draft.events):
            draft.tell(why, message, is_warning=(kind, state) in BAD)
        conditions.append(
            Condition(type=kind, status=state, reason=why, message=message, since_s=since_s)
        )
    admitted = replicas_in(draft, held) if phase in ("Starting", "Running") else 0
    asked = [one.name for one in held.values() if one.state is IncrementState.ASKED]
    return JobStatus(
        observed_generation=draft.job.generation,
        phase=phase,
        reason=reason,
        replicas=_ready_replicas(draft, held),
        admitted_replicas=admitted,
        allowed_replicas=draft.job.policy.largest(admitted) or 0,
        wanted_replicas=_wanted(draft, phase),
        pending=min(asked, default=""),
        conditions=tuple(conditions),
        memory=draft.memory,
    )


def _wanted(draft: PlanDraft, phase: str) -> int | None:
    if phase != "Running":
        return None
    now = wanted_replicas(draft)
    return draft.snapshot.status.wanted_replicas if now is None else now


def _ready_replicas(draft: PlanDraft, held: Held) -> int:
    hosts = draft.job.hosts_per_replica
    pods = {name: sum(pod.is_ready for pod in found) for name, found in draft.agents.items()}
    return sum(pods.get(one.name, 0) // hosts for one in held.values())


# --- the phase


def _phase(draft: PlanDraft, held: Held) -> tuple[str, str]:
    memory, base = draft.memory, held.get(0)
    if memory.outcome is not None:
        return _ended(memory.outcome)
    is_given = base is not None and base.state is IncrementState.GIVEN
    hold = draft.holds[0] if draft.holds else ""
    if memory.suspended_s is not None and (draft.job.is_suspended or not is_given):
        if any(not pod.is_over for pod in draft.snapshot.pods):
            return "Suspending", memory.suspended_reason
        waits = "" if draft.job.is_suspended else f"; {hold or _admission(draft, held)[1]}"
        return "Suspended", f"{memory.suspended_reason}{waits}"
    if base is None or not is_given:
        return "Pending", hold or _admission(draft, held)[1]
    if _is_ending(draft):
        return "Running", ENDING
    is_enough = _ready_replicas(draft, held) >= draft.job.policy.min_replicas
    if not is_enough or not _has_coordinator(draft):
        who = "the coordinator is" if is_enough else "pods of the base are"
        return "Starting", _troubles(draft) or hold or f"{who} not ready yet"
    return "Running", _silence(draft, "Running") or hold


def _has_coordinator(draft: PlanDraft) -> bool:
    """Whether there is one that has served, and runs: replicas go on while it is away.

    One that crashes again and again has to become ready first.
    """
    pod = coordinator_of(draft.snapshot)
    if pod is None or pod.waiting:
        return False
    return pod.is_ready or (_was_running(draft) and pod.phase is PodPhase.RUNNING)


def _was_running(draft: PlanDraft) -> bool:
    return draft.snapshot.status.phase == "Running"


def _is_ending(draft: PlanDraft) -> bool:
    """Whether agents of a base that ran have just ended in order, and nobody told them to."""
    base = workload_name(draft.job.name, BASE)
    pods = draft.agents.get(BASE, [])
    has_ended = any(pod.phase is PodPhase.SUCCEEDED and not pod.is_deleting for pod in pods) or any(
        one.reason == ENDED and one.pod.startswith(f"{base}-") and draft.now_s < one.at_s + ENDED_S
        for one in draft.memory.failures
    )
    return _was_running(draft) and has_ended


def _silence(draft: PlanDraft, phase: str) -> str:
    """Say since when the coordinator is silent; empty: it is not."""
    if draft.memory.silent_s is None:
        return ""
    since = moment(draft.memory.silent_s)
    and_so = "; its replicas go on" if phase == "Running" else ""
    return f"unknown since {since}: the coordinator does not answer{and_so}"


def _ended(outcome: JobOutcome) -> tuple[str, str]:
    ending = outcome.ending
    phase = {EXIT_OK: "Succeeded", EXIT_STOPPED: "Stopped"}.get(ending.exit_code, "Failed")
    return phase, ending.reason or f"exit code {ending.exit_code}"


def _troubles(draft: PlanDraft) -> str:
    """Say what keeps a pod from starting, of the first one that has something."""
    for pod in draft.snapshot.pods:
        if said := pod.waiting or pod.unschedulable:
            return f"{pod.name}: {said}"
    return ""


def _admission(draft: PlanDraft, held: Held) -> tuple[str, str]:
    """Say where the admission of the base stands."""
    if draft.is_queued and not draft.snapshot.cluster.has_kueue:
        return "NoKueue", f"queue {draft.job.queue} is named, and the cluster has no Kueue"
    base = held.get(0)
    if base is None:
        return "NotAsked", "the base is not asked for yet"
    view = base.workload
    if base.state is IncrementState.GIVEN:
        return "Admitted", "the base is admitted"
    if base.state is IncrementState.TAKEN:
        return "Evicted", base.why
    if view is not None and not view.is_active:
        return "Deactivated", f"Workload {view.name} is not active; set its spec.active to true"
    message = view.pending_message if view else ""
    return "Waiting", f"the base waits for admission: {message}".rstrip(": ")


# --- conditions


def _conditions(draft: PlanDraft, held: Held, phase: str, reason: str) -> Iterator[Said]:
    outcome = draft.memory.outcome
    if outcome is not None:
        yield "Finished", TRUE, phase, reason
        return
    why, message = _admission(draft, held)
    yield "Admitted", TRUE if why == "Admitted" else FALSE, why, message
    yield _ready(draft, phase, reason)
    is_suspended = phase in ("Suspending", "Suspended")
    by = "ByUser" if draft.job.is_suspended else "ByQueue"
    message = reason if is_suspended else "it is not suspended"
    yield "Suspended", TRUE if is_suspended else FALSE, by if is_suspended else "No", message
    yield _reached(draft, phase)
    yield _queue(draft)
    yield _room(draft)
    yield _complete(draft)


def _ready(draft: PlanDraft, phase: str, reason: str) -> Said:
    pod = coordinator_of(draft.snapshot)
    if phase != "Running" or reason == ENDING:
        return "Ready", FALSE, phase, reason
    if silence := _silence(draft, phase):
        return "Ready", UNKNOWN, "CoordinatorSilent", silence
    if pod is None or not pod.is_ready:
        return "Ready", FALSE, "CoordinatorNotReady", "the coordinator is not ready"
    return "Ready", TRUE, phase, reason or "base and coordinator are ready"


def _reached(draft: PlanDraft, phase: str) -> Said:
    kind = "CoordinatorReached"
    if silence := _silence(draft, phase):
        return kind, UNKNOWN, "CoordinatorSilent", silence
    if draft.snapshot.coordinator.is_reached:
        return kind, TRUE, "CoordinatorAnswers", "the coordinator answers"
    if coordinator_of(draft.snapshot) is None:
        return kind, FALSE, "NoCoordinator", "there is no coordinator"
    return kind, FALSE, "CoordinatorStarting", "the coordinator has not answered yet"


def _queue(draft: PlanDraft) -> Said:
    cluster, said = draft.snapshot.cluster, []
    if draft.is_queued and not cluster.has_kueue:
        said.append(f"queue {draft.job.queue} is named, and the cluster has no Kueue")
    for queue in cluster.queues if draft.is_queued else ():
        if not queue.exists:
            said.append(f"LocalQueue {queue.name} does not exist")
        elif not queue.is_active:
            said.append(f"LocalQueue {queue.name} admits nothing: {queue.message}".rstrip(": "))
        elif not queue.gives_back:
            said.append(
                f"ClusterQueue {queue.cluster_queue} preempts nothing (both of its preemption "
                "rules are Never): no increment is ever taken back for others"
            )
    captured = sorted(pod.name for pod in draft.snapshot.pods if pod.is_captured)
    if captured:
        because = (
            "the LocalQueue named default captures pods; make the job anew with the label "
            f"kueue.x-k8s.io/queue-name: {draft.job.queue}"
            if cluster.has_default_queue
            else ("they have a queue of their own")
        )
        said.append(f"Kueue holds {in_words(captured, 3)} back: {because}")
    if said:
        return "QueueUsable", FALSE, "QueueProblem", "; ".join(said)
    if draft.is_queued and cluster.has_default_queue:
        message = "the namespace has a LocalQueue named default, which may capture pods"
        return "QueueUsable", TRUE, "DefaultQueue", message
    message = "nothing is wrong" if draft.is_queued else "the job has no queue"
    return "QueueUsable", TRUE, "QueueFine", message


def _room(draft: PlanDraft) -> Said:
    cluster = draft.snapshot.cluster
    if cluster.room_reason:
        return "RoomForPods", FALSE, "QuotaExhausted", cluster.room_reason
    return "RoomForPods", TRUE, "RoomLeft", "no quota of the namespace is in the way"


def _complete(draft: PlanDraft) -> Said:
    foreign = draft.snapshot.foreign
    if foreign:
        is_are = "is" if len(foreign) == 1 else "are"
        message = f"{in_words(foreign, 3)} {is_are} in the way: not this job's"
        return "Complete", FALSE, "NameTaken", message
    if not draft.may_create:
        return "Complete", FALSE, "PartsMissing", draft.holds[0] if draft.holds else "being made"
    return "Complete", TRUE, "AllParts", "all parts of the job are there"


# --- words


def moment(at_s: float) -> str:
    """Return a moment as people and the API server write it.

    >>> moment(1_700_000_000.0)
    '2023-11-14T22:13:20Z'
    """
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
