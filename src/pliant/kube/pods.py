"""The pods that a job trains in, and the Workloads of Kueue that ask for them.

Owns what is added to a user's pod template: the agent and its arguments, restricted security, the
places that it writes to; and where Kueue wants the pods of a Workload.  Pure, like ``bodies``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pliant.core.errors import ConfigError
from pliant.core.placement import HOST, Placement, PlacementRule
from pliant.kube.bodies import (
    AGENT,
    CONTAINER_SECURITY,
    POD_SECURITY,
    RUN_PLACE,
    TLS_FILES,
    TLS_PLACE,
    TOKEN_PLACE,
    Body,
    address_of,
    environment,
    labels_of,
    metadata_of,
    volumes_of,
)
from pliant.kube.job import BASE, GROUP, PORT, QUEUE_LABEL, KubeJob
from pliant.spec.cluster_job import TRAINER

KUEUE = "kueue.x-k8s.io"
POD_SET = "main"
"""Of every Workload; it has this one."""

HOSTNAME = "kubernetes.io/hostname"

INDEX_LABEL = f"{GROUP}/index"

BEFORE_THE_END_S = 5
"""Of a pod's grace, the agent keeps so much for itself once its replicas have left."""

TOPOLOGY = {
    f"{KUEUE}/podset-required-topology": "required",
    f"{KUEUE}/podset-preferred-topology": "preferred",
    f"{KUEUE}/podset-slice-required-topology": "podSetSliceRequiredTopology",
}
"""Annotations of a pod template, and the fields of a Workload's topologyRequest that they are."""

UNCONSTRAINED = f"{KUEUE}/podset-unconstrained-topology"
SLICE_SIZE = f"{KUEUE}/podset-slice-size"

QUEUE_LABELS = (QUEUE_LABEL, f"{KUEUE}/priority-class")
"""Pods must not have them: Kueue would hold each for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """Where pods may go, beside what their template says, and what they are told of it."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()
    """What Kueue removes once it has chosen the node."""


ANYWHERE = PodPlace()


def assigned(workload: Mapping[str, Any], flavors: Mapping[str, Mapping[str, Any]]) -> PodPlace:
    """Return where the pods of an admitted Workload go.

    Args:
        workload: as the API server has it.
        flavors: ResourceFlavors by name.

    Raises:
        ConfigError: a flavor that was assigned is gone.
    """
    status = workload.get("status") or {}
    sets = (status.get("admission") or {}).get("podSetAssignments") or []
    assignment: Mapping[str, Any] = next(iter(sets), {})
    place = PodPlace()
    for name in dict.fromkeys((assignment.get("flavors") or {}).values()):
        if name not in flavors:
            raise ConfigError(f"Kueue assigned the ResourceFlavor {name}, which does not exist")
        spec = flavors[name].get("spec") or {}
        place = _with(place, spec.get("nodeLabels"), spec.get("tolerations"))
    for check in status.get("admissionChecks") or []:
        for update in check.get("podSetUpdates") or []:
            if update["name"] != POD_SET:
                continue
            place = _with(
                place,
                update.get("nodeSelector"),
                update.get("tolerations"),
                update.get("labels"),
                update.get("annotations"),
            )
    if assignment.get("topologyAssignment"):
        annotations = {f"{KUEUE}/workload": workload["metadata"]["name"]}
        request = workload["spec"]["podSets"][0].get("topologyRequest") or {}
        if not request.keys() & {"required", "preferred", "unconstrained"}:
            annotations[UNCONSTRAINED] = "true"
        place = _with(place, labels={f"{KUEUE}/podset": POD_SET}, annotations=annotations)
        place = replace(place, gates=(f"{KUEUE}/topology",))
    return place


