"""The cluster itself: what the other tests rely on behaves as in a real one."""

from __future__ import annotations

import time

import pytest
from tests.cluster import bodies
from tests.cluster.api import ApiError, Object
from tests.cluster.bodies import config_map, container, pod, secret, service, shell, workload
from tests.cluster.cluster import Cluster, condition, is_deleted, phase

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def first(body: Object) -> Object:
    """Return the status of a pod's first container."""
    status: Object = body["status"]["containerStatuses"][0]
    return status


# --- a pod -----------------------------------------------------------------------------------


def test_a_container_has_the_user_files_and_variables_that_its_pod_says(
    cluster: Cluster, team: str
) -> None:
    cluster.apply(secret(team, "token", token="known"))
    cluster.apply(config_map(team, "job", **{"job.yaml": "a: 1"}))
    script = """
        id -u; stat -Lc %a /etc/token/token; cat /etc/token/token /etc/job/job.yaml; echo
        touch /nothing /tmp/nothing 2>/dev/null || echo read-only
        touch /run/own/file && echo own; echo $NODE $WHERE; hostname
        [ -s /var/run/secrets/kubernetes.io/serviceaccount/token ] && echo account
        pliant --version >/dev/null && echo pliant; grep -c NoNewPrivs:.1 /proc/self/status"""
    box = container(
        *("sh", "-c", script),
        env=[
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "WHERE", "value": "$(IP):7000"},
        ],
        volumeMounts=[
            {"name": "token", "mountPath": "/etc/token", "readOnly": True},
            {"name": "job", "mountPath": "/etc/job", "readOnly": True},
            {"name": "own", "mountPath": "/var/run/own"},
        ],
    )
    volumes = [
        {"name": "token", "secret": {"secretName": "token", "defaultMode": 0o400}},
        {"name": "job", "configMap": {"name": "job"}},
        {"name": "own", "emptyDir": {}},
    ]
    cluster.apply(pod(team, "one", box, volumes=volumes))

    cluster.wait_for("Pod", f"{team}/one", phase("Succeeded"))

    one = cluster.pod(f"{team}/one")
    expected = ["12345", "440", "knowna: 1", "read-only", "own", f"{one.node} {one.ip}:7000"]
    assert cluster.log(one.name).split("\n") == [*expected, "one", "account", "pliant", "1", ""]


def test_a_changed_config_map_shows_in_a_running_pod(cluster: Cluster, team: str) -> None:
    cluster.apply(config_map(team, "job", word="old"))
    script = "until grep new /etc/job/word; do sleep 0.1; done"
    box = container("sh", "-c", script, volumeMounts=[{"name": "job", "mountPath": "/etc/job"}])
    volumes = [{"name": "job", "configMap": {"name": "job"}}]
    cluster.apply(pod(team, "one", box, volumes=volumes))
    cluster.wait_for("Pod", f"{team}/one", phase("Running"))

    cluster.apply(config_map(team, "job", word="new"))

    cluster.wait_for("Pod", f"{team}/one", phase("Succeeded"))


