"""What the objects around a job allow, and what its coordinator is started with."""

from __future__ import annotations

from typing import Any

import yaml
from tests.kube.jobs import UID, job

from pliant.kube import bodies
from pliant.spec.job import ElasticJob
from pliant.spec.load import parse

TLS = {"secretName": "gpt-tls"}


def everything() -> list[dict[str, Any]]:
    found = job()
    return [
        *bodies.fixed_objects(found, operator_namespace="pliant-system"),
        bodies.token(found, "s" * 32),
        bodies.register(found),
        bodies.coordinator_pod(found, image="pliant:1"),
    ]


def test_every_object_goes_with_its_job() -> None:
    owner = {
        "apiVersion": "pliant.dev/v1alpha1",
        "kind": "ElasticJob",
        "name": "gpt",
        "uid": UID,
        "controller": True,
        "blockOwnerDeletion": True,
    }

    for body in everything():
        assert body["metadata"]["ownerReferences"] == [owner]
        assert body["metadata"]["namespace"] == "team-a"
        assert body["metadata"]["labels"]["pliant.dev/job"] == "gpt"
    assert [f"{body['kind']}/{body['metadata']['name']}" for body in everything()] == [
        "Service/gpt-coordinator",
        "ConfigMap/gpt-job",
        "ServiceAccount/gpt-coordinator",
        "Role/gpt-coordinator",
        "RoleBinding/gpt-coordinator",
        "NetworkPolicy/gpt",
        "Secret/gpt-token",
        "ConfigMap/gpt-register",
        "Pod/gpt-coordinator",
    ]


def test_a_coordinator_may_touch_its_register_only() -> None:
    _, role, _ = bodies.account(job())

    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["gpt-register"],
            "verbs": ["get", "update", "watch"],
        }
    ]


def test_an_applied_register_says_nothing_of_what_the_coordinator_wrote() -> None:
    assert bodies.register(job()).keys() == {"apiVersion", "kind", "metadata"}


def test_a_coordinator_reads_a_job_file_without_what_is_the_clusters() -> None:
    found = job(replicas=4, suspend=True, tls=TLS, storage={"claim": "runs"}, maxRestarts=3)

    text = bodies.job_file(found)["data"]["job.yaml"]

    read = parse(ElasticJob, text, source="job.yaml")
    assert yaml.safe_load(text)["spec"].keys() == {
        *("command", "elasticPolicy", "startReplicas", "tls", "maxRestarts"),
    }
    assert (read.metadata.name, read.spec.start_replicas, read.spec.max_restarts) == ("gpt", 4, 3)
    assert read.spec.tls is not None
    assert read.spec.tls.key == "/etc/pliant/tls/tls.key"


def test_a_coordinator_is_told_how_the_size_changes() -> None:
    text = bodies.job_file(job(mode="restart"))["data"]["job.yaml"]

    assert parse(ElasticJob, text, source="job.yaml").spec.mode == "restart"


def test_a_coordinator_listens_where_its_certificate_names_it() -> None:
    plain = bodies.coordinator_pod(job(), image="pliant:1")["spec"]
    secret = bodies.coordinator_pod(job(tls=TLS), image="pliant:1")["spec"]

    assert plain["containers"][0]["command"] == [
        *("pliant", "coordinator", "--listen", "$(POD_IP):7000"),
        *("--name", "gpt", "--out", "/var/run/pliant/run"),
        *("--token-file", "/etc/pliant/token/token", "--register", "configmap:gpt-register"),
        "/etc/pliant/job/job.yaml",
    ]
    command = secret["containers"][0]["command"]
    assert command[3] == "gpt-coordinator.team-a.svc:7000"
    assert command[-2] == "--tls-any-node"
    tls = {"name": "pliant-tls", "secret": {"secretName": "gpt-tls", "defaultMode": 0o400}}
    assert tls in secret["volumes"]
    assert tls not in plain["volumes"]


def test_the_files_of_a_run_are_kept_where_the_job_says() -> None:
    def kept(**storage: str) -> tuple[Any, Any]:
        spec = bodies.coordinator_pod(job(storage=storage or None), image="i")["spec"]
        return spec["volumes"][0], spec["containers"][0]["volumeMounts"][0]

    here = {"name": "run", "mountPath": "/var/run/pliant"}
    assert kept() == ({"name": "run", "emptyDir": {}}, here)
    assert kept(sizeLimit="2Gi") == ({"name": "run", "emptyDir": {"sizeLimit": "2Gi"}}, here)
    assert kept(claim="runs") == (
        {"name": "run", "persistentVolumeClaim": {"claimName": "runs"}},
        {**here, "subPath": f"gpt-{UID[:8]}"},
    )


def test_only_the_job_itself_and_the_operator_reach_its_pods() -> None:
    policy = bodies.network_policy(job(), operator_namespace="pliant-system")["spec"]

    inside, operator = policy["ingress"]
    assert policy["podSelector"] == inside["from"][0]["podSelector"]
    assert operator["ports"] == [{"port": 7000, "protocol": "TCP"}]
    assert operator["from"][0]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "pliant-system"
    }
