"""What a script reads and writes beside the session, while replicas come and go."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.live.prompt import run_typed
from tests.processes.launching import RunningJob, running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

SCRIPT = """\
import pathlib, threading, torch, pliant
import losses
{top}
pliant.seed(1)
model = torch.nn.Linear(4, 1)
x = torch.randn(256, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
with pliant.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                    dataset=data, global_batch_size=32, micro_batch_size=4) as session:
    for step in session.steps(12):
        for a, b in step:
            step.backward(losses.mean(model(a), b))
        while step.index == 5 and not pathlib.Path("go").exists():
            threading.Event().wait(0.02)
    if session.leader:
        pathlib.Path("digest").write_text(session.state_digest())
"""

LOSSES = "def mean(mine, theirs): return (mine - theirs).square().mean()\n"


def written(directory: Path, top: str = "") -> Path:
    """Write a script of several files, with these lines at its top."""
    (directory / "losses.py").write_text(LOSSES)
    (directory / "train.py").write_text(SCRIPT.format(top=top))
    return directory / "train.py"


def digest_alone(directory: Path, top: str = "") -> str:
    directory.mkdir()
    (directory / "go").touch()
    done = run_typed(written(directory, top), cwd=directory, environment=os.environ)
    assert done.returncode == 0, done.stderr
    return (directory / "digest").read_text()


def let_end(job: RunningJob) -> str:
    """Let the script go on to its end; return what the job said."""
    (job.directory / "go").touch()
    assert job.process.wait(60) == 0, job.said()
    return job.said()


def test_a_replacement_runs_the_text_that_the_run_began_with(tmp_path: Path) -> None:
    script = written(tmp_path)
    with running(tmp_path, script, replicas=2, warm=True, cwd=tmp_path) as job:
        job.wait_for_steps(3)
        script.write_text(SCRIPT.format(top="1 / 0"))
        (tmp_path / "losses.py").write_text(LOSSES.replace(".mean()", ".sum()"))
        os.kill(job.pid_of("r2"), signal.SIGKILL)
        job.wait_for(lambda: any(r["replica"] == "r3" for r in job.records("spare")), "r3 comes")
        let_end(job)

    assert (tmp_path / "digest").read_text() == digest_alone(tmp_path / "alone")
