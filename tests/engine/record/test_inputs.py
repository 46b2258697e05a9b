"""What a resume says of data, modules and files that are others than when the run was kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.live.prompt import run_typed

from pliant.engine.record.inputs import Inputs

SCRIPT = """\
import sys, torch, pliant
import helper
x = torch.load("data.pt")
model = torch.nn.Linear(4, 1)
with pliant.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=x,
                    global_batch_size=8, micro_batch_size=4, shuffle=False,
                    checkpoint=pliant.Checkpoint("kept")) as session:
    for step in session.steps(helper.STEPS):
        for rows in step:
            step.backward(model(rows).square().mean())
"""


def test_other_data_behind_the_same_path_are_refused_and_an_edited_module_is_told(
    tmp_path: Path,
) -> None:
    import torch

    def run(**variables: str) -> tuple[int, str]:
        done = run_typed(tmp_path / "t.py", cwd=tmp_path, environment={**os.environ, **variables})
        return done.returncode, done.stderr

    (tmp_path / "t.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("STEPS = 2")
    torch.save(torch.ones(64, 4), tmp_path / "data.pt")
    assert run()[0] == 0
    (tmp_path / "helper.py").write_text("STEPS = 40 // 10")
    torch.save(torch.zeros(64, 4), tmp_path / "data.pt")

    code, said = run()

    assert code != 0
    assert (
        "sample 0 of the dataset is not what it was when the run was kept: other data lie behind "
        "the same path; put them back, or go on with these: --from-checkpoint anyway (a script "
        "that runs alone: PLIANT_FROM_CHECKPOINT=anyway)" in said
    )
    code, said = run(PLIANT_FROM_CHECKPOINT="anyway")
    assert code == 0, said
    assert "since the checkpoint was written helper changed; the run goes on with what is" in said


def test_another_hash_seed_and_another_file_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    inputs = Inputs({}, said.append, goes_on_anyway=False)
    kept = json.loads(inputs.pack())
    monkeypatch.setattr(
        inputs, "pack", lambda: json.dumps(kept | {"reads": {"/a": [1, 1, "b"]}}).encode()
    )

    inputs.compare(json.dumps(kept | {"hash": "1", "reads": {"/a": [1, 1, "a"]}}).encode())

    assert said == [
        "since the checkpoint was written /a changed; the run goes on with what is there now",
        "PYTHONHASHSEED is another than when the run was kept: sets are iterated over in another "
        "order",
    ]
