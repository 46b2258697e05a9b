"""Objects as the API server has them ---> the values that ``core.operator`` decides on.

Owns what of each kind is kept (``slim_...``), and how each field of a ``Snapshot`` is read.
Decides nothing, and must not ask for anything: all it reads is in the stores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pliant.core.operator.state import (
    BASE,
    ClusterView,
    CoordinatorView,
    Eviction,
    JobEnding,
    JobView,
    NodeView,
    Part,
    PodPhase,
    PodView,
    QueueView,
    Snapshot,
    Taint,
    WorkloadView,
)
from pliant.kube import pods
from pliant.kube.bodies import coordinator_pod
from pliant.kube.client import PARTS, Object
from pliant.kube.job import INCREMENT_LABEL, KubeJob
from pliant.kube.room import Room, room_for
from pliant.kube.status import read_status, seconds_of
from pliant.kube.store import Store, by_job, by_owner
from pliant.kube.writing import APPLIED, part_key
from pliant.spec.policy import core_policy

KEPT_OF_METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "labels", "ownerReferences"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
)

POD_CONDITIONS = {"PodScheduled", "Ready", "DisruptionTarget"}

STARTING = {"", "ContainerCreating", "PodInitializing"}
"""Why a container waits that is on its way."""

KUEUE = "kueue.x-k8s.io"

_PREEMPTOR = re.compile(r"UID: ([-0-9a-f]{36})")
"""In what Kueue says of a preemption: the Workload that it made room for."""


def _metadata(body: Object) -> Object:
    meta = body["metadata"]
    return {name: meta[name] for name in KEPT_OF_METADATA if name in meta}


def slim_pod(body: Object) -> Object:
    """Keep of a pod where it is and how it is."""
    spec, status = body["spec"], body.get("status") or {}
    kept = {
        name: status[name] for name in ("phase", "podIP", "reason", "message") if name in status
    }
    conditions = status.get("conditions") or ()
    kept["conditions"] = [one for one in conditions if one["type"] in POD_CONDITIONS]
    for one in kept["conditions"]:
        one.pop("lastProbeTime", None)
    for which in ("initContainerStatuses", "containerStatuses"):
        kept[which] = [
            {"name": one["name"], "state": one.get("state") or {}}
            for one in status.get(which) or ()
        ]
    node = {name: spec[name] for name in ("nodeName", "schedulingGates") if name in spec}
    return {"metadata": _metadata(body), "spec": node, "status": kept}


def slim_node(body: Object) -> Object:
    """Keep of a node whether it can be used."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    ready = [one for one in status.get("conditions") or () if one["type"] == "Ready"]
    for one in ready:
        one.pop("lastHeartbeatTime", None)
    kept = {name: spec[name] for name in ("unschedulable", "taints") if name in spec}
    return {"metadata": _metadata(body), "spec": kept, "status": {"conditions": ready}}


def slim_workload(body: Object) -> Object:
    """Keep of a Workload all but the templates of its pods."""
    for pod_set in body["spec"].get("podSets") or ():
        pod_set.pop("template", None)
    return {"metadata": _metadata(body), "spec": body["spec"], "status": body.get("status") or {}}


def slim_part(body: Object) -> Object:
    """Keep of a part of a job that it is there, and what it was made from."""
    meta = _metadata(body)
    meta["annotations"] = {APPLIED: (body["metadata"].get("annotations") or {}).get(APPLIED)}
    return {"metadata": meta}


