"""Strangers at the ports over which the workers of one replica meet: gloo's own, without a secret.

They cost that replica at most; its store is a file that nobody else may open, and has no port.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from tests.live.harassing import harassed, is_another_user
from tests.live.neighbour import Address
from tests.processes.elastic import reference, run_until_over, wait_for_members
from tests.processes.launching import RunningJob
from tests.processes.test_several_workers import pids_of

from pliant.engine.comm.mesh import parse_endpoint

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


def ports_inside(job: RunningJob, replica: str) -> list[Address]:
    """Return where the workers of a replica listen for each other."""
    seats = [seat for r in job.records("prepare") for seat in r["order"]["members"]]
    met_at = {parse_endpoint(seat["endpoint"]) for seat in seats}
    found = [
        (str(one.laddr.ip), int(one.laddr.port))
        for pid in pids_of(job, replica)
        for one in psutil.Process(pid).net_connections(kind="tcp")
        if one.status == psutil.CONN_LISTEN
    ]
    return sorted(set(found) - met_at)


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(["garbage", "half", "wrong", "idle"], id="all"),
        pytest.param(["garbage"], id="garbage", marks=pytest.mark.soak),
        pytest.param(["burst", "steal"], id="burst", marks=pytest.mark.soak),
    ],
)
def test_strangers_at_the_ports_inside_a_replica_cost_that_replica_at_most(
    tmp_path: Path, ways: list[str]
) -> None:
    attacked: list[Address] = []

    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2")
        attacked.extend(ports_inside(job, "r1"))
        with harassed(ways, known=attacked) as found:
            job.wait_for(lambda: found.users, "they are there")
            for _ in range(4):
                job.wait_for_steps(len(job.records("commit")) + 5)
        assert found.counts["tries"] > 20
        assert found.counts["steal"] == 0 or not is_another_user(found)

    outcome = run_until_over(tmp_path, "gpt", play, replicas=2, workers=2, pace=0.05)

    assert attacked
    assert {host for host, _ in attacked} == {"127.0.0.1"}
    outcome.check(reference("gpt", outcome.steps))
    exits = {str(r["replica"]): str(r["exited_kind"]) for r in outcome.kinds("exited")}
    assert exits["r2"] == "finished", exits
    assert [name for name, kind in exits.items() if kind != "finished"] in ([], ["r1"])
