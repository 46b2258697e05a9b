"""Data that one process of a job prepares while the others wait, whoever dies over it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes.elastic import scale
from tests.processes.launching import RunningJob, running
from tests.processes.test_durable import suspend

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SCRIPT = """\
import os, sys, time, numpy, torch, pliant
pliant.seed(1)
with pliant.once("to/kens") as first:
    if first:
        with open("who", "a") as who:
            print(os.getpid(), file=who)
        if os.path.exists("bad"):
            raise OSError("the mirror is away")
        with open("tokens.bin", "wb") as file:
            for part in range(16):
                file.write(numpy.full(16, part, "float32").tobytes())
                file.flush()
                while part == 8 and not os.path.exists("go"):
                    time.sleep(0.01)
data = torch.utils.data.TensorDataset(torch.from_numpy(numpy.fromfile("tokens.bin", "float32")))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
with pliant.Session(model=model, optimizer=optimizer, dataset=data, global_batch_size=32,
                    micro_batch_size=4,
                    checkpoint=pliant.Checkpoint("kept", every="1steps")) as session:
    for step in session.steps(int(sys.argv[1])):
        for (x,) in step:
            step.backward(model(x[:, None]).square().mean())
        time.sleep(0.05)
        if os.path.exists("over"):
            step.stop()
    digest = f"{session.committed} {session.state_digest()}"
    if session.leader:
        print(digest, file=open("digest", "w"))
"""


def who(directory: Path) -> list[int]:
    path = directory / "who"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_one_prepares_for_all_and_another_takes_over_from_one_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def begun(job: RunningJob, count: int) -> list[int]:
        found: list[int] = job.wait_for(
            lambda: len(who(tmp_path)) == count and who(tmp_path), "the block runs"
        )
        return found

    with running(tmp_path, script, 1000, replicas=3, start=2, warm=True) as job:
        (first,) = begun(job, 1)
        os.kill(first, signal.SIGKILL)
        begun(job, 2)
        (tmp_path / "go").touch()
        job.wait_for_steps(2)
        scale(job, 3)
        job.wait_for(lambda: len(list(job.out.glob("ledger/*"))) > 2, "a third trains")
        suspend(job, 4)
        assert job.process.wait(60) == 3, job.said()
    (tmp_path / "over").touch()
    with running(tmp_path, script, 1000, replicas=1, warm=True) as job:
        assert job.process.wait(60) == 0, job.said()
        job.assert_nothing_is_left()

    assert len(who(tmp_path)) == 2
    steps, digest = (tmp_path / "digest").read_text().split()
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "go").touch()
    subprocess.run([sys.executable, script, steps], cwd=plain, check=True, timeout=60)
    assert (plain / "digest").read_text().split() == [steps, digest]


def test_a_block_that_fails_is_everybodys_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "bad").touch()

    with running(tmp_path, script, 2, replicas=2, warm=True) as job:
        assert job.process.wait(60) == 2, job.said()
        job.assert_nothing_is_left()

    assert len(who(tmp_path)) == 1
    (told,) = {record["sentence"] for record in job.records("usage")}
    assert "pliant.once('to/kens') failed on r" in told
    assert "OSError: the mirror is away; nothing was prepared" in told
