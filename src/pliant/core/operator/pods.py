"""The pods of a job: made, replaced inside their increment, taken from nodes that leave.

Owns when a pod is created, when one that has ended is made anew, and what the state of its node
means for it.  Must not know which increments the job may have (``increments``).

    none --create--> there --ended, or its node leaves--> deleted --gone--> none
              ^                                                              |
              +------- the longer, the more often it failed of late ---------+

A pod's name is its place in the increment, so that its successor waits until it is gone; on a node
that does not answer it is deleted without that node's word, as the coordinator tells lives apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pliant.core.operator.actions import CreateAgent, CreateCoordinator, DeletePod, TellLeave
from pliant.core.operator.draft import PlanDraft, coordinator_of
from pliant.core.operator.increments import Held, Increment, IncrementState
from pliant.core.operator.state import (
    BASE,
    Failure,
    PodPhase,
    PodView,
    Told,
    agent_name,
    coordinator_name,
)

NOT_READY_S = 30.0
"""A node that has not been ready for so long has lost its pods; that it is not ready is known some
40 s late already."""

MEMORY_S = 3600.0
"""How long failures are remembered."""

MOST_FAILURES = 64

FAILURES_OF_A_BAD_NODE = 3

RETRY_S, MOST_RETRY_S = 10.0, 300.0
"""Before a pod is made for the third time, and longest; twice as long each time."""

ENDED_S = 5.0
"""Before a pod is made anew that ended in order: as a rule its job is over, which is known soon."""

ENDED = "ended by itself"
"""What a pod is remembered for that no node is to be blamed for."""

LEAVING_TAINTS: dict[str, tuple[str, float | None]] = {
    "karpenter.sh/disrupted": ("Karpenter takes it away", None),
    "karpenter.sh/disruption": ("Karpenter takes it away", None),
    "ToBeDeletedByClusterAutoscaler": ("the cluster autoscaler takes it away", None),
    "aws-node-termination-handler/spot-itn": ("its spot instance is interrupted", 120.0),
    "aws-node-termination-handler/asg-lifecycle-termination": ("its group takes it away", None),
    "aws-node-termination-handler/scheduled-maintenance": ("it goes into maintenance", None),
    "cloud.google.com/impending-node-termination": ("its instance ends", 25.0),
    "remediator.kubernetes.azure.com/unschedulable": ("its repair has begun", None),
    "node.cloudprovider.kubernetes.io/shutdown": ("it is shut down", 0.0),
    "node.kubernetes.io/out-of-service": ("it is out of service", 0.0),
}
"""Taints that say that a node will go, with the reason, and in how many seconds after the taint;
None: within the grace of its pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A node goes, or has gone."""

    reason: str
    leave_by_s: float
    is_silent: bool = False
    """It does not answer: what is deleted there is deleted at once."""


def departure_of(draft: PlanDraft, name: str) -> Departure | None:
    """Return why and when the pods on a node must have left; None: they may stay."""
    node = draft.snapshot.nodes.get(name)
    if node is None:
        return None
    if not node.is_ready:
        since_s = node.not_ready_since_s if node.not_ready_since_s is not None else draft.now_s
        if draft.is_due(since_s + NOT_READY_S):
            reason = f"node {name} is not ready"
            return Departure(reason=reason, leave_by_s=draft.now_s, is_silent=True)
    for taint in node.taints:
        if taint.key in LEAVING_TAINTS:
            why, notice_s = LEAVING_TAINTS[taint.key]
            since_s = draft.now_s if taint.added_s is None else taint.added_s
            within_s = draft.job.grace_s if notice_s is None else notice_s
            return Departure(
                reason=f"node {name} leaves: {why}",
                leave_by_s=max(draft.now_s, since_s + within_s),
            )
    return None


# --- agents


def agents(draft: PlanDraft, held: Held) -> None:
    """Keep the pods of every increment that is given; without Kueue asking is creating them."""
    found = draft.agents
    for _, increment in sorted(held.items()):
        is_asked = increment.state is IncrementState.ASKED and not draft.is_queued
        if increment.state is IncrementState.GIVEN or is_asked:
            _keep(draft, increment, found.get(increment.name, []))


def _keep(draft: PlanDraft, increment: Increment, pods: list[PodView]) -> None:
    there = {pod.name: pod for pod in pods}
    for index in range(increment.count):
        name = agent_name(draft.job.name, increment.name, index)
        pod = there.pop(name, None)
        if pod is None:
            if _may_create(draft, name):
                avoid = bad_nodes(draft)
                draft.act(CreateAgent(increment=increment.name, index=index, avoid_nodes=avoid))
        elif pod.is_deleting:
            _tell(draft, pod)
            draft.force(pod)
        elif pod.is_over:
            _replace_ended(draft, pod)
        else:
            _leave_node(draft, increment, pod)
    draft.dismiss(there.values(), f"{increment.name} has no such place")


def _may_create(draft: PlanDraft, name: str) -> bool:
    if not _is_time(draft, name):
        return False
    if draft.room is not None:
        if draft.room < 1:
            reason = draft.snapshot.cluster.room_reason
            draft.holds.append(reason or "a quota of the namespace is exhausted")
            return False
        draft.room -= 1
    return True


def _is_time(draft: PlanDraft, name: str) -> bool:
    is_free = draft.may_create and not draft.is_foreign("Pod", name)
    return is_free and draft.is_due(retry_at_s(draft, name))


def _tell(draft: PlanDraft, pod: PodView) -> None:
    """Name deadline and reason of an agent that somebody else takes from a given increment."""
    if pod.phase is not PodPhase.RUNNING or _is_told(draft, pod):
        return
    leave_by_s = draft.now_s if pod.delete_by_s is None else pod.delete_by_s
    reason = f"its pod is deleted ({pod.disruption})" if pod.disruption else "its pod is deleted"
    _say_leave(draft, pod, reason, leave_by_s)


def _say_leave(draft: PlanDraft, pod: PodView, reason: str, leave_by_s: float) -> None:
    told = Told(uid=pod.uid, reason=reason, leave_by_s=leave_by_s)
    draft.remember(told=(*draft.memory.told, told))
    notice_s = max(0.0, leave_by_s - draft.now_s)
    draft.act(TellLeave(node=pod.name, notice_s=notice_s, reason=reason))


def _is_told(draft: PlanDraft, pod: PodView) -> bool:
    return any(told.uid == pod.uid for told in draft.memory.told)


def _leave_node(draft: PlanDraft, increment: Increment, pod: PodView) -> None:
    """Let a pod leave its node if that goes; base and increments alike stay inside their quota."""
    going = departure_of(draft, pod.node)
    node = draft.snapshot.nodes.get(pod.node)
    if going is None and node is not None and node.is_cordoned and increment.name != BASE:
        reason = f"node {pod.node} is cordoned"
        going = Departure(reason=reason, leave_by_s=draft.now_s + draft.job.grace_s)
    if going is None:
        return
    if not _is_told(draft, pod):
        _say_leave(draft, pod, going.reason, going.leave_by_s)
        draft.tell("AgentLeaves", f"{pod.name} leaves: {going.reason}")
    leave_by_s = next(told.leave_by_s for told in draft.memory.told if told.uid == pod.uid)
    if going.is_silent:
        note_failure(draft, pod, going.reason)
        draft.act(DeletePod(name=pod.name, uid=pod.uid, grace_s=0))
    elif draft.is_due(leave_by_s - draft.job.grace_s):
        grace_s = max(0, min(leave_by_s - draft.now_s, draft.job.grace_s))
        draft.act(DeletePod(name=pod.name, uid=pod.uid, grace_s=int(grace_s)))


def _replace_ended(draft: PlanDraft, pod: PodView) -> None:
    """Delete a pod that has ended, so that it can be made anew.

    One that ended in order may have done so because the job has: its coordinator says which.
    """
    if pod.phase is PodPhase.SUCCEEDED and not draft.snapshot.coordinator.is_reached:
        return
    if not _is_told(draft, pod):
        note_failure(draft, pod, pod.failure if pod.phase is PodPhase.FAILED else ENDED)
    draft.act(DeletePod(name=pod.name, uid=pod.uid))


# --- the coordinator


def coordinator(draft: PlanDraft, *, is_base_ready: bool) -> None:
    """Keep one coordinator; where it is does not matter, as its register is not in the pod.

    One that goes on after a suspension may still end because of it, until the base is back.
    """
    view = draft.snapshot.coordinator
    pod, name = coordinator_of(draft.snapshot), coordinator_name(draft.job.name)
    if pod is None:
        if not _is_time(draft, name):
            return
        if not draft.snapshot.cluster.coordinator_room:
            draft.holds.append(draft.snapshot.cluster.room_reason)
            return
        if draft.memory.begun_s is None:
            draft.remember(begun_s=draft.now_s)
        draft.act(CreateCoordinator(avoid_nodes=bad_nodes(draft)))
        return
    if view.is_reached and is_base_ready:
        draft.remember(suspended_s=None, suspended_reason="")
    if pod.is_deleting:
        draft.force(pod)
    elif pod.is_over:
        reason = pod.failure or "it ended without saying how"
        note_failure(draft, pod, reason if pod.phase is PodPhase.FAILED else ENDED)
        draft.act(DeletePod(name=pod.name, uid=pod.uid))
    elif going := departure_of(draft, pod.node):
        draft.tell("CoordinatorMoves", going.reason)
        grace_s = 0 if going.is_silent else None
        draft.act(DeletePod(name=pod.name, uid=pod.uid, grace_s=grace_s))


# --- failures


def note_failure(draft: PlanDraft, pod: PodView, reason: str) -> None:
    """Remember that a pod has ended, once."""
    failures = draft.memory.failures
    if any(one.uid == pod.uid for one in failures):
        return
    new = Failure(pod=pod.name, uid=pod.uid, node=pod.node, reason=reason, at_s=draft.now_s)
    draft.remember(failures=(*failures, new)[-MOST_FAILURES:])
    if reason != ENDED:
        place = f" on {pod.node}" if pod.node else ""
        draft.tell("PodFailed", f"{pod.name}{place}: {reason}", is_warning=True)


def forget(draft: PlanDraft) -> None:
    """Forget failures that are long past, and what was told about pods that are gone."""
    alive = {pod.uid for pod in draft.snapshot.pods}
    memory, oldest_s = draft.memory, draft.now_s - MEMORY_S
    draft.remember(
        failures=tuple(one for one in memory.failures if one.at_s > oldest_s),
        told=tuple(told for told in memory.told if told.uid in alive),
    )
    if draft.memory.failures:
        draft.wakes.append(draft.memory.failures[0].at_s + MEMORY_S)


def retry_at_s(draft: PlanDraft, name: str) -> float:
    """Return when a pod of this name may be made (again)."""
    past = [one for one in draft.memory.failures if one.pod == name]
    if not past:
        return 0.0
    wait_s = ENDED_S if past[-1].reason == ENDED else 0.0
    if len(past) > 1:
        wait_s = min(MOST_RETRY_S, RETRY_S * 2.0 ** (len(past) - 2))
    return past[-1].at_s + wait_s


def bad_nodes(draft: PlanDraft) -> tuple[str, ...]:
    """Return the nodes on which pods of the job fail again and again."""
    counts = Counter(one.node for one in _blamed(draft))
    return tuple(sorted(node for node, n in counts.items() if n >= FAILURES_OF_A_BAD_NODE))


def _blamed(draft: PlanDraft) -> Iterator[Failure]:
    return (one for one in draft.memory.failures if one.node and one.reason != ENDED)
