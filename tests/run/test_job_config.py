"""A job is the same again when its document is read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pliant.core.job.state import JobSettings
from pliant.core.policy.decide import Policy, PolicyBackoff
from pliant.core.tenancy import PoolPlace
from pliant.run.job_config import JobConfig


@pytest.mark.parametrize(
    "given",
    [
        Policy(),
        Policy(min_replicas=2, max_replicas=6, start_replicas=4, replica_increment_step=2),
        Policy(min_replicas=2, replica_discrete_values=(2, 4), backoff=PolicyBackoff(factor=3)),
        Policy(scaling_timeout_s=0.5, amortization=False, min_marginal_efficiency=0.1),
    ],
)
def test_a_resumed_run_has_the_policy_that_its_log_tells_of(given: Policy) -> None:
    config = JobConfig(
        name="gpt",
        argv=("train.py", "--steps", "5"),
        settings=JobSettings(policy=given, restart_budget=2),
        out=Path("runs/gpt"),
        pool=PoolPlace(name="gpus", priority="high"),
        environ={},
    )
    document = json.loads(json.dumps(config.document()))

    assert JobConfig.of(document, name="gpt", out=Path("runs/gpt"), environ={}) == config
