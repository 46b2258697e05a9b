"""Coordinator and agents as pods that a test makes by hand: the cluster trains as hosts do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.api import Object
from tests.cluster.bodies import container, pod, secret, service, workload
from tests.cluster.cluster import Cluster, condition

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("train.py")
STEPS = 400
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
NODE_NAME = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
MOUNTS = [
    {"name": "run", "mountPath": "/var/run/pliant"},
    {"name": "tmp", "mountPath": "/tmp"},
    {"name": "token", "mountPath": "/etc/pliant", "readOnly": True},
]
VOLUMES: list[Object] = [
    {"name": "run", "emptyDir": {}},
    {"name": "tmp", "emptyDir": {}},
    {"name": "token", "secret": {"secretName": "token", "defaultMode": 0o400}},
]


@cache
def static_digest(steps: int = STEPS) -> str:
    """Return what the script says at its end, run alone."""
    told = subprocess.run(
        [sys.executable, str(SCRIPT), str(steps)],
        env={**os.environ, "PACE": "0"},
        check=True,
        capture_output=True,
        text=True,
    )
    return told.stdout.strip()


def digests(cluster: Cluster, team: str) -> set[str]:
    """Return what the workers of all agents have said at their end."""
    said = ""
    for body in [*cluster.kubelet.past, *cluster.kubelet.pods.values()]:
        if body.namespace == team:
            said += cluster.log(body.name)
            for path in body.directory.glob("volumes/run/**/*.log"):
                said += path.read_text(errors="replace")
    return set(re.findall(r"digest \d+ \w+", said))


def our_pod(team: str, name: str, cpu: str, *words: str, **more: Any) -> Object:
    environment = [POD_IP, NODE_NAME, {"name": "HOME", "value": "/var/run/pliant"}]
    environment.append({"name": "PACE", "value": "0.05"})
    box = container(*words, cpu=cpu, env=environment, volumeMounts=MOUNTS, **more)
    box["workingDir"] = "/var/run/pliant"
    return pod(team, name, box, volumes=VOLUMES, terminationGracePeriodSeconds=30)


def coordinator(team: str) -> Object:
    words = ["pliant", "coordinator", "--listen", "$(POD_IP):7000", "--name", "gpt"]
    words += ["--out", "/var/run/pliant/gpt", "--token-file", "/etc/pliant/token"]
    words += ["--min", "1", "--max", "3", str(SCRIPT), str(STEPS)]
    probe = {"tcpSocket": {"port": 7000}}
    return our_pod(team, "coordinator", "100m", *words, readinessProbe=probe)


def agent(team: str, name: str) -> Object:
    words = ["pliant", "agent", "--join", f"coordinator.{team}.svc:7000", "--node", name]
    words += ["--token-file", "/etc/pliant/token", "--devices", "1"]
    words += ["--interface", "$(POD_IP)", "--label", "host=$(NODE_NAME)", "--grace", "25s"]
    return our_pod(team, name, "1", *words)


def test_an_evicted_increment_leaves_and_the_digest_is_that_of_the_script_alone(
    cluster: Cluster, team: str
) -> None:
    cluster.queue(team, [team], cpus=3)
    cluster.apply(secret(team, "token", token="x" * 40))
    cluster.apply(service(team, "coordinator", 7000, app="coordinator"))
    cluster.apply(coordinator(team))
    seen = cluster.see("Workload", team)

    def grant(name: str, priority: int, agent_name: str) -> None:
        cluster.apply(workload(team, team, name, 1, priority))
        cluster.wait_for("Workload", f"{team}/{name}", condition("Admitted"))
        cluster.apply(agent(team, agent_name))

    def until_said(pattern: str) -> None:
        place = f"{team}/coordinator"
        cluster.wait(lambda: re.search(pattern, cluster.log(place)), pattern, within_s=240)

    for number, (name, priority) in enumerate((("base", 1000), ("x1", 101), ("x2", 100))):
        grant(name, priority, f"agent-{number}")
    until_said("3 replicas")

    began_s = time.monotonic()
    cluster.apply(workload(team, team, "urgent", 1, priority=500))
    evicted = seen.until("x2", lambda one: condition("Evicted")(one.body), after_s=began_s)
    cluster.delete("Pod", f"{team}/agent-2")
    cluster.wait_gone("Pod", f"{team}/agent-2")
    cluster.delete("Workload", f"{team}/x2")
    cluster.wait_for("Workload", f"{team}/urgent", condition("Admitted"))
    until_said(r"3 replicas[\s\S]*2 replicas")
    cluster.delete("Workload", f"{team}/urgent")
    grant("x2", 100, "agent-3")
    until_said(r"3 replicas[\s\S]*2 replicas[\s\S]*3 replicas")
    cluster.wait_for("Pod", f"{team}/coordinator", condition("Ready", "False"), within_s=240)

    seen.close()
    times = cluster.pod(f"{team}/agent-2").times
    assert times.told_to_end is not None
    assert times.told_to_end > evicted.at_s
    assert digests(cluster, team) == {static_digest()}, cluster.log(f"{team}/coordinator")
