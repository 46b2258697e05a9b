"""How soon replicas are told to leave that Kueue takes back, over many of them; needs root and Go.

Owns the job, the urgent work and the page.  Control plane, Kueue and operator are real, the kubelet
is that of the tests; the job trains in processes of its own.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.cluster import building, ground
from tests.cluster.bodies import config_map, elastic_job, priority_class, workload
from tests.cluster.cluster import Cluster, condition
from tests.cluster.pods import Pod
from tests.cluster.test_scenario import PATIENCE_S, ended, trains_with
from tests.cluster.test_training import SCRIPT, digests, static_digest

from benchmarks import harness
from benchmarks.harness import Figure, Page

STEPS = 1500
"""More than are trained meanwhile."""

METHOD = """\
A job of one replica at least and {replicas} at most has grown to {replicas} in a queue of as many
processors; each replica is a pod whose script waits 0.5 s in each step. {rounds} times an urgent
Workload of {urgent} arrives: Kueue evicts as many increments, and the operator deletes their pods.
Timed from when a watch shows the Workload as evicted: until the test kubelet sends SIGTERM, and
until it says that the pod has gone. Then the urgent one leaves, and the job has grown back before
the next. At the end the digest is that of the script alone."""


def begin(cluster: Cluster, team: str, replicas: int) -> None:
    """Install the operator, start the job, and return once it has grown."""
    for name in ("node-a", "node-b", "node-c"):
        cluster.add_node(name)
    cluster.pliant("operator", "install")
    for name, value in (("minimum", 1000), ("urgent", 500), ("increments", 100)):
        cluster.apply(priority_class(name, value))
    cluster.wait_for(
        *("Deployment", "pliant-system/pliant-operator"),
        lambda body: body.get("status", {}).get("readyReplicas") == 2,
        within_s=PATIENCE_S,
    )
    cluster.queue(team, [team], cpus=replicas)
    cluster.apply(config_map(team, "gpt-pace", pace="0.5"))
    backoff = {"initialInSeconds": 1, "factor": 1, "maxInSeconds": 1}
    policy = {"minReplicas": 1, "maxReplicas": replicas, "backoff": backoff}
    cluster.apply(elastic_job(team, team, "gpt", [str(SCRIPT), str(STEPS)], **policy))
    trains_with(cluster, f"{team}/gpt", replicas)


def evict(cluster: Cluster, team: str, replicas: int) -> list[tuple[float, float]]:
    """Let urgent work take all but one; return when each was told and gone, in seconds."""
    seen = cluster.see("Workload", team)
    pods = [pod for pod in cluster.kubelet.pods.values() if pod.namespace == team]
    began_s = time.monotonic()
    cluster.apply(workload(team, team, "urgent", replicas - 1, priority=500))
    cluster.wait_for("Workload", f"{team}/urgent", condition("Admitted"), within_s=PATIENCE_S)
    found = []
    for pod in pods:
        if pod.times.told_to_end is None:
            continue
        name = pod.name.removeprefix(f"{team}/").rpartition("-")[0]
        evicted = seen.until(name, lambda one: condition("Evicted")(one.body), after_s=began_s)
        cluster.wait(partial(_is_gone, pod), f"{pod.name} is gone", PATIENCE_S)
        if (code := pod.containers[0].exit_code) != 0:
            print(f"{pod.name} ended with {code}:", pod.containers[0].log.read_text()[-3000:])
        assert pod.times.gone is not None
        found.append((pod.times.told_to_end - evicted.at_s, pod.times.gone - evicted.at_s))
    seen.close()
    assert len(found) == replicas - 1, found
    cluster.delete("Workload", f"{team}/urgent")
    trains_with(cluster, f"{team}/gpt", replicas)
    return found


def _is_gone(pod: Pod) -> bool:
    return pod.times.gone is not None


def finish(cluster: Cluster, team: str) -> None:
    """Let the job end, and expect the state of the script alone."""
    cluster.apply(config_map(team, "gpt-pace", pace="0"))
    done = cluster.wait_for("ElasticJob", f"{team}/gpt", ended, within_s=PATIENCE_S)
    assert done["status"]["phase"] == "Succeeded", done["status"]
    assert digests(cluster, team) == {static_digest(STEPS)}


def p99(values: list[float]) -> float:
    """Return the least value that 99 of 100 do not exceed."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=17)
    parser.add_argument("--no-page", action="store_true")
    chosen = parser.parse_args()
    if reason := ground.obstacle() or building.missing():
        sys.exit(reason)
    before, found = harness.load(), []
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory))
        try:
            with cluster.namespace("bench") as team:
                begin(cluster, team, chosen.replicas)
                for number in range(chosen.rounds):
                    found += evict(cluster, team, chosen.replicas)
                    told = [each[0] for each in found]
                    print(f"round {number + 1}: p99 {p99(told):.3f} s", flush=True)
                finish(cluster, team)
        finally:
            cluster.close()
    told, gone = ([each[which] for each in found] for which in (0, 1))
    page = Page(
        theme="evictions",
        summary=f"{len(found)} replicas that Kueue took back.",
        method=METHOD.format(
            replicas=chosen.replicas, rounds=chosen.rounds, urgent=chosen.replicas - 1
        ),
        figures=(
            Figure(name="evicted to SIGTERM", unit="s", raw=tuple(told)),
            Figure(name="evicted to SIGTERM, p99", unit="s", raw=(p99(told),), target="< 0.2"),
            Figure(name="evicted to gone", unit="s", raw=tuple(gone)),
            Figure(name="evicted to gone, p99", unit="s", raw=(p99(gone),), target="< 1.5"),
        ),
        command=harness.command_line("evictions"),
        load=(before, harness.load()),
    )
    harness.publish(page, write=not chosen.no_page)


if __name__ == "__main__":
    main()
