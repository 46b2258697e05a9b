"""What one replica changes of what all must share ends the run, with its name and whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes.elastic import scale
from tests.processes.launching import RunningJob, running

from pliant.core.errors import EXIT_USAGE

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).with_name("train_unlike.py")


def ended(job: RunningJob) -> str:
    """Wait for the job's end, which must be a refusal, and return its reason."""
    assert job.exit_code() == EXIT_USAGE, job.said()
    (end,) = job.records("end_job")
    job.assert_nothing_is_left()
    return str(end["reason"])


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("eval", "buffer '1.num_batches_tracked' in different ways; call train() or eval() alike"),
        ("forward", "buffer '1.running_mean' differs between replicas (digest "),
        ("buffer", "buffer '1.running_mean' differs between replicas (digest "),
        ("requires_grad", "requires_grad of '0.bias' differs between replicas (False on r1; True"),
        ("optimizer", "momentum_buffer of '2.bias' in the state of optimizer 0 differs between"),
        ("weight", "parameter '2.weight' differs between replicas (digest "),
        ("lr", "lr of parameter group 0 of optimizer 0 differs between replicas (0.01 on r1; 0."),
        ("extra", "extra_state['tally']['counts'][0] differs between replicas (5 on r1; 4 on r2)"),
    ],
)
def test_what_is_changed_on_one_replica_ends_the_run_with_its_name(
    tmp_path: Path, what: str, name: str
) -> None:
    with running(tmp_path, SCRIPT, "--what", what, replicas=2, warm=True) as job:
        reason = ended(job)

    assert name in reason
    step = 12 if what == "extra" else 6  # what only the script can give is looked at now and then
    assert f"at step {step} " in reason or what == "eval"  # told by the sums of the step itself


def test_survivors_that_differ_are_named_and_not_the_joiner(tmp_path: Path) -> None:
    words = (SCRIPT, "--what", "unseen", "--steps", 10_000)
    with running(tmp_path, *words, replicas=3, start=2, warm=True) as job:
        job.wait_for_steps(8)
        scale(job, 3)
        reason = ended(job)
        started = job.records("start_replica")

    assert "extra_state['tally']['counts']" in reason
    assert "on r1" in reason
    assert [record["replica"] for record in started] == ["r1", "r2", "r3"]
