"""The published scenario, live: a job grows into idle capacity, and gives it back when asked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.api import Object
from tests.cluster.bodies import config_map, elastic_job, workload
from tests.cluster.cluster import Cluster, condition
from tests.cluster.test_training import SCRIPT, digests, static_digest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

STEPS = 600
PATIENCE_S = 600
"""For replicas to start, each of which loads torch."""


def coordinator_files(cluster: Cluster, job: str) -> Path:
    """Return where the files of a run lie; they outlive the pod."""
    return cluster.pod(f"{job}-coordinator").directory / "volumes/run/run"


def audit(cluster: Cluster, job: str) -> None:
    """Expect that every sample counted exactly once."""
    files = str(coordinator_files(cluster, job))
    words = [sys.executable, "-m", "pliant", "audit", "--out", files]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def trains_with(cluster: Cluster, job: str, replicas: int) -> None:
    """Return once the coordinator has said last that so many replicas train."""

    def is_so() -> bool:
        said = re.findall(r"(\d+) replicas?\b", cluster.log(f"{job}-coordinator"))
        return bool(said) and int(said[-1]) == replicas

    cluster.wait(is_so, f"{job} trains with {replicas} replicas", within_s=PATIENCE_S)


def increments(cluster: Cluster, team: str) -> set[str]:
    """Return the Workloads of a namespace that are admitted."""
    bodies = cluster.objects("Workload", team)
    return {one["metadata"]["name"] for one in bodies if condition("Admitted")(one)}


@pytest.mark.parametrize(
    ("quota", "minimum", "urgent"), [pytest.param(4, 1, 2, id="small"), pytest.param(10, 2, 4)]
)
def test_an_urgent_job_takes_exactly_what_it_needs_and_the_job_grows_back(
    cluster: Cluster, team: str, operator: str, quota: int, minimum: int, urgent: int
) -> None:
    job = f"{team}/gpt"
    cluster.queue(team, [team], cpus=quota)
    cluster.apply(config_map(team, "gpt-pace", pace="0.5"))
    script = [str(SCRIPT), str(STEPS)]
    policy = {"minReplicas": minimum, "maxReplicas": quota}
    seen = cluster.see("Workload", team)
    cluster.apply(elastic_job(team, team, "gpt", script, **policy))
    trains_with(cluster, job, quota)
    before = increments(cluster, team)
    pods = {pod.uid: pod for pod in cluster.kubelet.pods.values() if pod.namespace == team}

    cluster.apply(workload(team, team, "urgent", urgent, priority=500))
    cluster.wait_for("Workload", f"{team}/urgent", condition("Admitted"), within_s=PATIENCE_S)
    left = [pod for pod in pods.values() if pod.times.told_to_end is not None]
    trains_with(cluster, job, quota - urgent)
    cluster.delete("Workload", f"{team}/urgent")
    trains_with(cluster, job, quota)
    cluster.apply(config_map(team, "gpt-pace", pace="0"))
    done = cluster.wait_for("ElasticJob", job, ended, within_s=PATIENCE_S)
    seen.close()

    assert done["status"]["phase"] == "Succeeded"
    assert len(left) == urgent, "exactly enough increments left"
    assert len(before) == quota - minimum + 1
    for pod in left:
        (name,) = [n for n in before if pod.name.startswith(f"{team}/{n}-")]
        evicted = seen.until(name, lambda one: condition("Evicted")(one.body))
        times = pod.times
        assert times.told_to_end is not None
        assert times.gone is not None
        sys.stdout.write(
            f"{pod.name}: evicted to SIGTERM {times.told_to_end - evicted.at_s:.3f} s, to gone"
            f" {times.gone - evicted.at_s:.3f} s; {pod.containers[0].exit_code}\n"
        )
    assert {pod.containers[0].exit_code for pod in left} == {0}
    assert digests(cluster, team) == {static_digest(STEPS)}
    audit(cluster, job)


def ended(body: Object) -> bool:
    return body.get("status", {}).get("phase") in ("Succeeded", "Failed", "Stopped")
