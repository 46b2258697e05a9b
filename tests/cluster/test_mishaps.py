"""Things that happen to a job in a cluster: it loses no step, and nothing is left of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.api import Object
from tests.cluster.bodies import config_map, elastic_job
from tests.cluster.cluster import Cluster, Seen
from tests.cluster.pods import Pod
from tests.cluster.test_scenario import PATIENCE_S, coordinator_files, ended, trains_with
from tests.cluster.test_training import SCRIPT, digests, static_digest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

STEPS = 600

Mishap = Callable[[Cluster, str], None]


# --- those that take a replica


def out_of_memory(cluster: Cluster, job: str) -> None:
    cluster.run_out_of_memory(f"{job}-x1-0")


def node_dies(cluster: Cluster, job: str) -> None:
    """The one of an agent, and not that of the coordinator, if there is one."""
    apart = cluster.pod(f"{job}-coordinator").node
    nodes = [cluster.pod(f"{job}-{name}-0").node for name in ("x2", "x1", "base")]
    cluster.kill_node(next((node for node in nodes if node != apart), nodes[0]))


def coordinators_node_dies(cluster: Cluster, job: str) -> None:
    cluster.kill_node(cluster.pod(f"{job}-coordinator").node)


def drained(cluster: Cluster, job: str) -> None:
    cluster.drain(cluster.pod(f"{job}-x1-0").node)


def spot_taint(cluster: Cluster, job: str) -> None:
    cluster.taint(cluster.pod(f"{job}-x1-0").node, "karpenter.sh/disrupted", "NoSchedule")


def cordoned(cluster: Cluster, job: str) -> None:
    cluster.cordon(cluster.pod(f"{job}-x1-0").node)


def operators_killed(cluster: Cluster, job: str) -> None:
    for pod in operators(cluster):
        pod.containers[0].send(signal.SIGKILL)
    cluster.delete("Pod", f"{job}-x1-0")


def leading_operator_stopped(cluster: Cluster, job: str) -> None:
    """One that decides stands still until the other has taken its place, and goes on."""
    (lease,) = cluster.objects("Lease", "pliant-system")
    holder = lease["spec"]["holderIdentity"]
    (pod,) = [one for one in operators(cluster) if holder.startswith(one.name.split("/")[1])]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in processes(pod):
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            cluster.delete("Pod", f"{job}-x1-0")
            cluster.wait(
                lambda: (
                    cluster.objects("Lease", "pliant-system")[0]["spec"]["holderIdentity"] != holder
                ),
                "the other decides",
            )


def api_server_away(cluster: Cluster, job: str) -> None:
    with cluster.no_api():
        cluster.pod(f"{job}-x1-0").containers[0].send(signal.SIGKILL)
        time.sleep(60)


def api_server_busy(cluster: Cluster, job: str) -> None:
    with cluster.busy_api():
        cluster.pod(f"{job}-x1-0").containers[0].send(signal.SIGKILL)
        time.sleep(30)
        said = sum(refused(cluster, pod) for pod in operators(cluster))
    sys.stdout.write(f"{said:g} requests of the operators were refused as too many\n")
    assert said


# --- those that take none


def coordinator_killed(cluster: Cluster, job: str) -> None:
    cluster.pod(f"{job}-coordinator").containers[0].send(signal.SIGKILL)


def coordinator_deleted(cluster: Cluster, job: str) -> None:
    """The next one is on another node; no agent leaves for a taint without a meaning."""
    cluster.taint(cluster.pod(f"{job}-coordinator").node, "example.com/reserved", "NoSchedule")
    cluster.delete("Pod", f"{job}-coordinator")


LOSING = [
    out_of_memory,
    node_dies,
    coordinators_node_dies,
    drained,
    spot_taint,
    cordoned,
    operators_killed,
    leading_operator_stopped,
    api_server_away,
    api_server_busy,
]

KILLING = {
    *(out_of_memory, node_dies, coordinators_node_dies),
    *(api_server_away, api_server_busy),
}
"""What an agent recorded last goes with it before it has sent that: the audit says so."""


@pytest.mark.parametrize("mishap", [*LOSING, coordinator_killed, coordinator_deleted])
def test_no_step_is_lost_and_nothing_is_left(
    cluster: Cluster, team: str, operator: str, mishap: Mishap
) -> None:
    job = f"{team}/gpt"
    seen = cluster.see("ElasticJob", team)
    start(cluster, team)
    trains_with(cluster, job, 3)
    before = len(cluster.log(f"{job}-coordinator"))

    began_s = time.monotonic()
    mishap(cluster, job)

    if mishap in LOSING:
        fewer = re.compile(r"now [12] replicas?|node \S+ (is lost|has left)")
        cluster.wait(
            lambda: fewer.search(cluster.log(f"{job}-coordinator")[before:]),
            "a replica is gone",
            PATIENCE_S,
        )
    time.sleep(5)
    trains_with(cluster, job, 3)
    finish(cluster, team)
    seen.close()
    tell(cluster, team, seen, began_s)
    found = audited(cluster, job)
    assert found["problems"] == []
    assert found["committed_steps"] + found["uncovered_steps"] >= STEPS
    assert mishap in KILLING or not found["uncovered"], found["uncovered"]
    assert {change.body.get("status", {}).get("phase") for change in seen.changes} <= {
        *(None, "Pending", "Starting", "Running", "Succeeded")
    }
    delete(cluster, team)


def test_a_job_that_is_deleted_in_the_middle_leaves_nothing_and_its_name_is_free(
    cluster: Cluster, team: str, operator: str
) -> None:
    start(cluster, team)
    trains_with(cluster, f"{team}/gpt", 3)

    began_s = time.monotonic()
    delete(cluster, team)
    sys.stdout.write(f"deleted to nothing left: {time.monotonic() - began_s:.1f} s\n")

    start(cluster, team, pace="0")
    finish(cluster, team)
    delete(cluster, team)


def test_an_image_that_is_missing_is_said(cluster: Cluster, team: str, operator: str) -> None:
    start(cluster, team, image="missing/image:1")

    said = cluster.wait_for(
        *("ElasticJob", f"{team}/gpt"),
        lambda body: "image" in body.get("status", {}).get("reason", ""),
    )["status"]

    sys.stdout.write(f"{_line({'status': said})}\n")
    assert (said["phase"], "missing/image:1" in said["reason"]) == ("Starting", True)
    delete(cluster, team)


# --- a job


def start(cluster: Cluster, team: str, pace: str = "0.3", image: str = "none") -> None:
    cluster.queue(team, [team], cpus=3)
    cluster.apply(config_map(team, "gpt-pace", pace=pace))
    script = [str(SCRIPT), str(STEPS)]
    body = elastic_job(team, team, "gpt", script, minReplicas=1, maxReplicas=3)
    body["spec"]["podTemplate"]["spec"]["containers"][0]["image"] = image
    cluster.apply(body)


def finish(cluster: Cluster, team: str) -> None:
    """Let it end, and expect what it must have come to."""
    cluster.apply(config_map(team, "gpt-pace", pace="0"))
    done = cluster.wait_for("ElasticJob", f"{team}/gpt", ended, within_s=PATIENCE_S)
    assert done["status"]["phase"] == "Succeeded"
    assert digests(cluster, team) == {static_digest(STEPS)}


def delete(cluster: Cluster, team: str) -> None:
    """Delete it, and return once nothing is left."""
    cluster.delete("ElasticJob", f"{team}/gpt")
    kinds = ["Pod", "Workload", "Secret", "ConfigMap", "Service", "ServiceAccount"]
    for kind in (*kinds, "Role", "RoleBinding", "NetworkPolicy"):
        wait_none(cluster, kind, team)


def operators(cluster: Cluster) -> list[Pod]:
    """Return the pods of all operators."""
    bodies = cluster.objects("Pod", "pliant-system")
    return [cluster.pod(f"pliant-system/{body['metadata']['name']}") for body in bodies]


def processes(pod: Pod) -> list[int]:
    """Return its processes, as this machine counts them."""
    found = [pid] if (pid := pod.containers[0].pid) else []
    for pid in found:
        found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def refused(cluster: Cluster, operator: Pod) -> float:
    """Return how many requests of an operator the API server refused as too many."""
    said = cluster.http.get(f"http://{operator.ip}:8080/metrics").raise_for_status().text
    counts = re.findall(r'pliant_operator_api_requests_total\{.*code="429".*\} (\S+)', said)
    return sum(map(float, counts))


def audited(cluster: Cluster, job: str) -> dict[str, Any]:
    """Return what the audit says of a run."""
    files = str(coordinator_files(cluster, job))
    words = [sys.executable, "-m", "pliant", "audit", "--json", "--out", files]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    sys.stdout.write(f"audit: {found['problems']} {found['uncovered']}\n")
    assert done.returncode == (1 if found["problems"] or found["uncovered"] else 0)
    return found


def tell(cluster: Cluster, team: str, seen: Seen, began_s: float) -> None:
    """Print what its status has said, and how its pods ended."""
    last: object = None
    for change in seen.changes:
        if (line := _line(change.body)) != last:
            sys.stdout.write(f"{change.at_s - began_s:8.2f} s  {line}\n")
            last = line
    for pod in cluster.kubelet.past:
        times = pod.times
        if pod.namespace == team and times.told_to_end is not None and times.gone is not None:
            sys.stdout.write(
                f"{pod.name}: SIGTERM after {times.told_to_end - began_s:.3f} s, gone"
                f" {times.gone - times.told_to_end:.3f} s later\n"
            )


def _line(body: Object) -> str:
    status = body.get("status", {})
    conditions = {one["type"]: one for one in status.get("conditions", [])}
    said = " ".join(
        f"{kind}={conditions[kind]['status']}({conditions[kind]['reason']})"
        for kind in ("Ready", "CoordinatorReached")
        if kind in conditions
    )
    sizes = f"{status.get('replicas')}/{status.get('admittedReplicas')}"
    return f"{status.get('phase')} {sizes} {said}: {status.get('reason')}"


def wait_none(cluster: Cluster, kind: str, team: str) -> None:
    """Return once a namespace has no object of a kind that is the job's."""

    def is_gone() -> bool:
        names = {body["metadata"]["name"] for body in cluster.objects(kind, team)}
        return not {name for name in names if name.startswith("gpt")} - {"gpt-pace"}

    cluster.wait(is_gone, f"no {kind} is left", PATIENCE_S)
