"""Messages between coordinator and agents are lost and repeated, and agents start anew."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.live.stage import DEADLINE_S
from tests.processes.elastic import scale, wait_for_members
from tests.processes.lossy_road import LossyRoad
from tests.processes.test_restart import training

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

TOLD_ONCE = {
    "start_replica",
    "prepare",
    "switch",
    "reform",
    "release",
    "end_replica",
}


def test_what_is_lost_is_said_again_and_what_is_repeated_counts_once(tmp_path: Path) -> None:
    """Of each command the first is lost, and everything else comes twice, in both directions."""

    def copies(kind: str, number: int) -> int:
        if kind in TOLD_ONCE and number == 1:
            return 0
        # The counts of what was heard, and who is there, belong to one connection.
        return 1 if kind in ("heard", "node_facts", "node_joined", "work") else 2

    road = LossyRoad(copies)
    with training(tmp_path, nodes={}, replicas=2, start=1) as job:
        job.employ("here", 4, road=road)
        wait_for_members(job, "r1")
        scale(job, 2)
        wait_for_members(job, "r1", "r2")
        scale(job, 1)
        wait_for_members(job, "r1")
    assert Counter(road.lost) == Counter(["start_replica", "prepare", "switch", "release"])


def test_an_agent_that_is_started_anew_at_once_runs_nothing_of_the_one_before(
    tmp_path: Path,
) -> None:
    """As a service manager does it: within seconds, under the same name, on the same devices."""
    with training(tmp_path, nodes={"near": 1, "other": 1}) as job:
        wait_for_members(job, "r1", "r2")
        (home,) = {str(r["node"]) for r in job.records("worker") if r["replica"] == "r2"}
        agent = job.agents[home]
        agent.kill()
        agent.wait(DEADLINE_S)
        job.employ(home, 1)
        wait_for_members(job, "r1", "r3")
    assert [record["node"] for record in job.records("node_lost")] == [home]
