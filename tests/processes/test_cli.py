"""The commands that people type, against real jobs with real processes.

Those of the first tests, the smallest example and the demo are interpreters of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.prompt import WAIT_S, run_typed, statuses

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SLOW = """\
import sys, threading, torch, pliant
pliant.seed(1)
model = torch.nn.Linear(4, 1)
x = torch.randn(512, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
with pliant.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                    dataset=data, global_batch_size=32, micro_batch_size=4) as session:
    for step in session.steps(int(sys.argv[1])):
        for a, b in step:
            step.backward(torch.nn.functional.mse_loss(model(a), b))
        print("said", sys.argv[2:], flush=True)
        session.log(loss=step.loss)
        threading.Event().wait(0.02)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SLOW)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PLIANT_")}
    return {**kept, "XDG_STATE_HOME": str(home / "state"), "NO_COLOR": "1", "COLUMNS": "200"}


def pliant(
    home: Path, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return run_typed("pliant", *arguments, cwd=cwd or home, environment=environment(home))


def pliant_afresh(
    home: Path, *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in an interpreter of its own; it may leave a job in the background."""
    return subprocess.run(
        [sys.executable, "-m", "pliant", *arguments],
        cwd=cwd or home,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def status(home: Path) -> dict[str, Any]:
    running = statuses(environment(home))
    return running[0] if running else {"state": "gone"}


def wait_for(home: Path, what: str, **wanted: object) -> dict[str, Any]:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        now = status(home)
        if all(now.get(name) == value for name, value in wanted.items()):
            training = [
                one["name"] for one in now.get("replicas", ()) if one["state"] == "training"
            ]
            if not what or what == ",".join(training):
                return now
        time.sleep(0.05)
    raise AssertionError(f"not seen in {WAIT_S} s: {what} {wanted}; last: {now}")


@pytest.fixture
def job(home: Path) -> Iterator[Path]:
    """A job in the background that would run for hours; two replicas of at most three."""
    started = pliant_afresh(
        home, "run", "--detach", "--name", "slow", "--max", "3", "--start", "2", "train.py",
        "--", "100000", "--min", "7",
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    yield home
    pliant_afresh(home, "stop")
    deadline_s = time.monotonic() + WAIT_S
    while list((home / "state" / "pliant" / "jobs").iterdir()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert list((home / "state" / "pliant" / "jobs").iterdir()) == []


def test_a_job_is_resized_and_followed_from_any_directory(job: Path) -> None:
    wait_for(job, "r1,r2", state="training")

    assert pliant_afresh(job, "scale", "3", cwd=Path("/")).returncode == 0
    wait_for(job, "r1,r2,r3", target_replicas=3)
    assert pliant_afresh(job, "drain", "r3", "--notice", "20s").returncode == 0
    wait_for(job, "r1,r2", target_replicas=2)
    assert pliant_afresh(job, "kill", "r2").returncode == 0
    now = wait_for(job, "r1,r4", target_replicas=2)

    assert [event["kind"] for event in now["events"]] == ["join", "drain", "loss", "join"]
    assert now["steps_lost"] == 0
    refused = pliant_afresh(job, "scale", "9")
    assert (refused.returncode, refused.stderr) == (
        2,
        "pliant: 9 replicas would be above maxReplicas=3\n",
    )
    assert "said ['--min', '7']" in pliant_afresh(job, "logs", "r1").stdout
    assert "as requested" in pliant_afresh(job, "explain").stdout


def test_stopping_ends_with_3_and_a_clean_ledger(home: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "pliant", "run", "--max", "2", "train.py", "100000"],
        cwd=home,
        env=environment(home),
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(home, "r1,r2", state="training")

    assert pliant_afresh(home, "stop").returncode == 0
    said, _ = run.communicate(timeout=WAIT_S)

    assert run.returncode == 3
    assert "stopping at the next step boundary" in said
    audit = pliant_afresh(home, "audit", "--json")
    assert audit.returncode == 0, audit.stdout
    assert json.loads(audit.stdout)["samples_exactly_once"] is True
    assert "stopped on request after " in pliant_afresh(home, "status").stdout
    ended = json.loads(
        pliant_afresh(home, "status", "--job", "train", "--json", cwd=Path("/")).stdout
    )
    assert (ended["state"], ended["exit_code"], ended["go_on"]) == ("stopped", 3, None)
    assert next(iter(ended["last_words"].values()))[-1] == "said []"


def test_a_job_file_runs_like_options_and_its_audit_passes(home: Path) -> None:
    (home / "job.yaml").write_text(
        "apiVersion: pliant.dev/v1alpha1\nkind: ElasticJob\nmetadata: {name: filed}\n"
        "spec: {elasticPolicy: {maxReplicas: 2}, command: [train.py, '25']}\n"
    )

    run = pliant(home, "run", "job.yaml")

    assert run.returncode == 0, run.stderr
    assert "step 25/25" in run.stdout
    metrics = (home / "runs" / "filed" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == list(range(25))
    assert pliant(home, "audit").returncode == 0


def test_the_smallest_example_runs_alone_and_elastically(home: Path) -> None:
    example = str(ROOT / "examples" / "minimal.py")

    alone = run_typed(example, cwd=home, environment=environment(home))
    elastic = pliant_afresh(home, "run", "--max", "2", example)

    assert (alone.returncode, elastic.returncode) == (0, 0)


@pytest.mark.timeout(400)
def test_the_quick_demo_proves_what_it_claims(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pliant", "demo", "--quick", "--json"],
        cwd=home,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((home / "runs" / "demo" / "report.json").read_text())
    assert report["bit_identical"] is True
    assert report["samples_exactly_once"] is True
    assert report["steps_lost"] == 0
    assert len(report["state_digest"]) >= 32
    assert report["median_step_s"] > 0
    kinds = [event["kind"] for event in report["events"]]
    assert (kinds.count("drain"), kinds.count("loss")) == (1, 1)
    assert kinds.count("join") >= 3
    assert all(
        {"reason", "generation", "step", "pause_s", "ready_s"} <= set(event)
        for event in report["events"]
    )
