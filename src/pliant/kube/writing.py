"""Actions of ``core.operator`` ---> requests to the API server.

Owns which request an action is, and when its refusal is a success.  The bodies come from ``bodies``
and ``pods``.  Must not know when an action is right, and sends nothing itself.

Parts that follow the job are applied, with a hash of what was applied: it says later whether they
are out of date, without their bodies being watched.  A change that somebody makes by hand stays
until the job changes.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pliant.core.operator.actions import (
    Action,
    ApplyPart,
    CreateAgent,
    CreateCoordinator,
    CreateWorkload,
    DeletePod,
    DeleteWorkload,
    FinishWorkload,
    RequeueWorkload,
    SetPodsReady,
    TellLeave,
)
from pliant.core.operator.state import MADE_ONCE, PART_KINDS, JobStatus, Part, part_name
from pliant.core.operator.status import moment
from pliant.kube import bodies, pods
from pliant.kube.client import (
    PARTS,
    PODS,
    WORKLOADS,
    ApiError,
    Call,
    Object,
    Resource,
    apply,
    create,
    delete,
    patch,
    replace,
)
from pliant.kube.job import BASE, JOB_LABEL, PART_LABEL, KubeJob
from pliant.kube.status import status_document
from pliant.kube.store import Store

APPLIED = "pliant.dev/applied"
"""Annotation of a part: hash of the body that was applied."""

RESOURCES = {one.kind: one for one in PARTS}


def part_key(job: KubeJob, part: Part) -> tuple[Resource, str]:
    """Return of which kind a part is, and its name."""
    return RESOURCES[PART_KINDS[part]], part_name(job.name, part)


def part_bodies(job: KubeJob, *, operator_namespace: str) -> dict[Part, Object]:
    """Return the parts that follow the job, with the hash of each in it."""
    found = {}
    fixed = bodies.fixed_objects(job, operator_namespace=operator_namespace)
    by_name = {(body["kind"], body["metadata"]["name"]): body for body in fixed}
    for part in Part:
        if part in MADE_ONCE:
            continue
        resource, name = part_key(job, part)
        body = by_name[resource.kind, name]
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
        found[part] = {**body, "metadata": {**body["metadata"], "annotations": {APPLIED: digest}}}
    return found


def write_status(body: Object, status: JobStatus) -> Call:
    """Return what replaces the status of a job that is as it was read, and of no newer one."""
    selector = f"{JOB_LABEL}={body['metadata']['name']},{PART_LABEL}={bodies.AGENT}"
    document = status_document(status) | {"selector": selector}
    return replace({**body, "status": document}, part="status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Makes the requests of one job's actions."""

    job: KubeJob
    parts: Mapping[Part, Object]
    workloads: Store
    flavors: Store
    workload_classes: Store
    image: str
    """Of the coordinator."""

    def call(self, action: Action, *, now_s: float) -> Call | None:
        """Return the request of an action; None: there is nothing left to do.

        Raises:
            ConfigError: it cannot be carried out as the cluster is.
        """
        match action:
            case ApplyPart():
                return self._part(action.part)
            case CreateWorkload():
                return self._workload(action)
            case CreateCoordinator():
                return create(self._coordinator(action))
            case CreateAgent():
                return create(self._agent(action))
            case DeletePod():
                return delete(
                    PODS, action.name, self.job.namespace, uid=action.uid, grace_s=action.grace_s
                )
            case DeleteWorkload():
                return delete(WORKLOADS, action.name, self.job.namespace, uid=action.uid)
            case SetPodsReady():
                said = ("PodsReady", action.is_ready, action.reason, action.message)
                return self._conditions(action, [said], now_s=now_s)
            case FinishWorkload():
                said = ("Finished", True, action.reason, action.message)
                return self._conditions(action, [said], now_s=now_s)
            case RequeueWorkload():
                return self._requeued(action, now_s=now_s)
            case TellLeave():
                return None  # of the coordinator: see ``demand``

    def _part(self, part: Part) -> Call:
        if part is Part.TOKEN:
            return create(bodies.token(self.job, secrets.token_urlsafe(32)))
        if part is Part.REGISTER:
            return create(bodies.register(self.job))
        return apply(self.parts[part])

    def _workload(self, action: CreateWorkload) -> Call:
        queue = self.job.spec.queue
        name = None
        if queue is not None:
            is_base = action.increment == BASE
            name = queue.priority_class if is_base else queue.increment_priority_class
        known = None if name is None else self.workload_classes.get(name)
        priority = None if known is None else known["value"]
        return create(
            pods.workload(self.job, action.increment, num_pods=action.count, priority=priority)
        )

    def _coordinator(self, action: CreateCoordinator) -> Object:
        body = bodies.coordinator_pod(self.job, image=self.image)
        if action.avoid_nodes:  # rather: a small cluster may have no other
            names = {"key": pods.HOSTNAME, "operator": "NotIn", "values": [*action.avoid_nodes]}
            rather = [{"weight": 100, "preference": {"matchExpressions": [names]}}]
            node = {"preferredDuringSchedulingIgnoredDuringExecution": rather}
            body["spec"]["affinity"] = {"nodeAffinity": node}
        return body

    def _agent(self, action: CreateAgent) -> Object:
        workload = self.workloads.get(self.job.called(action.increment), self.job.namespace)
        place = pods.ANYWHERE
        if workload is not None:
            flavors = {one["metadata"]["name"]: one for one in self.flavors}
            place = pods.assigned(workload, flavors)
        return pods.agent_pod(
            self.job, action.increment, action.index, place=place, avoid=action.avoid_nodes
        )

    def _requeued(self, action: RequeueWorkload, *, now_s: float) -> Call | None:
        said = [
            ("QuotaReserved", False, "Pending", action.message),
            ("Admitted", False, "NoReservation", "The workload has no reservation"),
            ("Requeued", action.is_requeued, action.reason, action.message),
        ]
        return self._conditions(action, said, now_s=now_s, without_admission=True)

    def _conditions(
        self,
        action: SetPodsReady | FinishWorkload | RequeueWorkload,
        said: list[tuple[str, bool, str, str]],
        *,
        now_s: float,
        without_admission: bool = False,
    ) -> Call | None:
        """Change conditions of a Workload that is as it was read: Kueue writes into them, too."""
        body = self.workloads.get(action.name, self.job.namespace)
        if body is None or body["metadata"]["uid"] != action.uid:
            return None
        conditions = {one["type"]: one for one in body["status"].get("conditions") or ()}
        for name, is_so, reason, message in said:
            status, old = str(is_so), conditions.get(name, {})
            since = old.get("lastTransitionTime") if old.get("status") == status else None
            conditions[name] = {
                "type": name,
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": since or moment(now_s),
                "observedGeneration": body["metadata"].get("generation", 1),
            }
        status_now: dict[str, Any] = {"conditions": list(conditions.values())}
        if without_admission:
            status_now["admission"] = None
        version = body["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version}, "status": status_now}
        return patch(WORKLOADS, action.name, self.job.namespace, change, part="status")


def is_done_by(call: Call, error: ApiError) -> bool:
    """Whether a refusal says that nothing is left to do: what is deleted has gone."""
    is_deletion = call.method == "DELETE"
    return is_deletion and (error.is_gone or (error.is_conflict and "uid" in error.message.lower()))
