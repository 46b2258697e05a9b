"""A job of a cluster for tests: its manifest, and what the API server adds."""

from __future__ import annotations

from typing import Any

from pliant.kube.job import KubeJob, read_job

UID = "0b6b9a3e-7f6d-4f0e-9d0c-2f1d4b8f6a11"


def manifest(name: str = "gpt", **spec: Any) -> dict[str, Any]:
    """Return a job as people write it; ``spec`` replaces fields, None removes one."""
    trainer = {"name": "trainer", "image": "registry.example/gpt:1", "resources": CPU}
    fields = {
        "command": ["train.py", "--steps", "900"],
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 10},
        "podTemplate": {"spec": {"containers": [trainer]}},
        "queue": {
            "name": "research",
            "priorityClass": "high",
            "incrementPriorityClass": "low",
        },
        **spec,
    }
    return {
        "apiVersion": "pliant.dev/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


CPU = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}


def job(name: str = "gpt", **spec: Any) -> KubeJob:
    """Return the same as it is read."""
    given = manifest(name, **spec)
    return read_job({**given, "metadata": {**given["metadata"], "uid": UID}})
