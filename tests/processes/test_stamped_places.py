"""Checkpoints in a directory named by time: those of the first replica are the job's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes.elastic import kill, scale
from tests.processes.launching import running
from tests.processes.test_durable import suspend

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SCRIPT = """\
import os, sys, time, torch, pliant
pliant.seed(1)
stamp = f"outputs/{time.time_ns()}"
os.makedirs(stamp)
os.chdir(stamp)  # as Hydra does
x = torch.randn(320, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
with pliant.Session(model=model, optimizer=optimizer, dataset=x, global_batch_size=32,
                    micro_batch_size=4,
                    checkpoint=pliant.Checkpoint("ckpt", every="1steps")) as session:
    for step in session.steps(1000):
        for batch in step:
            step.backward(model(batch).square().mean())
        time.sleep(0.05)
        session.save("last.pt")
        if os.path.exists("../../over"):
            step.stop()
    if session.leader:
        print(session.committed, file=open(pliant.run_dir() / "end.txt", "w"))
"""


def test_the_place_of_the_first_replica_is_the_jobs_also_for_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with running(tmp_path, script, replicas=3, start=1, warm=True) as job:
        job.wait_for_steps(2)
        scale(job, 2)
        job.wait_for(lambda: len(list(job.out.glob("ledger/*"))) > 1, "a second trains")
        kill(job, "r1")
        job.wait_for(lambda: len(list(job.out.glob("ledger/*"))) > 2, "a third trains")
        suspend(job, 3)
        assert job.process.wait(60) == 3, job.said()
        assert not job.records("dismiss")
        before = len(job.records("commit"))
    (tmp_path / "over").touch()
    with running(tmp_path, script, replicas=1, warm=True) as job:
        assert job.process.wait(60) == 0, job.said()
        job.assert_nothing_is_left()

    for name in ("ckpt", "last.pt"):
        assert len(list(tmp_path.glob(f"outputs/*/{name}"))) == 1, name
    assert int((job.out / "outputs" / "end.txt").read_text()) > before / 2
    (told, *_) = [n for n in job.records("note") if "checkpoints go to" in n["text"]]
    assert "use pliant.run_dir()" in told["text"]
    assert told["lasting"]
