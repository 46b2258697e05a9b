"""What of the cluster's objects is read, and what is written of a status."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kube import jobs

from pliant.core.operator.state import (
    Condition,
    CoordinatorView,
    Failure,
    JobEnding,
    JobOutcome,
    JobStatus,
    Memory,
    PodPhase,
)
from pliant.core.operator.status import moment
from pliant.kube.reading import Reader, Stores, node_view, pod_view, slim_node, slim_pod
from pliant.kube.room import quantity, room_for
from pliant.kube.status import read_status, status_document


def a_pod(phase: str = "Running", labels: dict[str, str] | None = None, **status: Any) -> Any:
    meta = {
        "name": "gpt-base-1",
        "uid": "u",
        "labels": {"pliant.dev/increment": "base", "pliant.dev/index": "1", **(labels or {})},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    body = {"metadata": meta, "spec": {}, "status": {"phase": phase, **status}}
    return pod_view(slim_pod(body))


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "trainer", "state": state}]}


def test_how_a_pod_is_and_how_it_failed() -> None:
    assert (a_pod().index, a_pod().increment, a_pod().is_coordinator) == (1, "base", False)
    assert a_pod(
        "Failed", **container(terminated={"exitCode": 137, "reason": "OOMKilled"})
    ).failure == ("OOMKilled")
    assert a_pod("Failed", **container(terminated={"exitCode": 3})).failure == "Error (exit code 3)"
    evicted = a_pod("Failed", reason="Evicted", message="low on memory")
    assert (evicted.failure, evicted.phase) == ("Evicted: low on memory", PodPhase.FAILED)
    waiting = container(waiting={"reason": "ErrImagePull", "message": "no such image"})
    assert a_pod("Pending", **waiting).waiting == "ErrImagePull: no such image"
    assert a_pod("Pending", **container(waiting={"reason": "ContainerCreating"})).waiting == ""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    assert a_pod(conditions=[condition]).disruption == "EvictionByEvictionAPI"
    assert a_pod(labels={"kueue.x-k8s.io/queue-name": "default"}).is_captured


@pytest.mark.parametrize(
    ("message", "ending"),
    [
        (
            '{"exitCode": 3, "reason": "stopped", "state": "stopped", "step": 7, "digest": "ab",'
            ' "audit": "8 steps"}',
            JobEnding(
                exit_code=3, reason="stopped", state="stopped", step=7, digest="ab", audit="8 steps"
            ),
        ),
        ("", JobEnding(exit_code=1, reason="its coordinator ended without saying how")),
    ],
)
def test_a_coordinator_says_how_the_job_ended_or_that_counts_as_a_failure(
    message: str, ending: JobEnding
) -> None:
    ended = container(terminated={"exitCode": 0, "message": message})
    assert a_pod("Succeeded", {"pliant.dev/increment": ""}, **ended).ending == ending
    assert a_pod("Succeeded", **ended).ending is None  # of an agent


def test_a_node_is_as_its_taints_and_conditions_say() -> None:
    since = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": since}
    taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule", "timeAdded": since}
    spec = {"unschedulable": True, "taints": [taint]}
    body = {"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": [ready]}}
    view = node_view(slim_node(body))
    assert (view.is_ready, view.is_cordoned) == (False, True)
    assert view.not_ready_since_s == view.taints[0].added_s == 1767225600.0


def test_a_status_reads_as_it_was_written() -> None:
    ending = JobEnding(exit_code=0, reason="finished", digest="ab")
    failure = Failure(pod="p", uid="u", node="", reason="OOMKilled", at_s=3.25)
    condition = Condition(type="Ready", status="True", reason="R", message="m", since_s=5.0)
    status = JobStatus(
        observed_generation=2,
        phase="Running",
        wanted_replicas=None,
        conditions=(condition,),
        memory=Memory(
            begun_s=1.0, failures=(failure,), outcome=JobOutcome(ending=ending, at_s=4.5)
        ),
    )
    document = status_document(status)
    assert read_status(document) == status
    assert document["memory"]["outcome"]["ending"]["exitCode"] == 0
    assert document["conditions"][0] == {
        "type": "Ready",
        "status": "True",
        "reason": "R",
        "message": "m",
        "lastTransitionTime": moment(5),
        "observedGeneration": 2,
    }
    assert read_status(None) == JobStatus()


def test_room_is_what_quotas_leave_and_ranges_allow() -> None:
    assert [quantity(one) for one in ("100m", "2Gi", "1.5", "3k", 4)] == [
        0.1,
        2 * 1024**3,
        1.5,
        3000,
        4,
    ]
    resources = {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": 4, "memory": "1Gi"}}
    pod = {"containers": [{"name": "trainer", "resources": resources}]}

    def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> dict[str, Any]:
        return {"metadata": {"name": "q"}, "spec": spec, "status": {"hard": hard, "used": used}}

    gpus = quota({"requests.nvidia.com/gpu": "16", "pods": "50"}, {"requests.nvidia.com/gpu": "6"})
    assert room_for(pod, [gpus], []) == (
        2,
        "ResourceQuota q: requests.nvidia.com/gpu 6 of 16 are used",
    )
    full = quota({"cpu": "9"}, {"cpu": "8500m"})
    assert room_for(pod, [gpus, full], [])[0] == 0
    assert room_for(pod, [quota({"cpu": "1"}, {}, scopes=["BestEffort"])], [])[0] is None
    limit = {"type": "Container", "max": {"cpu": "1"}}
    limits = {"metadata": {"name": "l"}, "spec": {"limits": [limit]}}
    assert room_for(pod, [], [limits]) == (
        0,
        "LimitRange l: container trainer asks for cpu 2, and at most 1 are allowed",
    )


def test_a_snapshot_names_who_preempted_and_the_queue_that_gives_nothing_back() -> None:
    stores, job = Stores(), jobs.job()
    given = jobs.manifest()
    meta = {**given["metadata"], "uid": jobs.UID, "generation": 3}
    owner = [{"uid": jobs.UID, "controller": True}]

    def put(store: Any, name: str, body: dict[str, Any], namespace: str = "team-a") -> None:
        more = {"name": name, "namespace": namespace, "uid": f"{len(store):036x}"}
        body["metadata"] = {"resourceVersion": "1", **more, **body.get("metadata", {})}
        store.changed(body)

    put(stores.workloads, "urgent", {"spec": {}}, "team-b")
    said = f"Preempted to accommodate a workload (UID: {0:036x}, JobUID: 1) due to priority"
    conditions = [
        {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "m"},
        {"type": "Preempted", "status": "True", "reason": "InClusterQueue", "message": said},
        {"type": "QuotaReserved", "status": "True"},
    ]
    ours = {"ownerReferences": owner, "labels": {"pliant.dev/increment": "x1"}}
    spec = {"podSets": [{"count": 2, "template": {}}]}
    body = {"metadata": ours, "spec": spec, "status": {"conditions": conditions}}
    put(stores.workloads, "gpt-x1", body)
    put(stores.local_queues, "research", {"spec": {"clusterQueue": "all"}})
    put(stores.cluster_queues, "all", {"spec": {"preemption": {}}}, "")
    reader = Reader(stores=stores, has_kueue=lambda: True, image="i")
    found = reader.snapshot(
        job, {**given, "metadata": meta}, hashes={}, coordinator=CoordinatorView()
    )
    (workload,) = found.workloads
    assert workload.eviction is not None
    assert (workload.eviction.by, workload.count, workload.has_quota) == ("team-b/urgent", 2, True)
    (queue,) = found.cluster.queues
    assert (queue.exists, queue.gives_back, found.job.generation) == (True, False, 3)
