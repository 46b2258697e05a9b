"""Things that happen to a job in a cluster: it loses no step, and nothing is left of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from tests.cluster.bodies import config_map, elastic_job
from tests.cluster.cluster import Cluster
from tests.cluster.test_scenario import PATIENCE_S, audit, ended, trains_with
from tests.cluster.test_training import SCRIPT, digests, static_digest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

STEPS = 600

Mishap = Callable[[Cluster, str], None]


def out_of_memory(cluster: Cluster, job: str) -> None:
    cluster.run_out_of_memory(f"{job}-x1-0")


def node_dies(cluster: Cluster, job: str) -> None:
    """The one of an agent, and not that of the coordinator, if there is one."""
    apart = cluster.pod(f"{job}-coordinator").node
    nodes = [cluster.pod(f"{job}-{name}-0").node for name in ("x2", "x1", "base")]
    cluster.kill_node(next((node for node in nodes if node != apart), nodes[0]))


def drained(cluster: Cluster, job: str) -> None:
    cluster.drain(cluster.pod(f"{job}-x1-0").node)


def spot_taint(cluster: Cluster, job: str) -> None:
    cluster.taint(cluster.pod(f"{job}-x1-0").node, "karpenter.sh/disrupted", "NoSchedule")
    time.sleep(2)
    cluster.delete("Pod", f"{job}-x1-0")


def coordinator_killed(cluster: Cluster, job: str) -> None:
    cluster.pod(f"{job}-coordinator").containers[0].send(signal.SIGKILL)


def coordinator_deleted(cluster: Cluster, job: str) -> None:
    cluster.cordon(cluster.pod(f"{job}-coordinator").node)  # the next one is on another
    cluster.delete("Pod", f"{job}-coordinator")


def operators_killed(cluster: Cluster, job: str) -> None:
    for body in cluster.objects("Pod", "pliant-system"):
        name = f"pliant-system/{body['metadata']['name']}"
        cluster.pod(name).containers[0].send(signal.SIGKILL)
    cluster.delete("Pod", f"{job}-x1-0")


def api_server_away(cluster: Cluster, job: str) -> None:
    with cluster.no_api():
        cluster.pod(f"{job}-x1-0").containers[0].send(signal.SIGKILL)
        time.sleep(20)


MISHAPS = [
    out_of_memory,
    node_dies,
    drained,
    spot_taint,
    coordinator_killed,
    coordinator_deleted,
    operators_killed,
    api_server_away,
]


NOT_AUDITED = {coordinator_deleted, out_of_memory, node_dies, api_server_away}
"""The coordinator's files went with its pod, or an agent had records that it had not sent yet: the
audit counts what is missing as problems today."""


@pytest.mark.parametrize("mishap", MISHAPS)
def test_no_step_is_lost_and_nothing_is_left(
    cluster: Cluster, team: str, operator: str, mishap: Mishap
) -> None:
    job = f"{team}/gpt"
    cluster.queue(team, [team], cpus=3)
    cluster.apply(config_map(team, "gpt-pace", pace="0.3"))
    script = [str(SCRIPT), str(STEPS)]
    cluster.apply(elastic_job(team, team, "gpt", script, minReplicas=1, maxReplicas=3))
    trains_with(cluster, job, 3)

    mishap(cluster, job)

    time.sleep(5)
    trains_with(cluster, job, 3)
    cluster.apply(config_map(team, "gpt-pace", pace="0"))
    done = cluster.wait_for("ElasticJob", job, ended, within_s=PATIENCE_S)
    assert done["status"]["phase"] == "Succeeded"
    assert digests(cluster, team) == {static_digest(STEPS)}
    if mishap not in NOT_AUDITED:
        audit(cluster, job)
    cluster.delete("ElasticJob", job)
    for kind in ("Pod", "Workload", "Secret", "Service", "Role", "RoleBinding", "NetworkPolicy"):
        wait_none(cluster, kind, team)


def wait_none(cluster: Cluster, kind: str, team: str) -> None:
    """Return once a namespace has no object of a kind."""
    cluster.wait(lambda: not cluster.objects(kind, team), f"no {kind} is left", PATIENCE_S)