def test_a_pod_waits_for_its_secret_and_a_claim_outlives_it(cluster: Cluster, team: str) -> None:
    cluster.claim(team, "kept")
    mounts = [{"name": "t", "mountPath": "/t"}, {"name": "kept", "mountPath": "/kept"}]
    volumes = [
        {"name": "t", "secret": {"secretName": "late"}},
        {"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}},
    ]
    for name in ("one", "two"):
        box = container("sh", "-c", "cat /kept/* ; cp /t/word /kept", volumeMounts=mounts)
        cluster.apply(pod(team, name, box, volumes=volumes))
        if name == "one":
            cluster.wait_for("Pod", f"{team}/one", lambda body: "nodeName" in body["spec"])
            cluster.apply(secret(team, "late", word="written"))
        cluster.wait_for("Pod", f"{team}/{name}", phase("Succeeded"))

    assert cluster.log(f"{team}/two") == "written"


def test_sigterm_then_the_grace_period_then_sigkill(cluster: Cluster, team: str) -> None:
    orderly = (
        "trap 'echo told; sleep 0.5; exit 0' TERM; touch /run/up; while :; do sleep 0.05; done"
    )
    for name, script in (("orderly", orderly), ("deaf", "trap '' TERM; sleep 1000")):
        cluster.apply(shell(team, name, script.replace("touch /run/up; ", "")))
        cluster.wait_for("Pod", f"{team}/{name}", phase("Running"))
    time.sleep(0.5)

    cluster.delete("Pod", f"{team}/orderly", grace_s=20)
    cluster.delete("Pod", f"{team}/deaf", grace_s=2)
    for name in ("orderly", "deaf"):
        cluster.wait_gone("Pod", f"{team}/{name}")

    took_s = {}
    for name in ("orderly", "deaf"):
        times = cluster.pod(f"{team}/{name}").times
        assert times.told_to_end is not None
        assert times.ended is not None
        took_s[name] = times.ended - times.told_to_end
    assert cluster.log(f"{team}/orderly") == "told\n"
    assert 0.4 < took_s["orderly"] < 15
    assert took_s["deaf"] >= 1.9


def test_a_container_is_restarted_as_its_pod_says(cluster: Cluster, team: str) -> None:
    box = container(
        *("sh", "-c", "echo >> /kept/n; [ $(wc -l < /kept/n) -ge 3 ] && exit 0; exit 7"),
        volumeMounts=[{"name": "kept", "mountPath": "/kept"}],
    )
    volumes = [{"name": "kept", "emptyDir": {}}]
    cluster.apply(pod(team, "one", box, restartPolicy="OnFailure", volumes=volumes))

    body = cluster.wait_for("Pod", f"{team}/one", phase("Succeeded"))

    assert first(body)["restartCount"] == 2
    assert first(body)["lastState"]["terminated"]["exitCode"] == 7


def test_an_image_that_is_missing_and_a_container_out_of_memory_are_told(
    cluster: Cluster, team: str
) -> None:
    cluster.apply(pod(team, "none", container("sh", image="missing/image:1")))
    cluster.apply(shell(team, "big", "sleep 1000"))
    cluster.wait_for("Pod", f"{team}/big", phase("Running"))

    cluster.run_out_of_memory(f"{team}/big")

    body = cluster.wait_for("Pod", f"{team}/big", phase("Failed"))
    assert first(body)["state"]["terminated"]["reason"] == "OOMKilled"
    assert first(body)["state"]["terminated"]["exitCode"] == 137
    cluster.wait_for(
        *("Pod", f"{team}/none"),
        lambda one: first(one)["state"].get("waiting", {}).get("reason") == "ImagePullBackOff",
    )


def test_pods_find_each_other_by_name_and_the_api_server_finds_them(
    cluster: Cluster, team: str
) -> None:
    serve = "python -m http.server 8000 --directory /etc/job"
    box = container(
        *("sh", "-c", serve),
        readinessProbe={"tcpSocket": {"port": 8000}},
        volumeMounts=[{"name": "job", "mountPath": "/etc/job"}],
    )
    cluster.apply(config_map(team, "job", word="found"))
    cluster.apply(service(team, "web", 8000, app="web"))
    volumes = [{"name": "job", "configMap": {"name": "job"}}]
    cluster.apply(pod(team, "web", box, volumes=volumes))
    cluster.wait_for("Pod", f"{team}/web", condition("Ready"))

    ask = f"import urllib.request as u; print(u.urlopen('http://web.{team}.svc:8000/word').read())"
    cluster.apply(pod(team, "asks", container("python", "-c", ask)))
    cluster.wait_for("Pod", f"{team}/asks", phase("Succeeded"))

    assert cluster.log(f"{team}/asks") == "b'found'\n"
    assert cluster.http.get(f"http://{cluster.pod(f'{team}/web').ip}:8000/word").text == "found"
    proxied = f"{cluster.admin.path('Service', f'{team}/web:8000')}/proxy/word"
    cluster.wait(lambda: "found" in str(cluster.admin.ask("GET", proxied)), "the proxy answers")


def test_what_a_service_account_may_do_is_what_its_pod_may(cluster: Cluster, team: str) -> None:
    script = "kubectl get configmaps 2>&1 | tail -n 1; kubectl get pods 2>&1 | tail -n 1"
    kubectl = str(bodies.kubectl())
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    meta = {"namespace": team, "name": "reader"}
    cluster.apply({**account, "metadata": meta})
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
    group = "rbac.authorization.k8s.io"
    cluster.apply({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": meta, "rules": rules})
    cluster.apply(
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": team}],
        }
    )
    box = container("sh", "-c", script.replace("kubectl", kubectl))
    cluster.apply(pod(team, "one", box, serviceAccountName="reader"))

    cluster.wait_for("Pod", f"{team}/one", phase("Succeeded"))

    listed, refused = cluster.log(f"{team}/one").splitlines()
    assert listed.startswith("kube-root-ca.crt")
    assert "Forbidden" in refused


# --- nodes -----------------------------------------------------------------------------------


def test_a_dead_node_is_noticed_and_its_pods_stay_until_somebody_forces(
    cluster: Cluster, team: str
) -> None:
    cluster.add_node("node-lost")
    cluster.apply(shell(team, "one", "sleep 1000", nodeName="node-lost"))
    cluster.wait_for("Pod", f"{team}/one", phase("Running"))

    cluster.kill_node("node-lost")

    cluster.wait_for("Node", "node-lost", condition("Ready", "Unknown"))
    cluster.delete("Pod", f"{team}/one")
    time.sleep(1)
    assert is_deleted(cluster.get("Pod", f"{team}/one"))  # and it is still there
    cluster.delete("Pod", f"{team}/one", grace_s=0)
    cluster.wait_gone("Pod", f"{team}/one")
    cluster.kubelet.leave("node-lost")


def test_a_node_that_is_back_tells_that_its_pods_have_died(cluster: Cluster, team: str) -> None:
    cluster.apply(shell(team, "one", "sleep 1000", nodeName="node-b"))
    cluster.wait_for("Pod", f"{team}/one", phase("Running"))

    cluster.kill_node("node-b")
    cluster.revive_node("node-b")

    body = cluster.wait_for("Pod", f"{team}/one", phase("Failed"))
    assert first(body)["state"]["terminated"]["exitCode"] == 137


def test_taint_cordon_and_drain(cluster: Cluster, team: str) -> None:
    for name in ("one", "two"):
        cluster.apply(shell(team, name, "exec sleep 1000", terminationGracePeriodSeconds=1))
        cluster.wait_for("Pod", f"{team}/{name}", phase("Running"))
    one, two = (cluster.pod(f"{team}/{name}").node for name in ("one", "two"))

    cluster.taint(one, "spot/ends-soon", "NoExecute")
    if two != one:
        cluster.drain(two)

    for name in ("one", "two"):
        cluster.wait_gone("Pod", f"{team}/{name}")
    (node,) = {"node-a", "node-b", "node-c"} - {one, two} or [""]
    cluster.apply(shell(team, "three", "sleep 1000"))
    cluster.wait_for("Pod", f"{team}/three", phase("Running"))
    assert cluster.pod(f"{team}/three").node == node


# --- the control plane -----------------------------------------------------------------------


def test_what_happens_while_the_api_server_is_away_is_told_afterwards(
    cluster: Cluster, team: str
) -> None:
    cluster.apply(shell(team, "one", "sleep 3; echo over"))
    cluster.wait_for("Pod", f"{team}/one", phase("Running"))

    with cluster.no_api():
        time.sleep(4)

    cluster.wait_for("Pod", f"{team}/one", phase("Succeeded"))


def test_users_may_what_they_may_and_kubectl_works(cluster: Cluster, team: str) -> None:
    with pytest.raises(ApiError, match="403"):
        cluster.api("user").get("Pod", f"{team}/none")

    assert "Ready" in cluster.kubectl("get", "nodes")
    assert "forbidden" in cluster.kubectl("get", "pods", "-n", team, user="user", check=False)


# --- Kueue -----------------------------------------------------------------------------------


def test_an_urgent_workload_evicts_the_newest_increment_only(cluster: Cluster, team: str) -> None:
    cluster.queue(team, [team], cpus=4)
    seen = cluster.see("Workload", team)
    for name, count, priority in (("base", 2, 1000), ("x1", 1, 101), ("x2", 1, 100)):
        cluster.apply(workload(team, team, name, count, priority))
        cluster.wait_for("Workload", f"{team}/{name}", condition("Admitted"))

    began_s = time.monotonic()
    cluster.apply(workload(team, team, "urgent", 1, priority=500))
    evicted = seen.until("x2", lambda one: condition("Evicted")(one.body), after_s=began_s)
    cluster.delete("Workload", f"{team}/x2")
    admitted = seen.until("urgent", lambda one: condition("Admitted")(one.body))

    seen.close()
    (why,) = [c for c in evicted.body["status"]["conditions"] if c["type"] == "Evicted"]
    assert why["reason"] == "Preempted"
    assert evicted.at_s < admitted.at_s
    for name in ("base", "x1"):
        assert not condition("Evicted")(cluster.get("Workload", f"{team}/{name}"))