def _with(
    place: PodPlace,
    selector: Mapping[str, str] | None = None,
    tolerations: Iterable[Mapping[str, Any]] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> PodPlace:
    return replace(
        place,
        node_selector={**place.node_selector, **(selector or {})},
        tolerations=(*place.tolerations, *(tolerations or ())),
        labels={**place.labels, **(labels or {})},
        annotations={**place.annotations, **(annotations or {})},
    )


def agent_pod(
    job: KubeJob,
    increment: str,
    index: int,
    *,
    place: PodPlace = ANYWHERE,
    avoid: Iterable[str] = (),
) -> Body:
    """Return the pod of one node of a job.

    Args:
        job: whose.
        increment: what it was asked for with: ``base``, ``x1`` ...
        index: which one of that.
        place: where it may go.
        avoid: names of nodes on which it must not run.
    """
    template = pod_template(job, increment)
    spec, meta = template["spec"], metadata_of(job, f"{job.name}-{increment}-{index}", AGENT)
    own = template["metadata"]
    meta["labels"] = {**own["labels"], **place.labels, INDEX_LABEL: str(index)}
    if annotations := {**own["annotations"], **place.annotations}:
        meta["annotations"] = annotations
    if place.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **place.node_selector}
    if place.tolerations:
        tolerations = spec.get("tolerations") or []
        spec["tolerations"] = [*tolerations, *map(dict, place.tolerations)]
    if place.gates:
        gates = [{"name": name} for name in place.gates]
        spec["schedulingGates"] = [*(spec.get("schedulingGates") or []), *gates]
    if names := sorted(avoid):
        _avoid(spec, names)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def pod_template(job: KubeJob, increment: str) -> Body:
    """Return what the pods of an increment have in common: the user's template, and the agent."""
    given = job.spec.pod_template
    if given is None:
        raise ConfigError(f"job {job.name} has no spec.podTemplate")
    template = given.model_dump(by_alias=True, exclude_unset=True)
    spec, meta = template["spec"], template.get("metadata") or {}
    mounts, volumes = volumes_of(job)
    _add_agent(job, spec, increment, mounts)
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        own = container.get("securityContext") or {}
        container["securityContext"] = {**CONTAINER_SECURITY, **own}
    spec["securityContext"] = {**POD_SECURITY, **(spec.get("securityContext") or {})}
    spec["restartPolicy"] = "Never"
    spec["terminationGracePeriodSeconds"] = grace_s(job)
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    volumes += [
        {"name": "pliant-run", "emptyDir": {}},
        {"name": "pliant-shm", "emptyDir": {"medium": "Memory"}},
    ]
    mounted = {mount["name"] for mount in _trainer(spec)["volumeMounts"]}
    volumes = [volume for volume in volumes if volume["name"] in mounted]
    spec["volumes"] = [*(spec.get("volumes") or []), *volumes]
    _set_priority(job, spec, increment)
    _set_placement(job, spec)
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k not in QUEUE_LABELS}
    return {
        "metadata": {
            "labels": {**labels, **labels_of(job, AGENT, increment)},
            "annotations": dict(meta.get("annotations") or {}),
        },
        "spec": spec,
    }


def grace_s(job: KubeJob) -> int:
    """Return how long a pod may take to go."""
    template = job.spec.pod_template
    given = None if template is None else template.spec.termination_grace_period_seconds
    if given is not None:
        return given
    return math.ceil(job.spec.elastic_policy.graceful_shutdown_timeout_in_seconds) + (
        BEFORE_THE_END_S
    )


def _trainer(spec: Body) -> Body:
    named = (one for one in spec["containers"] if one["name"] == TRAINER)
    found: Body = next(named, spec["containers"][0])
    return found


