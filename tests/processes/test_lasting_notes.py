"""What makes results wrong without an error is told in the closing lines and in the status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.live.prompt import run_typed
from tests.processes.elastic import scale
from tests.processes.launching import running
from tests.processes.test_cli import environment

from pliant.core.errors import EXIT_OK, EXIT_USAGE

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

SWALLOWS = """\
import torch, pliant
pliant.seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with pliant.Session(model=model, optimizer=optimizer, dataset=torch.randn(64, 4),
                    global_batch_size=16, micro_batch_size=4) as session:
    for step in session.steps(8):
        for x in step:
            try:
                if session.replica == "r2" and step.index == 5:
                    raise OSError("for a moment")
                step.backward((model(x) - x.sum(1, keepdim=True)).square().mean())
            except OSError:
                continue
"""


def test_an_error_that_a_script_passes_over_is_told_at_the_end_and_counted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SWALLOWS)

    ran = run_typed(
        "pliant", "run", "--start", "2", "--max", "2", "train.py",
        cwd=tmp_path, environment=environment(tmp_path),
    )  # fmt: skip
    status, audit = (
        run_typed(
            "pliant", *words, "--job", "train", cwd=tmp_path, environment=environment(tmp_path)
        ).stdout
        for words in (("status", "--json"), ("audit",))
    )

    assert ran.returncode == 0, ran.stderr
    (closing,) = (line for line in ran.stdout.splitlines() if line.startswith("warning (r2): "))
    said = "step.backward was not called for micro-batch 2 (samples "
    assert said in closing
    assert [said in warning["text"] for warning in json.loads(status)["warnings"]] == [True]
    assert audit.startswith("every sample handed out exactly once, 8 samples in no gradient (")


KEEPS_BEST = """\
import pathlib, sys, time, torch, pliant
pliant.seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best, over = 0.0, pathlib.Path(sys.argv[1])
with pliant.Session(model=model, optimizer=optimizer, dataset=torch.randn(64, 4),
                    global_batch_size=16, micro_batch_size=4) as session:
    for step in session.steps(100_000):
        for x in step:
            step.backward((model(x) - x.sum(1, keepdim=True)).square().mean())
        if step.index == 5:
            best = 7.5
        if over.exists():
            step.stop()
        time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
def test_a_variable_that_differs_on_a_joiner_is_told_or_refused(
    tmp_path: Path, strict: bool
) -> None:
    (tmp_path / "train.py").write_text(KEEPS_BEST)
    words = (tmp_path / "train.py", tmp_path / "over")
    with running(tmp_path, *words, replicas=2, start=1, warm=True, strict=strict) as job:
        job.wait_for_steps(10)
        scale(job, 2)
        job.wait_for(lambda: "'best' is 0.0 here and 7.5" in str(job.records()), "it is seen")
        (tmp_path / "over").touch()
        code = job.exit_code()
        (end,) = job.records("end_job")
        job.assert_nothing_is_left()

    assert code == (EXIT_USAGE if strict else EXIT_OK)
    assert ("; --strict refuses it (" in end["reason"]) is strict
