"""What becomes of a user's pod template, and what Kueue is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kube.jobs import CPU, job

from pliant.core.errors import ConfigError
from pliant.kube import pods
from pliant.kube.pods import PodPlace

Spec = dict[str, Any]


def template(spec: Spec | None = None, **container: Any) -> Spec:
    trainer = {"name": "main", "image": "gpt:1", "resources": CPU, **container}
    return {"spec": {"containers": [trainer], **(spec or {})}}


def agent(**of_job: Any) -> Spec:
    body: Spec = pods.agent_pod(job(**of_job), "x1", 3)["spec"]
    return body


def test_the_agent_runs_in_the_users_container_under_restricted_security() -> None:
    body = pods.agent_pod(job(), "x1", 3)

    meta, spec = body["metadata"], body["spec"]
    (trainer,) = spec["containers"]
    assert (meta["name"], meta["labels"]) == (
        "gpt-x1-3",
        {
            "pliant.dev/job": "gpt",
            "pliant.dev/part": "agent",
            "pliant.dev/increment": "x1",
            "pliant.dev/index": "3",
        },
    )
    assert trainer["image"] == "registry.example/gpt:1"
    assert trainer["command"] == [
        *("pliant", "agent", "--join", "gpt-coordinator.team-a.svc:7000"),
        *("--token-file", "/etc/pliant/token/token", "--node", "$(POD_NAME)", "--devices", "1"),
        *("--interface", "$(POD_IP)", "--label", "increment=x1,host=$(NODE_NAME)"),
        *("--grace", "30s"),
    ]
    assert [one["name"] for one in trainer["env"]] == ["POD_IP", "POD_NAME", "NODE_NAME", "HOME"]
    assert trainer["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Never", 35)
    token = next(one for one in spec["volumes"] if one["name"] == "pliant-token")
    assert token["secret"] == {"secretName": "gpt-token", "defaultMode": 256}
    mounted = {one["mountPath"]: one["name"] for one in trainer["volumeMounts"]}
    assert mounted == {
        "/tmp": "pliant-tmp",
        "/etc/pliant/token": "pliant-token",
        "/var/run/pliant": "pliant-run",
        "/dev/shm": "pliant-shm",
    }


def test_what_the_template_says_counts_where_nothing_of_ours_depends_on_it() -> None:
    own = template(
        {
            "terminationGracePeriodSeconds": 90,
            "securityContext": {"runAsUser": 7, "fsGroup": 7},
            "volumes": [{"name": "big", "emptyDir": {"medium": "Memory"}}],
            "restartPolicy": "Always",
            "hostNetwork": True,
        },
        env=[{"name": "HOME", "value": "/home/me"}, {"name": "POD_IP", "value": "wrong"}],
        securityContext={"readOnlyRootFilesystem": False},
        volumeMounts=[{"name": "big", "mountPath": "/dev/shm"}],
    )

    spec = agent(podTemplate=own)

    (trainer,) = spec["containers"]
    assert spec["hostNetwork"] is True
    assert spec["restartPolicy"] == "Never"
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]) == (
        7,
        1000,
    )
    assert trainer["command"][-1] == "85s"
    assert trainer["securityContext"]["readOnlyRootFilesystem"] is False
    assert [one["name"] for one in spec["volumes"]] == [
        *("big", "pliant-tmp", "pliant-token", "pliant-run")
    ]
    names = [one["name"] for one in trainer["env"]]
    assert names == ["POD_IP", "POD_NAME", "NODE_NAME", "HOME"]
    assert trainer["env"][0].keys() == {"name", "valueFrom"}


def test_the_container_named_trainer_comes_before_the_first_one() -> None:
    both = {"containers": [{"name": "proxy", "args": ["x"]}, {"name": "trainer"}]}

    proxy, trainer = agent(podTemplate={"spec": both})["containers"]

    assert proxy["args"] == ["x"]
    assert trainer["command"][:2] == ["pliant", "agent"]
    assert proxy["securityContext"]["allowPrivilegeEscalation"] is False


def test_each_pod_of_a_replica_has_its_part_of_the_workers() -> None:
    spec = agent(workersPerReplica=16, hostsPerReplica=2, tls={"secretName": "s"})

    command = spec["containers"][0]["command"]
    assert command[command.index("--devices") + 1] == "8"
    assert command[-6:] == [
        *("--tls-ca", "/etc/pliant/tls/ca.crt", "--tls-certificate", "/etc/pliant/tls/tls.crt"),
        *("--tls-key", "/etc/pliant/tls/tls.key"),
    ]


def test_pods_spread_or_pack_by_the_label_that_the_job_names() -> None:
    spread = agent(placement="spread:topology.kubernetes.io/zone")["topologySpreadConstraints"]
    packed = agent(placement="pack")["affinity"]["podAffinity"]

    alike = {"matchLabels": {"pliant.dev/job": "gpt", "pliant.dev/part": "agent"}}
    assert spread == [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": alike,
        }
    ]
    assert packed["preferredDuringSchedulingIgnoredDuringExecution"] == [
        {
            "weight": 100,
            "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": alike},
        }
    ]


def test_without_a_queue_the_scheduler_gets_the_priority_of_the_increment() -> None:
    classes = {"priorityClass": "high", "incrementPriorityClass": "low"}

    base = pods.agent_pod(job(queue=classes), "base", 0)["spec"]

    assert base["priorityClassName"] == "high"
    assert agent(queue=classes)["priorityClassName"] == "low"
    assert "priorityClassName" not in agent()


def test_a_workload_asks_for_the_pods_of_one_increment() -> None:
    queue = {"name": "q", "increments": "q-borrowed", "incrementPriorityClass": "low"}
    annotated = {**template(), "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}}
    found = job(queue=queue, podTemplate=annotated)

    base = pods.workload(found, "base", num_pods=2)
    more = pods.workload(found, "x1", num_pods=4, priority=-5)

    assert (base["metadata"]["name"], base["spec"]["queueName"]) == ("gpt-base", "q")
    assert base["spec"].keys() == {"queueName", "podSets"}
    assert more["metadata"]["labels"]["pliant.dev/increment"] == "x1"
    assert (more["spec"]["queueName"], more["spec"]["priority"]) == ("q-borrowed", -5)
    assert more["spec"]["priorityClassRef"] == {
        "group": "kueue.x-k8s.io",
        "kind": "WorkloadPriorityClass",
        "name": "low",
    }
    (pod_set,) = more["spec"]["podSets"]
    assert (pod_set["name"], pod_set["count"]) == ("main", 4)
    assert pod_set["template"]["spec"]["containers"][0]["resources"] == CPU
    labels = pod_set["template"]["metadata"]["labels"]
    assert not any(name.startswith("kueue.x-k8s.io") for name in labels)


def test_a_request_for_topology_is_passed_through() -> None:
    asked = {
        "kueue.x-k8s.io/podset-preferred-topology": "rack",
        "kueue.x-k8s.io/podset-slice-required-topology": "host",
        "kueue.x-k8s.io/podset-slice-size": "2",
    }
    found = job(podTemplate={**template(), "metadata": {"annotations": asked}})

    (pod_set,) = pods.workload(found, "base", num_pods=2)["spec"]["podSets"]

    assert pod_set["topologyRequest"] == {
        "preferred": "rack",
        "podSetSliceRequiredTopology": "host",
        "podSetSliceSize": 2,
        "podIndexLabel": "pliant.dev/index",
    }


FLAVORS: dict[str, Any] = {
    "spot": {
        "spec": {
            "nodeLabels": {"lifecycle": "spot"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
        }
    },
    "plain": {"spec": {}},
}


def admitted(**status: Any) -> dict[str, Any]:
    assignment = {"name": "main", "flavors": {"cpu": "plain", "nvidia.com/gpu": "spot"}, **status}
    update = {
        "name": "main",
        "nodeSelector": {"provisioned": "p1"},
        "tolerations": [{"key": "new"}],
        "annotations": {"consumes": "p1"},
        "labels": {"of": "p1"},
    }
    return {
        "metadata": {"name": "gpt-x1"},
        "spec": {"podSets": [{"name": "main"}]},
        "status": {
            "admission": {"podSetAssignments": [assignment]},
            "admissionChecks": [{"podSetUpdates": [update, {"name": "other"}]}, {}],
        },
    }


def test_pods_go_where_flavors_and_admission_checks_send_them() -> None:
    place = pods.assigned(admitted(), FLAVORS)

    body = pods.agent_pod(job(), "x1", 0, place=place, avoid=["b", "a"])
    assert body["spec"]["nodeSelector"] == {"lifecycle": "spot", "provisioned": "p1"}
    assert body["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}, {"key": "new"}]
    assert body["metadata"]["annotations"] == {"consumes": "p1"}
    assert body["metadata"]["labels"]["of"] == "p1"
    (term,) = body["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    (other,) = term["matchExpressions"]
    assert (other["operator"], other["values"]) == ("NotIn", ["a", "b"])
    assert "schedulingGates" not in body["spec"]


def test_kueue_may_choose_the_node_of_each_pod() -> None:
    place = pods.assigned(admitted(topologyAssignment={"levels": ["host"], "slices": []}), FLAVORS)

    body = pods.agent_pod(job(), "x1", 0, place=place)

    assert body["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    assert body["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "main"
    assert body["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == "gpt-x1"
    assert body["metadata"]["annotations"]["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"


def test_a_flavor_that_is_gone_sends_no_pod_anywhere() -> None:
    with pytest.raises(ConfigError, match="ResourceFlavor spot, which does not exist"):
        pods.assigned(admitted(), {"plain": {}})

    assert pods.assigned({"metadata": {}, "spec": {}}, {}) == PodPlace()
