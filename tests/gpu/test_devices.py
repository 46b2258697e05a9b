"""Which GPU a worker sees, as the driver says it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.gpu.here import DEVICES, on_gpu

pytestmark = on_gpu

SCRIPT = """
import json, os, sys
from torch import nn
import torch, pliant
before = torch.cuda.is_initialized()
model = nn.Linear(4, 4).to(pliant.device())
rows = [torch.ones(4)] * 8
with pliant.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                    dataset=rows, global_batch_size=4, micro_batch_size=4) as session:
    for step in session.steps(2):
        for batch in step:
            step.backward(model(batch.to(pliant.device())).sum())
facts = {"before": before, "count": torch.cuda.device_count(), "where": str(pliant.device()),
         "uuid": str(torch.cuda.get_device_properties(0).uuid),
         "mask": os.environ["CUDA_VISIBLE_DEVICES"]}
open(sys.argv[1], "w").write(json.dumps(facts))
"""


def test_a_worker_sees_the_one_device_that_it_was_given(tmp_path: Path) -> None:
    script, facts = tmp_path / "train.py", tmp_path / "facts.json"
    script.write_text(SCRIPT)
    words = ["run", "--max", "1", "--out", "out", str(script), str(facts)]

    run = subprocess.run(
        [sys.executable, "-m", "pliant", *words],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    seen = json.loads(facts.read_text())
    assert (seen["before"], seen["count"], seen["where"]) == (False, 1, "cuda:0")
    first = DEVICES[0].name.partition(":")[2]
    assert seen["mask"] == first
    assert not first.startswith("GPU-") or first == f"GPU-{seen['uuid']}"