def _add_agent(job: KubeJob, spec: Body, increment: str, mounts: list[Body]) -> None:
    trainer, whole_s = _trainer(spec), grace_s(job)
    command = ["pliant", "agent", "--join", f"{address_of(job)}:{PORT}"]
    command += ["--token-file", f"{TOKEN_PLACE}/token", "--node", "$(POD_NAME)"]
    command += ["--devices", str(job.devices_per_pod), "--interface", "$(POD_IP)"]
    command += ["--label", f"increment={increment},{HOST}=$(NODE_NAME)"]
    command += ["--grace", f"{max(1, whole_s - BEFORE_THE_END_S)}s"]
    if job.spec.tls is not None:
        for what, file in TLS_FILES.items():
            command += [f"--tls-{what}", f"{TLS_PLACE}/{file}"]
    trainer["command"] = command
    ours = environment(("POD_IP", "POD_NAME", "NODE_NAME"))
    names = {variable["name"] for variable in ours}
    theirs = [one for one in trainer.get("env") or [] if one["name"] not in names]
    if all(one["name"] != "HOME" for one in theirs):  # the root of an image is not written to
        ours.append({"name": "HOME", "value": RUN_PLACE})
    trainer["env"] = [*ours, *theirs]
    own = trainer.get("volumeMounts") or []
    places = {mount["mountPath"] for mount in own}
    mounts = [
        *mounts,
        {"name": "pliant-run", "mountPath": RUN_PLACE},
        {"name": "pliant-shm", "mountPath": "/dev/shm"},  # noqa: S108 - 64 MB where nobody says
    ]
    added = [mount for mount in mounts if mount["mountPath"] not in places]
    trainer["volumeMounts"] = [*own, *added]
    security = trainer.get("securityContext") or {}
    trainer["securityContext"] = {"readOnlyRootFilesystem": True, **security}


def _set_priority(job: KubeJob, spec: Body, increment: str) -> None:
    """Give pods their class where no queue has one: the scheduler preempts then, pod by pod."""
    queue = job.spec.queue
    if queue is None or queue.name is not None:
        return
    name = queue.priority_class if increment == BASE else queue.increment_priority_class
    if name is not None:
        spec["priorityClassName"] = name


def _set_placement(job: KubeJob, spec: Body) -> None:
    rule = PlacementRule.of(job.spec.placement)
    if rule.how is Placement.FREE:
        return
    key = HOSTNAME if rule.label == HOST else rule.label
    alike = {"matchLabels": labels_of(job, AGENT)}
    if rule.how is Placement.SPREAD:
        spread = {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": alike,
        }
        spec["topologySpreadConstraints"] = [
            *(spec.get("topologySpreadConstraints") or []),
            spread,
        ]
        return
    near: Body = {"weight": 100, "podAffinityTerm": {"topologyKey": key, "labelSelector": alike}}
    affinity = spec.setdefault("affinity", {}).setdefault("podAffinity", {})
    affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append(near)


def _avoid(spec: Body, names: list[str]) -> None:
    other = {"key": HOSTNAME, "operator": "NotIn", "values": names}
    node = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = node.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.setdefault("nodeSelectorTerms", [{}]):  # any one of them suffices
        term.setdefault("matchExpressions", []).append(other)


def workload(job: KubeJob, increment: str, *, num_pods: int, priority: int | None = None) -> Body:
    """Return what asks Kueue for the pods of an increment.

    Args:
        job: whose.
        increment: ``base``, ``x1`` ...
        num_pods: how many.
        priority: the value of the WorkloadPriorityClass; None: the job names none for these.

    Raises:
        ConfigError: the job is in no queue.
    """
    queue = job.spec.queue
    if queue is None or queue.name is None:
        raise ConfigError(f"job {job.name} is in no queue")
    is_base = increment == BASE
    template = pod_template(job, increment)
    pods: Body = {"name": POD_SET, "count": num_pods, "template": template}
    if (request := _topology(template["metadata"]["annotations"])) is not None:
        pods["topologyRequest"] = request
    spec: Body = {
        "queueName": queue.name if is_base else queue.increments or queue.name,
        "podSets": [pods],
    }
    name = queue.priority_class if is_base else queue.increment_priority_class
    if name is not None and priority is not None:
        spec["priority"] = priority
        spec["priorityClassRef"] = {"group": KUEUE, "kind": "WorkloadPriorityClass", "name": name}
    meta = metadata_of(job, job.called(increment), AGENT, increment)
    return {"apiVersion": f"{KUEUE}/v1beta2", "kind": "Workload", "metadata": meta, "spec": spec}


def _topology(annotations: Mapping[str, str]) -> Body | None:
    found: Body = {name: annotations[key] for key, name in TOPOLOGY.items() if key in annotations}
    if annotations.get(UNCONSTRAINED) == "true":
        found["unconstrained"] = True
    if not found:
        return None
    if SLICE_SIZE in annotations:
        found["podSetSliceSize"] = int(annotations[SLICE_SIZE])
    return {**found, "podIndexLabel": INDEX_LABEL}