def slim_queue(body: Object) -> Object:
    """Keep of a LocalQueue or ClusterQueue what it is and whether it admits, not what it holds."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    active = [one for one in conditions if one["type"] == "Active"]
    spec = {name: body["spec"].get(name) for name in ("clusterQueue", "preemption", "stopPolicy")}
    return {"metadata": _metadata(body), "spec": spec, "status": {"conditions": active}}


def by_node(body: Object) -> Iterable[str]:
    """Find a pod by its node."""
    name = body["spec"].get("nodeName")
    return () if name is None else (name,)


def by_uid(body: Object) -> Iterable[str]:
    """Find an object by its uid."""
    return (body["metadata"]["uid"],)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """All that is watched."""

    jobs: Store = field(default_factory=Store)
    pods: Store = field(
        default_factory=lambda: Store(
            slim=slim_pod, indexes={"job": by_job, "owner": by_owner, "node": by_node}
        )
    )
    nodes: Store = field(default_factory=lambda: Store(slim=slim_node))
    workloads: Store = field(
        default_factory=lambda: Store(
            slim=slim_workload, indexes={"job": by_job, "owner": by_owner, "uid": by_uid}
        )
    )
    parts: dict[str, Store] = field(
        default_factory=lambda: {one.plural: Store(slim=slim_part) for one in PARTS}
    )
    local_queues: Store = field(default_factory=lambda: Store(slim=slim_queue))
    cluster_queues: Store = field(default_factory=lambda: Store(slim=slim_queue))
    flavors: Store = field(default_factory=Store)
    workload_classes: Store = field(default_factory=Store)
    quotas: Store = field(default_factory=Store)
    ranges: Store = field(default_factory=Store)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads snapshots."""

    stores: Stores
    has_kueue: Callable[[], bool]
    image: str
    """Of coordinators."""

    def snapshot(
        self,
        job: KubeJob,
        body: Object,
        *,
        hashes: Mapping[Part, str],
        coordinator: CoordinatorView,
        foreign: Iterable[str] = (),
    ) -> Snapshot:
        """Return what is known of a job.

        Args:
            job: as it was read.
            body: of the job, as the store has it.
            hashes: of what each part should be now.
            coordinator: what its process said.
            foreign: objects that stand in the way.

        Raises:
            ValueError: its status is not the operator's.
        """
        owned = self.stores.pods.by("owner", job.uid)
        found = tuple(map(pod_view, owned))
        parts, outdated = self._parts(job, hashes)
        names = {pod.node for pod in found if pod.node}
        nodes = {name: self.stores.nodes.get(name) for name in names}
        workloads = self.stores.workloads.by("owner", job.uid)
        return Snapshot(
            job=job_view(job, body),
            status=read_status(body.get("status")),
            parts=parts,
            outdated=outdated,
            foreign=tuple(sorted(foreign)),
            workloads=tuple(self._workload(one) for one in workloads),
            pods=found,
            nodes={name: node_view(one) for name, one in nodes.items() if one is not None},
            coordinator=coordinator,
            cluster=self._cluster(job),
        )

    def _parts(
        self, job: KubeJob, hashes: Mapping[Part, str]
    ) -> tuple[frozenset[Part], frozenset[Part]]:
        there, outdated = set(), set()
        for part in Part:
            resource, name = part_key(job, part)
            body = self.stores.parts[resource.plural].get(name, job.namespace)
            if body is None or job.uid not in by_owner(body):
                continue
            there.add(part)
            if part in hashes and body["metadata"]["annotations"][APPLIED] != hashes[part]:
                outdated.add(part)
        return frozenset(there), frozenset(outdated)

    def _workload(self, body: Object) -> WorkloadView:
        conditions = conditions_of(body)
        meta, spec = body["metadata"], body["spec"]
        waits = [
            conditions[name]
            for name in ("QuotaReserved", "Admitted")
            if conditions.get(name, {}).get("status") == "False"
        ]
        pending = waits[0] if waits else {}
        ready = conditions.get("PodsReady")
        return WorkloadView(
            name=meta["name"],
            uid=meta["uid"],
            increment=meta.get("labels", {}).get(INCREMENT_LABEL, BASE),
            count=sum(one.get("count", 1) for one in spec.get("podSets") or ()),
            created_s=seconds_of(meta.get("creationTimestamp")) or 0.0,
            is_deleting="deletionTimestamp" in meta,
            is_active=spec.get("active", True),
            has_quota=_is_true(conditions, "QuotaReserved"),
            is_admitted=_is_true(conditions, "Admitted"),
            eviction=self._eviction(conditions),
            is_finished=_is_true(conditions, "Finished"),
            pods_ready=None if ready is None else ready["status"] == "True",
            pods_ready_reason="" if ready is None else ready.get("reason", ""),
            pending_reason=pending.get("reason", ""),
            pending_message=pending.get("message", ""),
        )

    def _eviction(self, conditions: Mapping[str, Object]) -> Eviction | None:
        if not _is_true(conditions, "Evicted"):
            return None
        evicted = conditions["Evicted"]
        is_preempted = _is_true(conditions, "Preempted")
        said = conditions["Preempted" if is_preempted else "Evicted"].get("message", "")
        uid = _PREEMPTOR.search(said)
        by = self.stores.workloads.by("uid", uid[1]) if uid else []
        names = [f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in by]
        return Eviction(reason=evicted.get("reason", ""), message=said, by="".join(names[:1]))

    def _cluster(self, job: KubeJob) -> ClusterView:
        queue = job.spec.queue
        names = {} if queue is None or queue.name is None else {queue.name: 0}
        if queue is not None and queue.increments is not None:
            names[queue.increments] = 1
        agents, coordinators = self._rooms(job)
        return ClusterView(
            has_kueue=self.has_kueue(),
            queues=tuple(self._queue(name, job.namespace) for name in names),
            has_default_queue=self.stores.local_queues.get("default", job.namespace) is not None,
            agent_room=agents.pods,
            coordinator_room=coordinators.pods != 0,
            room_reason=agents.reason or coordinators.reason,
        )

    def _rooms(self, job: KubeJob) -> tuple[Room, Room]:
        here = (
            [one for one in store if one["metadata"]["namespace"] == job.namespace]
            for store in (self.stores.quotas, self.stores.ranges)
        )
        quotas, ranges = here
        if not quotas and not ranges:
            return Room(), Room()
        agent = pods.pod_template(job, BASE)["spec"]
        coordinator = coordinator_pod(job, image=self.image)["spec"]
        rooms = [room_for(spec, quotas, ranges) for spec in (agent, coordinator)]
        return rooms[0], rooms[1]

    def _queue(self, name: str, namespace: str) -> QueueView:
        local = self.stores.local_queues.get(name, namespace)
        if local is None:
            return QueueView(name=name, exists=False)
        behind = local["spec"].get("clusterQueue", "")
        cluster = self.stores.cluster_queues.get(behind)
        faults = [
            active.get("message", "") or active.get("reason", "")
            for active in (conditions_of(one or {}).get("Active", {}) for one in (local, cluster))
            if active.get("status") == "False"
        ]
        preemption = ((cluster or {}).get("spec") or {}).get("preemption") or {}
        ways = {
            preemption.get(way, "Never") for way in ("withinClusterQueue", "reclaimWithinCohort")
        }
        return QueueView(
            name=name,
            cluster_queue=behind,
            is_active=not faults,
            message="; ".join(faults),
            gives_back=cluster is None or ways != {"Never"},
        )


