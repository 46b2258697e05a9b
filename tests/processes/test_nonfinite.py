"""What a nan does to a run does not depend on who computed it, nor on who died meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.processes.elastic import also_in_two_workers, reference, run
from tests.processes.launching import RunningJob

from pliant.observe.status import board_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

STEPS = 14
"""More than three epochs of four steps; one or two steps of each have an image that is nan."""


def nothing(job: RunningJob) -> None:
    """Let the faults of the plan happen."""


@also_in_two_workers
@pytest.mark.parametrize(
    ("policy", "point"), [("skip", "bucket"), ("skip", "vote"), ("warn", "vote")]
)
def test_a_nan_of_one_slot_has_the_same_bits_whoever_dies(
    tmp_path: Path, policy: str, point: str, workers: int
) -> None:
    more: Any = {"options": {"on_nonfinite": policy}, "faults": f"r2@{point}:6=SIGKILL"}
    outcome = run(tmp_path, "cnn", STEPS, nothing, replicas=3, workers=workers, pace=0.02, **more)

    outcome.check(reference("cnn", STEPS, options=more["options"]))
    bad = board_of(outcome.job.records()).nonfinite
    assert bad is not None
    assert bad["what"] == "the loss is nan"
    assert (bad["skipped"] == bad["steps"]) is (policy == "skip")
    assert 3 <= bad["steps"] <= (7 if policy == "skip" else STEPS)


def test_a_stop_ends_the_job_with_one_sentence(tmp_path: Path) -> None:
    options = {"on_nonfinite": "stop"}
    outcome = run(tmp_path, "cnn", STEPS, nothing, options=options, expected_code=2)

    (end,) = outcome.kinds("end_job")
    assert "the loss is nan at step " in end["reason"]
    assert "the run ends before that step, as on_nonfinite='stop' says" in end["reason"]
    assert len(outcome.kinds("start_replica")) == 3  # nobody was started again
