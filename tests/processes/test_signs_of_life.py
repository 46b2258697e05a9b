"""Who is alive and who is not: scripts that keep the interpreter lock, and processes that stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.live.stage import DEADLINE_S
from tests.processes import elastic
from tests.processes.launching import FAKE_WORKER, RunningJob, environment, running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

HEARTBEAT_S = 2.0

KEEPS_THE_LOCK = """
import ctypes, sys, torch, pliant

def keep_the_lock(seconds):
    ctypes.PyDLL(None).usleep(int(1e6 * seconds)) # as many a C extension does

class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(8) + index % 4, index % 4

keep_the_lock(3.5)  # as reading data does
pliant.seed(1)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
with pliant.Session(
    model=model, optimizer=optimizer, dataset=Dataset(), global_batch_size=8, micro_batch_size=4
) as session:
    for step in session.steps(6):
        for x, y in step:
            step.backward(torch.nn.functional.cross_entropy(model(x), y))
        if step.index == 2 and session.leader:
            keep_the_lock(3.5)
        if step.index == 3:
            with session.busy(max_s=0.5):
                keep_the_lock(3.5)
    print("digest", session.state_digest())
"""

PRINTS_MUCH = """
import torch, pliant

pliant.seed(1)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x = torch.randn(64, 8)
with pliant.Session(
    model=model, optimizer=optimizer, dataset=torch.utils.data.TensorDataset(x, x.sum(1)),
    global_batch_size=8, micro_batch_size=4,
) as session:
    for step in session.steps(6):
        for x, y in step:
            step.backward(model(x).mean())
        for _ in range(400):
            print("a long line" + 500 * ".")
"""


def digests(directory: Path) -> list[str]:
    logs = (directory / "out" / "logs").glob("r*.log")
    lines = [line for path in logs for line in path.read_text().splitlines()]
    return [line for line in lines if line.startswith("digest")]


def has_stopped(job: RunningJob) -> bool:
    return time.monotonic() - float(job.records("commit")[-1]["mono"]) > 2.0


def test_a_script_may_keep_the_interpreter_lock_for_longer_than_a_heartbeat(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(KEEPS_THE_LOCK)

    with running(
        tmp_path, script, replicas=2, warm=True, settings={"heartbeat_s": HEARTBEAT_S}
    ) as job:
        assert job.exit_code() == 0, job.said()

        assert [end["reason"] for end in job.records("end_replica")] == []
        assert {record["replica"] for record in job.records("start_replica")} == {"r1", "r2"}
        found = digests(tmp_path)
        assert len(found) == 2
        assert len(set(found)) == 1


@pytest.mark.parametrize("members", [pytest.param(1, marks=pytest.mark.soak), 2])
@pytest.mark.soak
def test_who_keeps_the_lock_through_several_attempts_of_a_resize_is_waited_for(
    tmp_path: Path, members: int
) -> None:
    """Nobody can build a group with it meanwhile, and nobody is to blame: no joiner either."""

    def grow(job: RunningJob) -> None:
        job.wait_for_steps(6)
        job.wait_for(lambda: has_stopped(job), "the lock is kept")
        elastic.scale(job, members + 1)
        elastic.wait_for_members(job, *(f"r{n}" for n in range(1, members + 2)))

    outcome = elastic.run(
        tmp_path,
        "gpt",
        30,
        grow,
        replicas=members + 1,
        start=members,
        pace=0.05,
        faults=f"r{members}@tail:6=lock:15",
        settings={"prepare_s": 2.0},
    )

    outcome.check(elastic.reference("gpt", 30))
    assert outcome.kinds("end_replica") == []
    assert {r["exited_kind"] for r in outcome.kinds("exited")} == {"finished"}
    assert len(outcome.kinds("start_replica")) == members + 1


def test_a_loop_that_hangs_is_ended_at_once_if_one_does_not_want_to_wait(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 2, 600, replicas=2) as job:
        job.wait_for(lambda: job.records("switch"), "they train")
        with job.client() as client:
            assert client.post("/v1/stop").status_code == 202
            answer = client.post("/v1/stop", json={"now": True})

        assert answer.json()["reason"] == "stopped on request, at once, after 0 steps"
        assert job.exit_code() == 3
        job.assert_nothing_is_left()


def test_sigterm_ends_a_run_that_comes_to_no_boundary_within_the_grace(tmp_path: Path) -> None:
    grace = {"graceful_shutdown_timeout_s": 0.4}
    with running(tmp_path, FAKE_WORKER, 2, 600, replicas=2, policy=grace) as job:
        job.wait_for(lambda: job.records("switch"), "they train")

        job.process.send_signal(signal.SIGTERM)

        assert job.exit_code() == 3, job.said()
        assert "without reaching a step boundary in time" in job.records("job_ended")[-1]["reason"]
        job.assert_nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang", "lock"])
def test_sigterm_kills_who_hangs_and_lets_the_others_save(tmp_path: Path, how: str) -> None:
    """Also who keeps the interpreter lock, and cannot even say so."""

    def hang_and_end(job: RunningJob) -> None:
        job.wait_for_steps(6)
        job.wait_for(lambda: has_stopped(job), "r1 waits for r2")
        job.process.send_signal(signal.SIGTERM)

    outcome = elastic.run(
        tmp_path,
        "gpt",
        10_000,
        hang_and_end,
        replicas=2,
        faults=f"r2@micro_batch:6={how}:10000",
        arguments=("--checkpoint", tmp_path / "kept", "--every", "100000steps"),
        policy={"graceful_shutdown_timeout_s": 6.0},
        expected_code=3,
    )

    ended = {one["replica"]: one["reason"] for one in outcome.kinds("end_replica")}
    assert ended["r2"] == "the job is to stop, and the others wait for it"
    committed = outcome.kinds("commit")[-1]["step"] + 1
    assert outcome.kinds("saved")[-1]["committed"] == committed > 6
    assert "stopped on request after" in outcome.kinds("job_ended")[-1]["reason"]


def test_the_last_holder_of_the_state_is_waited_for_while_it_is_stopped(tmp_path: Path) -> None:
    limits = {"heartbeat_s": 0.8}
    with running(tmp_path, FAKE_WORKER, 10_000, 0.02, replicas=1, settings=limits) as job:
        job.wait_for_steps(2)
        os.kill(job.pid_of("r1"), signal.SIGSTOP)
        job.wait_for(
            lambda: [one for one in job.records("note") if "waited for" in one["text"]],
            "its silence is told",
        )
        os.kill(job.pid_of("r1"), signal.SIGCONT)
        job.wait_for_steps(len(job.records("commit")) + 10)
        job.stop()

        assert job.records("end_replica") == []


def test_a_reader_that_stops_reading_does_not_hold_the_training_up(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PRINTS_MUCH)
    command = [sys.executable, "-m", "pliant", "run", "--max", "1", "--out", "out", str(script)]
    log = tmp_path / "out" / "events.jsonl"

    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        deadline_s = time.monotonic() + DEADLINE_S
        while not (log.exists() and '"job_ended"' in log.read_text()):  # nothing is read meanwhile
            assert process.poll() is None
            assert time.monotonic() < deadline_s, "it waits for its reader"
            time.sleep(0.05)
        said, _ = process.communicate()

    assert process.returncode == 0
    assert said.count("a long line") == 6 * 400
