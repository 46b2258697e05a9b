"""What queues do to a job, live: sizes, loans, neighbours, preemption of the base, and faults."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.certificates import Authority
from tests.cluster.api import Object
from tests.cluster.bodies import config_map, container, elastic_job, pod, secret, workload
from tests.cluster.cluster import Cluster, condition
from tests.cluster.test_scenario import (
    PATIENCE_S,
    audit,
    ended,
    increments,
    trains_with,
)
from tests.cluster.test_training import SCRIPT, digests, static_digest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

STEPS = 600
FOREVER = 1_000_000
"""Steps of a job that does not end by itself."""

QUEUES = "kueue.x-k8s.io"


def a_job(cluster: Cluster, team: str, name: str, steps: int, pace: float, **policy: Any) -> Object:
    """Return a job that is not there yet; its pace is."""
    cluster.apply(config_map(team, f"{name}-pace", pace=str(pace)))
    return elastic_job(team, team, name, [str(SCRIPT), str(steps)], **policy)


def set_quota(cluster: Cluster, name: str, cpus: int) -> None:
    spec = cluster.get("ClusterQueue", name)["spec"]
    spec["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = str(cpus)
    cluster.patch("ClusterQueue", name, {"spec": {"resourceGroups": spec["resourceGroups"]}})


def says(cluster: Cluster, job: str, *words: str, where: str = "") -> Object:
    """Return the job once its reason, or the message of a condition, has all these words."""

    def is_so(body: Object) -> bool:
        status = body.get("status", {})
        conditions = {one["type"]: one["message"] for one in status.get("conditions", [])}
        said = conditions.get(where, "") if where else status.get("reason", "")
        return all(word in said for word in words)

    return cluster.wait_for("ElasticJob", job, is_so, PATIENCE_S)


def stays(cluster: Cluster, is_so: Callable[[], bool], what: str, for_s: float) -> None:
    """Expect that something is so for a while."""
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        assert is_so(), f"no more: {what}\n{cluster.story()}"
        time.sleep(0.2)


def finish(cluster: Cluster, job: str, steps: int = STEPS) -> None:
    """Let a job end, and expect the state that the script alone ends with."""
    team, name = job.split("/")
    cluster.apply(config_map(team, f"{name}-pace", pace="0"))
    done = cluster.wait_for("ElasticJob", job, ended, within_s=PATIENCE_S)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert digests(cluster, team) == {static_digest(steps)}


# --- sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "quota", "sizes"),
    [
        pytest.param({"replicaDiscreteValues": [1, 2, 4]}, 3, (2, 4), id="discrete"),
        pytest.param({"replicaIncrementStep": 2}, 4, (3, 5), id="steps"),
    ],
)
def test_a_job_has_only_sizes_that_its_policy_allows(
    cluster: Cluster, team: str, operator: str, policy: Object, quota: int, sizes: tuple[int, int]
) -> None:
    job = f"{team}/gpt"
    cluster.queue(team, [team], cpus=quota)
    bounds = {"minReplicas": 1, "maxReplicas": sizes[-1]}
    cluster.apply(a_job(cluster, team, "gpt", STEPS, 0.3, **bounds, **policy))
    trains_with(cluster, job, sizes[0])
    says(cluster, job, "x2 waits for admission")
    set_quota(cluster, team, quota + 1)
    trains_with(cluster, job, sizes[1])
    finish(cluster, job)
    audit(cluster, job)


# --- other queues, and others in a queue --------------------------------------------------------


def test_increments_borrow_from_a_queue_whose_owner_takes_its_own_back(
    cluster: Cluster, team: str, operator: str
) -> None:
    job, more, owner = f"{team}/gpt", f"{team}-more", f"{team}-owner"
    for name, cpus in ((team, 1), (more, 0), (owner, 2)):
        cluster.queue(name, [team], cpus=cpus, cohortName=team)
    body = a_job(cluster, team, "gpt", STEPS, 0.3, minReplicas=1, maxReplicas=4)
    body["spec"]["queue"]["increments"] = more
    cluster.apply(body)
    trains_with(cluster, job, 3)
    cluster.apply(workload(team, owner, "own", 2, priority=0))
    cluster.wait_for("Workload", f"{team}/own", condition("Admitted"), within_s=PATIENCE_S)
    trains_with(cluster, job, 1)
    cluster.delete("Workload", f"{team}/own")
    trains_with(cluster, job, 3)
    finish(cluster, job)
    audit(cluster, job)


def test_two_jobs_share_a_queue_and_leave_each_other_in_peace(
    cluster: Cluster, team: str, operator: str
) -> None:
    names, quota = ("one", "two"), 4
    cluster.queue(team, [team], cpus=quota)
    for name in names:
        cluster.apply(a_job(cluster, team, name, FOREVER, 0.3, minReplicas=1, maxReplicas=4))
    for name in names:
        cluster.wait_for("ElasticJob", f"{team}/{name}", running, PATIENCE_S)
    cluster.wait(lambda: len(increments(cluster, team)) == quota, "all is given", PATIENCE_S)
    time.sleep(10)

    seen = {kind: cluster.see(kind, team) for kind in ("Workload", "ElasticJob", "Event", "Pod")}
    cluster.wait(lambda: any(one.changes for one in seen.values()), "something is seen")
    time.sleep(5)
    before = {kind: len(one.changes) for kind, one in seen.items()}
    time.sleep(60)
    changes = [c for kind, one in seen.items() for c in one.changes[before[kind] :]]
    for one in seen.values():
        one.close()
    assert [_line(change.body) for change in changes] == []
    assert {name.split("-")[0] for name in increments(cluster, team)} == set(names)


def running(body: Object) -> bool:
    return bool(body.get("status", {}).get("phase") == "Running")


def _line(body: Object) -> str:
    said = body.get("note") or body.get("message") or body.get("status")
    return f"{body.get('kind')} {body['metadata']['name']}: {said}"


# --- the base ---------------------------------------------------------------------------------


def with_checkpoints(cluster: Cluster, body: Object) -> Object:
    """Let a job keep its checkpoints, and the files of its run, in a volume."""
    team = body["metadata"]["namespace"]
    cluster.claim(team, "kept")
    spec = body["spec"]["podTemplate"]["spec"]
    claim = {"persistentVolumeClaim": {"claimName": "kept"}}
    spec["volumes"].append({"name": "kept", **claim})
    spec["containers"][0]["volumeMounts"].append({"name": "kept", "mountPath": "/kept"})
    spec["containers"][0]["env"].append({"name": "CHECKPOINTS", "value": "/kept/checkpoints"})
    return body


def test_a_preempted_base_goes_on_at_another_size(
    cluster: Cluster, team: str, operator: str
) -> None:
    job = f"{team}/gpt"
    cluster.queue(team, [team], cpus=3)
    body = a_job(cluster, team, "gpt", STEPS, 0.3, minReplicas=1, maxReplicas=3)
    cluster.apply(with_checkpoints(cluster, body))
    trains_with(cluster, job, 3)
    register = cluster.get("ConfigMap", f"{job}-register")["metadata"]["uid"]

    cluster.apply(workload(team, team, "vital", 3, priority=2000))
    cluster.wait_for("Workload", f"{team}/vital", condition("Admitted"), within_s=PATIENCE_S)
    suspended = says(cluster, job, f"the base was preempted by {team}/vital")
    assert suspended["status"]["phase"] == "Suspended"
    assert condition("Requeued")(cluster.get("Workload", f"{job}-base"))
    cluster.wait(lambda: not cluster.objects("Pod", team), "no pod is left")
    set_quota(cluster, team, 2)
    cluster.delete("Workload", f"{team}/vital")

    cluster.wait_for("ElasticJob", job, running, PATIENCE_S)
    trains_with(cluster, job, 2)
    assert cluster.get("ConfigMap", f"{job}-register")["metadata"]["uid"] == register
    assert "step 0" not in cluster.log(f"{job}-coordinator").rpartition("suspend")[2]
    finish(cluster, job)


# --- quota, readiness ---------------------------------------------------------------------------


def test_a_job_whose_queue_shrinks_gives_back_and_asks_within_what_is_left(
    cluster: Cluster, team: str, operator: str
) -> None:
    job = f"{team}/gpt"
    cluster.queue(team, [team], cpus=3)
    cluster.apply(a_job(cluster, team, "gpt", STEPS, 0.3, minReplicas=1, maxReplicas=3))
    trains_with(cluster, job, 3)
    set_quota(cluster, team, 2)
    cluster.apply(workload(team, team, "urgent", 1, priority=500))
    cluster.wait_for("Workload", f"{team}/urgent", condition("Admitted"), within_s=PATIENCE_S)
    trains_with(cluster, job, 1)
    cluster.delete("Workload", f"{team}/urgent")
    trains_with(cluster, job, 2)
    says(cluster, job, "x2 waits for admission", "insufficient")
    finish(cluster, job)
    audit(cluster, job)


def test_increments_whose_pods_do_not_get_ready_are_taken_back_and_asked_for_again(
    cluster: Cluster, team: str, operator: str, fast: Object
) -> None:
    job = f"{team}/gpt"
    cluster.plane.restart_kueue(waitForPodsReady={"timeout": "20s"})
    try:
        cluster.queue(team, [team], cpus=2)
        body = a_job(cluster, team, "gpt", STEPS, 0.3, minReplicas=1, maxReplicas=2)
        body["spec"]["podTemplate"]["spec"]["nodeSelector"] = fast
        cluster.apply(kubernetes_class("minimum", 1000))
        cluster.apply(taker(team, "taker", "6500m", "minimum", nodeSelector=fast))
        seen = cluster.see("Workload", team)
        cluster.apply(body)
        cluster.wait_for("ElasticJob", job, running, PATIENCE_S)
        seen.until("gpt-x1", lambda one: _evicted_for(one.body) == "PodsReadyTimeout")
        cluster.wait_gone("Workload", f"{job}-x1")
        seen.close()
        cluster.delete("Pod", f"{team}/taker", grace_s=0)
        trains_with(cluster, job, 2)
        cluster.wait_for("Workload", f"{job}-x1", condition("PodsReady"))
        finish(cluster, job)
        audit(cluster, job)
    finally:
        cluster.plane.restart_kueue()


def _evicted_for(body: Object) -> str:
    conditions = body.get("status", {}).get("conditions", [])
    return next((c["reason"] for c in conditions if c["type"] == "Evicted"), "")


# --- what silently breaks it --------------------------------------------------------------------


def local_queue(team: str, name: str, behind: str) -> Object:
    meta = {"name": name, "namespace": team}
    spec = {"clusterQueue": behind}
    return {"apiVersion": f"{QUEUES}/v1beta2", "kind": "LocalQueue", "metadata": meta, "spec": spec}


def test_pods_that_a_queue_named_default_captures_are_reported_and_submit_prevents_it(
    cluster: Cluster, team: str, operator: str, tmp_path: Path
) -> None:
    job = f"{team}/gpt"
    cluster.queue(team, [team], cpus=1)
    cluster.queue(f"{team}-none", [], cpus=0)
    cluster.apply(local_queue(team, "default", f"{team}-none"))
    body = a_job(cluster, team, "gpt", 20, 0, minReplicas=1, maxReplicas=1)
    cluster.apply(body)
    words = ("LocalQueue named default captures pods", f"{QUEUES}/queue-name")
    says(cluster, job, *words, where="QueueUsable")
    cluster.delete("ElasticJob", job)
    cluster.wait(lambda: not cluster.objects("Pod", team), "no pod is left", PATIENCE_S)
    cluster.wait_gone("ElasticJob", job)

    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(body))
    said = cluster.pliant("submit", str(path))
    assert f"{job} is submitted" in said
    done = cluster.wait_for("ElasticJob", job, ended, within_s=PATIENCE_S)
    assert done["status"]["phase"] == "Succeeded"


def test_a_queue_that_preempts_nothing_is_reported(
    cluster: Cluster, team: str, operator: str
) -> None:
    never = {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}
    cluster.queue(team, [team], cpus=0, preemption=never)
    cluster.apply(a_job(cluster, team, "gpt", FOREVER, 0.3, minReplicas=1, maxReplicas=2))
    says(cluster, f"{team}/gpt", "no increment is ever taken back", where="QueueUsable")
    told = cluster.pliant("describe", "gpt", "--namespace", team)
    assert "no increment is ever taken back" in told


# --- replicas of several pods ---------------------------------------------------------------------


def test_a_replica_spans_two_pods(cluster: Cluster, team: str, operator: str) -> None:
    job = f"{team}/gpt"
    cluster.queue(team, [team], cpus=4)
    body = a_job(cluster, team, "gpt", STEPS, 0.3, minReplicas=1, maxReplicas=2)
    body["spec"] |= {"workersPerReplica": 2, "hostsPerReplica": 2}
    cluster.apply(body)
    trains_with(cluster, job, 2)
    cluster.apply(workload(team, team, "urgent", 1, priority=500))
    cluster.wait_for("Workload", f"{team}/urgent", condition("Admitted"), within_s=PATIENCE_S)
    trains_with(cluster, job, 1)
    cluster.delete("Workload", f"{team}/urgent")
    trains_with(cluster, job, 2)
    finish(cluster, job)
    audit(cluster, job)


# --- without a queue, and with TLS ----------------------------------------------------------------


def kubernetes_class(name: str, value: int) -> Object:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**kind, "metadata": {"name": name}, "value": value}


@pytest.fixture
def fast(cluster: Cluster) -> Iterator[Object]:
    """Lend a node selector that only one node satisfies, of eight processors."""
    cluster.patch("Node", "node-a", {"metadata": {"labels": {"fast": "yes"}}})
    yield {"fast": "yes"}
    cluster.patch("Node", "node-a", {"metadata": {"labels": {"fast": None}}})


def taker(team: str, name: str, cpu: str, priority: str, **spec: Any) -> Object:
    """Return a pod that takes processors of a node and does nothing."""
    box = container("sleep", "1000", cpu=cpu)
    return pod(team, name, box, priorityClassName=priority, **spec)


def test_without_a_queue_the_priority_of_pods_decides_and_asks_time_out(
    cluster: Cluster, team: str, operator: str, fast: Object
) -> None:
    job = f"{team}/gpt"
    for name, value in (("minimum", 1000), ("urgent", 500), ("increments", 100)):
        cluster.apply(kubernetes_class(name, value))
    cluster.apply(taker(team, "taker", "5500m", "minimum", nodeSelector=fast))
    body = a_job(cluster, team, "gpt", 2 * STEPS, 0.3, minReplicas=1, maxReplicas=3)
    del body["spec"]["queue"]["name"]
    body["spec"]["podTemplate"]["spec"]["nodeSelector"] = fast
    cluster.apply(body)
    trains_with(cluster, job, 2)
    says(cluster, job, "x2 waits for nodes")
    cluster.apply(taker(team, "urgent", "1", "urgent", nodeSelector=fast))
    trains_with(cluster, job, 1)
    assert cluster.pod(f"{job}-x1-0").containers[0].exit_code == 0
    cluster.wait_gone("Pod", f"{job}-x2-0", within_s=400)
    told = [one["note"] for one in cluster.objects("Event", team) if "note" in one]
    told += [one["message"] for one in cluster.objects("Event", team) if "message" in one]
    assert any("found no node within 300 s" in one for one in told), told
    for name in ("taker", "urgent"):
        cluster.delete("Pod", f"{team}/{name}", grace_s=0)
    trains_with(cluster, job, 3)
    finish(cluster, job, 2 * STEPS)
    audit(cluster, job)


def test_pods_of_a_job_talk_by_tls(
    cluster: Cluster, team: str, operator: str, tmp_path: Path
) -> None:
    job = f"{team}/gpt"
    cluster.queue(team, [team], cpus=2)
    host = f"gpt-coordinator.{team}.svc"
    made = Authority(tmp_path / "ca").files(host, names=[host])
    files = {"ca.crt": made.ca, "tls.crt": made.certificate, "tls.key": made.key}
    data = {name: Path(str(path)).read_text() for name, path in files.items()}
    cluster.apply(secret(team, "gpt-tls", **data))
    body = a_job(cluster, team, "gpt", STEPS, 0.3, minReplicas=1, maxReplicas=2)
    body["spec"]["tls"] = {"secretName": "gpt-tls"}
    cluster.apply(body)
    trains_with(cluster, job, 2)
    assert condition("CoordinatorReached")(cluster.get("ElasticJob", job))
    finish(cluster, job)
    audit(cluster, job)


# --- a person ---------------------------------------------------------------------------------


def test_a_person_follows_suspends_and_resumes_a_job(
    cluster: Cluster, team: str, operator: str, tmp_path: Path
) -> None:
    job, place = f"{team}/gpt", f"kube:{team}/gpt"
    cluster.queue(team, [team], cpus=2)
    body = a_job(cluster, team, "gpt", STEPS, 0.3, minReplicas=1, maxReplicas=2)
    body = with_checkpoints(cluster, body)
    body["spec"]["storage"] = {"claim": "kept"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(body))
    cluster.pliant("submit", str(path), "--dry-run")
    assert cluster.find("ElasticJob", job) is None
    cluster.pliant("submit", str(path))
    trains_with(cluster, job, 2)

    def about(command: str, *words: str) -> str:
        said = cluster.pliant(command, "--job", place, *words)
        print(f"$ pliant {command} --job {place} {' '.join(words)}\n{said}")  # noqa: T201
        return said

    for words in (("get", "-n", team), ("describe", "gpt", "-n", team)):
        print(cluster.pliant(*words))  # noqa: T201
    assert json.loads(about("status", "--json"))
    about("status")
    about("explain")
    about("audit")
    assert f"trains for {STEPS} steps" in about("logs", "r1")
    about("suspend")
    says(cluster, job, "suspended by its user")
    cluster.wait(lambda: not cluster.objects("Pod", team), "no pod is left", PATIENCE_S)
    cluster.wait(lambda: not cluster.objects("Workload", team), "no Workload is left")
    print(cluster.pliant("get", "-n", team))  # noqa: T201
    print(cluster.pliant("status", "--job", place, check=False))  # noqa: T201
    about("resume")
    trains_with(cluster, job, 2)
    about("scale", "1")
    trains_with(cluster, job, 1)
    finish(cluster, job)
    assert "has ended" in cluster.pliant("audit", "--job", place, check=False)
