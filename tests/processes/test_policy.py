"""A policy that is set while a job runs resizes it, and leaves no trace in what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.processes.elastic import reference, run_until_over, wait_for_members
from tests.processes.launching import RunningJob

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def change(job: RunningJob, expected: int = 202, /, **changes: Any) -> dict[str, Any]:
    with job.client() as client:
        answer = client.patch("/v1/policy", json=changes)
    assert answer.status_code == expected, answer.text
    return dict(answer.json())


def test_a_policy_set_while_a_job_runs_ends_with_the_same_weights(tmp_path: Path) -> None:
    def play(job: RunningJob) -> None:
        wait_for_members(job, "r1", "r2", "r3")
        job.wait_for_steps(8)  # the model is frozen at first
        change(job, 422, minReplicas=4)
        change(job, replicaDiscreteValues=[1, 3], scalingTimeoutInSeconds=3600)
        change(job, maxReplicas=1, replicaDiscreteValues=None)
        wait_for_members(job, "r1")
        change(job, maxReplicas=3)
        wait_for_members(job, "r1", "r4", "r5")

    outcome = run_until_over(tmp_path, "frozen", play, replicas=3, pace=0.03)

    outcome.check(reference("frozen", outcome.steps))
    said = [record["said"] for record in outcome.kinds("policy_set")]
    assert said == [
        "replicaDiscreteValues=[1, 3] scalingTimeoutInSeconds=3600",
        "maxReplicas=1 replicaDiscreteValues=none",
        "maxReplicas=3",
    ]
    assert [record["policy"]["maxReplicas"] for record in outcome.kinds("policy_changed")] == [
        3,
        1,
        3,
    ]
