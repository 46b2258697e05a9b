"""What makes results wrong without an error is told in the closing lines and in the status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.live.prompt import run_typed
from tests.processes.test_cli import environment

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
