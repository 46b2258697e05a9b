"""A cluster and a workload are read into one world."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.core.policy.decide import Policy
from pliant.simulate.world_files import read_workload, read_world


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_gives_its_job(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "jobs"
    path.write_text(f"{mark}arrival_s,work_s\r\n0,60\r\n")

    (job,) = read_workload(str(path))

    assert (job.arrival_s, job.work_s, job.devices) == (0.0, 60.0, 1)


def test_what_is_not_taken_from_a_file_is_told(tmp_path: Path) -> None:
    cluster, jobs, trace = (tmp_path / name for name in ("c.yaml", "j.csv", "t.csv"))
    nodes = "nodes: [{name: a, count: 2}]"
    cluster.write_text(f"apiVersion: pliant.dev/v1alpha1\nkind: Cluster\nspec: {{{nodes}}}\n")
    jobs.write_text("arrival_s,work_s\n0,60\n5,60\n")
    trace.write_text("time_s,devices\n0,1\n60,5\n")

    world = read_world(cluster, str(jobs), policy=Policy(), capacity={"a": str(trace)})

    assert world.notes == ("--capacity a: of up to 5 nodes the 2 of the file count",)
