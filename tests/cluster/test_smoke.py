"""One test of everything together, for ``make test`` where the cluster's programs are built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster import building, ground
from tests.cluster.bodies import shell, workload
from tests.cluster.cluster import Cluster, condition, phase


@pytest.mark.timeout(300)
def test_the_cluster_of_the_tests_works() -> None:
    """In a process of its own: the cluster's threads and sockets end with it."""
    if reason := ground.obstacle() or building.missing():
        pytest.skip(reason)

    words = ("-q", "-p", "no:cacheprovider", "-m", "cluster", str(Path(__file__)))
    done = subprocess.run([sys.executable, "-m", "pytest", *words], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_pod_runs_where_the_scheduler_puts_it_and_kueue_admits_work(
    cluster: Cluster, team: str
) -> None:
    cluster.queue(team, [team], cpus=2)

    cluster.apply(workload(team, team, "base", 2, priority=1000))
    cluster.apply(shell(team, "one", "echo said; printf 'its end' > /dev/termination-log; exit 3"))

    cluster.wait_for("Workload", f"{team}/base", condition("Admitted"))
    body = cluster.wait_for("Pod", f"{team}/one", phase("Failed"))
    (status,) = body["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 3
    assert status["state"]["terminated"]["message"] == "its end"
    assert cluster.log(f"{team}/one") == "said\n"
