"""Whole jobs with the real engine, poked from outside: what survives, and what is left.

Only that the parts fit together is asked here; which faults at which moment is asked elsewhere.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.live.prompt import run_typed
from tests.processes.launching import RunningJob, running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

SCRIPT = """
import sys, time, torch, pliant

class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.randn(16) + index % 4, index % 4

pliant.seed(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
steps, pace, num_workers = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
with pliant.Session(
    model=model, optimizer=optimizer, dataset=Dataset(), global_batch_size=16, micro_batch_size=4,
    num_workers=num_workers,
) as session:
    for step in session.steps(steps):
        for x, y in step:
            time.sleep(pace)
            step.backward(torch.nn.functional.cross_entropy(model(x), y))
    print("digest", session.state_digest())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def training(job: RunningJob) -> set[str]:
    with job.client() as client:
        replicas = client.get("/v1/status").json()["replicas"]
    return {replica["name"] for replica in replicas if replica["state"] == "training"}


@pytest.mark.parametrize(
    ("moment", "forked"),
    [("worker", True), ("prepare", True), ("switch", True), ("commit", False)],
)
def test_killing_coordinator_and_agent_at_any_moment_leaves_nothing(
    tmp_path: Path, script: Path, moment: str, forked: bool
) -> None:
    with running(tmp_path, script, 10_000, 0.02, 2, warm=True, forked=forked) as job:
        job.wait_for(lambda: job.records(moment), f"the first {moment}")

        job.process.kill()

        job.exit_code()
        job.assert_nothing_is_left()


SLOW_TO_BEGIN = SCRIPT.replace("time.sleep(pace)", "wait_for(sys.argv[4])")
"""Each micro-batch waits until a file is there."""

SLOW_TO_END = SCRIPT + "    leads = session.leader\nwait_for(sys.argv[5 if leads else 4])\n"
"""Behind the session the leader waits for one file, and all others for another."""

WAITING = """
def wait_for(path):
    while not __import__("os").path.exists(path):
        time.sleep(0.01)
"""


@pytest.fixture
def gates(tmp_path: Path) -> tuple[Path, Path]:
    """Return two paths for which scripts wait."""
    return tmp_path / "gate", tmp_path / "leader's gate"


def waiting(script: Path, text: str) -> Path:
    script.write_text(text.replace("class Dataset", f"{WAITING}\nclass Dataset"))
    return script


def test_a_job_whose_replicas_are_killed_before_the_first_step_begins_again(
    tmp_path: Path, script: Path, gates: tuple[Path, Path]
) -> None:
    gate, _ = gates
    alone = run_typed(script, "5", "0", "0", cwd=tmp_path, environment=os.environ)
    waiting(script, SLOW_TO_BEGIN)

    with running(tmp_path, script, 5, 0, 0, gate, warm=True) as job:
        first = job.wait_for(lambda: len(names := training(job)) == 2 and names, "two train")
        for replica in first:
            os.kill(job.pid_of(replica), signal.SIGKILL)
        gate.touch()

        assert job.exit_code() == 0, job.said()
        later = [path for path in (job.out / "logs").glob("r*.log") if path.stem not in first]
        said = {line for path in later for line in path.read_text().splitlines()}
        assert said == {alone.stdout.splitlines()[-1]}
        job.assert_nothing_is_left()


@pytest.mark.parametrize(("rank", "code"), [(0, 1), (1, 0)])
def test_a_kill_behind_the_last_step_is_told_and_is_a_failure_if_it_is_the_leader(
    tmp_path: Path, script: Path, gates: tuple[Path, Path], rank: int, code: int
) -> None:
    gate, other = gates
    waiting(script, SLOW_TO_END)

    with running(tmp_path, script, 5, 0, 0, gate, other, warm=True) as job:
        job.wait_for(lambda: job.records("release"), "all are released")
        order = [record for record in job.records("switch")][-1]["order"]
        killed = order["members"][rank]["replica"]
        os.kill(job.pid_of(killed), signal.SIGKILL)
        job.wait_for(lambda: job.records("exited"), "its exit is known")
        for path in gates:
            path.touch()

        assert job.exit_code() == code, job.said()
        said = job.records("job_ended")[-1]["reason"]
        assert said.startswith(f"finished 5 steps; then {killed} was killed: SIGKILL, before its")
        assert ("may be missing" in said) == (rank == 0)
        job.assert_nothing_is_left()