def job_view(job: KubeJob, body: Object) -> JobView:
    """Return the job as its user wrote it."""
    queue, meta = job.spec.queue, body["metadata"]
    named = queue.name if queue is not None and queue.name is not None else ""
    more = queue.increments if queue is not None else None
    return JobView(
        name=job.name,
        namespace=job.namespace,
        uid=job.uid,
        generation=meta.get("generation", 1),
        policy=core_policy(job.spec.elastic_policy, job.spec.start_replicas),
        hosts_per_replica=job.pods_per_replica,
        replicas=job.spec.replicas,
        is_suspended=job.spec.suspend,
        is_deleting="deletionTimestamp" in meta,
        queue=named,
        increments_queue=more or named,
        grace_s=float(pods.grace_s(job)),
    )


def pod_view(body: Object) -> PodView:
    """Return a pod of a job."""
    meta, spec, status = body["metadata"], body["spec"], body["status"]
    conditions, labels = conditions_of(body), meta.get("labels", {})
    scheduled, disrupted = (
        conditions.get("PodScheduled", {}),
        conditions.get("DisruptionTarget", {}),
    )
    increment = labels.get(INCREMENT_LABEL, "")
    gates = {gate["name"] for gate in spec.get("schedulingGates") or ()}
    is_unschedulable = scheduled.get("reason") == "Unschedulable"
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        increment=increment,
        index=int(labels.get(pods.INDEX_LABEL, 0)),
        phase=PodPhase(status.get("phase") or PodPhase.PENDING),
        is_ready=_is_true(conditions, "Ready"),
        created_s=seconds_of(meta.get("creationTimestamp")) or 0.0,
        node=spec.get("nodeName", ""),
        unschedulable=scheduled.get("message", "") if is_unschedulable else "",
        waiting=_waiting(status),
        is_deleting="deletionTimestamp" in meta,
        delete_by_s=seconds_of(meta.get("deletionTimestamp")),
        disruption=disrupted.get("reason", "") if disrupted.get("status") == "True" else "",
        failure=_failure(status),
        ending=None if increment else _ending(status),
        is_captured=f"{KUEUE}/queue-name" in labels or f"{KUEUE}/admission" in gates,
    )


