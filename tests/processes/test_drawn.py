"""A sampler's draws, whoever joins and dies, and when the run goes on at another size."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes import elastic
from tests.processes.elastic import kill, scale, wait_for_members
from tests.processes.launching import RunningJob
from tests.processes.test_durable import check, live, nothing, suspend

from pliant.observe.audit import audit_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

STEPS = 24


def test_each_draw_counts_once_through_a_join_a_kill_and_a_resume(tmp_path: Path) -> None:
    def join_and_kill(job: RunningJob) -> None:
        job.wait_for_steps(1)
        scale(job, 3)
        wait_for_members(job, "r1", "r2", "r3")
        kill(job, "r1")
        wait_for_members(job, "r2", "r3", "r4")
        suspend(job, 10)

    digest = elastic.reference("drawn", STEPS)
    first = live(
        tmp_path,
        "drawn",
        join_and_kill,
        replicas=3,
        steps=STEPS,
        expected_code=3,
        pace=0.1,
        num_workers=1,
    )
    assert audit_run(first.out).problems == []

    again = live(tmp_path, "drawn", nothing, replicas=1, steps=STEPS)

    check(again, digest, STEPS)
    audit = audit_run(again.out)
    assert audit.sampler == "WeightedRandomSampler"
    assert audit.committed_samples == 50 * 4 + 12 * 4  # four epochs of five steps, and four steps
    seen = [sample for line in lines(again) for sample in line.get("ids", ())]
    assert len(set(seen)) < 44  # what has no weight is never drawn


def lines(job: RunningJob) -> list[dict[str, list[int]]]:
    return [line for path in job.out.glob("ledger/*") for line in elastic._lines(path)]
