"""A real job whose leader is killed, and which is suspended and resumed, logs each step once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.live.stage import MARK, FreshStage

from pliant.client import Job
from pliant.machine import run_files

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(400)]

STEPS = 400
SCRIPT = f"""\
import threading, torch, pliant
pliant.seed(1)
model = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.randn(512, 4))
with pliant.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
                    dataset=data, global_batch_size=32, micro_batch_size=4,
                    checkpoint=pliant.Checkpoint("kept", every="50steps")) as session:
    for step in session.steps({STEPS}):
        for (x,) in step:
            step.backward(model(x).square().mean())
        session.log(loss=step.loss)
        threading.Event().wait(0.02)
        session.log(tail=step.index)
"""


def until(job: Job, is_true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    for _ in job.events():
        if is_true(found := job.status()):
            return found
    raise AssertionError(f"the job has ended: {job.status()}")


def trains_without(gone: str, step: int, now: dict[str, Any]) -> bool:
    states = {one["name"]: one["state"] for one in now["replicas"]}
    return now["step"] > step and gone not in states and [*states.values()] == ["training"] * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_step_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(SCRIPT)
    here = FreshStage()
    monkeypatch.setenv(MARK, here._mark)
    try:
        job = Job.submit("train.py", name="gpt", max=2, log_to="tensorboard:tb")
        until(job, lambda now: now["step"] > 20)
        for _ in range(3):
            names = [one["name"] for one in job.status()["replicas"] if one["state"] == "training"]
            job.kill(names[0])  # the oldest leads
            until(job, partial(trains_without, names[0], job.status()["step"] + 20))
        job.suspend()
        job.wait(60)
        end = job.resume().wait(200)
        while here.processes():
            threading.Event().wait(0.1)
    finally:
        here.end()

    assert end.state == "finished"
    out = job.out
    assert out is not None
    rows = [json.loads(line) for line in (out / run_files.METRICS).read_text().splitlines()]
    for name in ("loss", "tail"):
        assert [row["step"] for row in rows if name in row] == list(range(STEPS))
    found = EventAccumulator("tb/gpt", size_guidance={"scalars": 0})
    found.Reload()
    for name in ("loss", "tail"):
        assert [one.step for one in found.Scalars(name)] == list(range(STEPS))
    assert len(found.Scalars("pliant/replicas")) >= 3