def node_view(body: Object) -> NodeView:
    """Return a node."""
    ready, spec = conditions_of(body).get("Ready", {}), body["spec"]
    is_ready = ready.get("status", "True") == "True"
    return NodeView(
        name=body["metadata"]["name"],
        is_ready=is_ready,
        not_ready_since_s=None if is_ready else seconds_of(ready.get("lastTransitionTime")),
        is_cordoned=bool(spec.get("unschedulable")),
        taints=tuple(
            Taint(
                key=one["key"],
                effect=one["effect"],
                value=one.get("value", ""),
                added_s=seconds_of(one.get("timeAdded")),
            )
            for one in spec.get("taints") or ()
        ),
    )


def conditions_of(body: Mapping[str, Any]) -> dict[str, Object]:
    """Return the conditions of an object by type."""
    conditions = (body.get("status") or {}).get("conditions") or ()
    return {one["type"]: one for one in conditions}


def _is_true(conditions: Mapping[str, Object], name: str) -> bool:
    return bool(conditions.get(name, {}).get("status") == "True")


def _containers(status: Object) -> list[Object]:
    return [*status["initContainerStatuses"], *status["containerStatuses"]]


def _waiting(status: Object) -> str:
    """Say why a container does not start; empty: all have, or are about to."""
    for one in _containers(status):
        waiting = one["state"].get("waiting") or {}
        if (reason := waiting.get("reason", "")) not in STARTING:
            return f"{reason}: {waiting.get('message', '')}".removesuffix(": ")
    return ""


def _failure(status: Object) -> str:
    """Say how a pod failed; empty: it did not."""
    if status.get("phase") != PodPhase.FAILED:
        return ""
    if status.get("reason"):  # of the kubelet: Evicted, NodeShutdown...
        return f"{status['reason']}: {status.get('message', '')}".removesuffix(": ")
    for one in _containers(status):
        ended = one["state"].get("terminated") or {}
        if ended.get("exitCode"):
            reason = ended.get("reason") or "Error"
            return reason if reason == "OOMKilled" else f"{reason} (exit code {ended['exitCode']})"
    return "Failed"


def _ending(status: Object) -> JobEnding | None:
    """Return how a coordinator has ended its job; None: it has not."""
    for one in status["containerStatuses"]:
        ended = one["state"].get("terminated")
        if ended is None or ended.get("exitCode") != 0:
            continue
        try:
            said = json.loads(ended.get("message") or "")
            return JobEnding(
                exit_code=int(said["exitCode"]),
                reason=str(said.get("reason") or ""),
                state=str(said.get("state") or ""),
                step=None if said.get("step") is None else int(said["step"]),
                digest=str(said.get("digest") or ""),
                audit=str(said.get("audit") or ""),
            )
        except (ValueError, TypeError, KeyError):
            return JobEnding(exit_code=1, reason="its coordinator ended without saying how")
    return None
