"""Objects that tests of the cluster make by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cluster.api import Object
from tests.cluster.building import built

RESTRICTED_POD: Object = {
    "runAsNonRoot": True,
    "runAsUser": 12345,
    "runAsGroup": 12345,
    "fsGroup": 12345,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def container(*command: str, cpu: str = "100m", **more: Any) -> Object:
    """Return a container that a restricted namespace takes."""
    return {
        "name": "main",
        "image": "none",
        "command": list(command),
        "securityContext": RESTRICTED,
        "resources": {"requests": {"cpu": cpu}},
        **more,
    }


def pod(
    namespace: str, name: str, box: Object, labels: dict[str, str] | None = None, **spec: Any
) -> Object:
    """Return a pod of one container, labelled ``app: name``."""
    meta = {"name": name, "namespace": namespace, "labels": {"app": name, **(labels or {})}}
    whole = {
        "restartPolicy": "Never",
        "securityContext": RESTRICTED_POD,
        "containers": [box],
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": whole}


def shell(namespace: str, name: str, script: str, **spec: Any) -> Object:
    """Return a pod that runs a shell's script."""
    return pod(namespace, name, container("sh", "-c", script), **spec)


def service(namespace: str, name: str, port: int, **selector: str) -> Object:
    """Return a headless Service; pods need not be ready."""
    spec: Object = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector,
        "ports": [{"name": "main", "port": port}],
    }
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def config_map(namespace: str, name: str, **data: str) -> Object:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def secret(namespace: str, name: str, **data: str) -> Object:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data}


def workload(namespace: str, queue: str, name: str, count: int, priority: int) -> Object:
    """Return a Workload of so many processors."""
    box = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [box]}}
    spec: Object = {
        "queueName": queue,
        "priority": priority,
        "podSets": [{"name": "replicas", "count": count, "template": template}],
    }
    meta = {"name": name, "namespace": namespace}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": meta,
        "spec": spec,
    }


def kubectl() -> Path:
    """Return where kubectl is, for pods as well."""
    return built() / "kubectl"


def elastic_job(namespace: str, queue: str, name: str, script: list[str], **policy: Any) -> Object:
    """Return a job of replicas of one processor; ``policy`` is its elasticPolicy.

    How long its steps wait is in the ConfigMap ``NAME-pace``, key ``pace``, and may change.
    """
    box = {
        "name": "trainer",
        "image": "none",
        "env": [{"name": "PACE", "value": "/etc/pace/pace"}],
        "resources": {"requests": {"cpu": "1"}},
        "volumeMounts": [{"name": "pace", "mountPath": "/etc/pace"}],
    }
    volumes = [{"name": "pace", "configMap": {"name": f"{name}-pace"}}]
    classes = {"priorityClass": "minimum", "incrementPriorityClass": "increments"}
    spec: Object = {
        "command": script,
        "elasticPolicy": policy,
        "queue": {"name": queue, **classes},
        "podTemplate": {"spec": {"containers": [box], "volumes": volumes}},
    }
    meta = {"name": name, "namespace": namespace}
    version = "pliant.dev/v1alpha1"
    return {"apiVersion": version, "kind": "ElasticJob", "metadata": meta, "spec": spec}


def priority_class(name: str, value: int) -> Object:
    """Return a priority class of Kueue's."""
    version = "kueue.x-k8s.io/v1beta2"
    meta = {"name": name}
    return {
        "apiVersion": version,
        "kind": "WorkloadPriorityClass",
        "metadata": meta,
        "value": value,
    }
