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


@pytest.mark.parametrize(
    ("top", "sentence"),
    [
        (
            "scale = float(open('config').read())",
            "config changed after this run began, and the replicas that train read it before; put "
            "it back, then pliant scale N; or end the run, and resume it with the new one",
        ),
        (
            "log = open('log.csv', 'w'); log.write('step,loss'); log.flush()",
            "this replica would empty log.csv, which the run has written before it came; let one",
        ),
        (
            "torch.save(torch.ones(2), 'w.pt')",
            "this replica would empty w.pt, which the run has written before it came; let one",
        ),
    ],
)
def test_a_replacement_that_reads_or_would_destroy_is_refused_once_and_the_run_goes_on(
    tmp_path: Path, top: str, sentence: str
) -> None:
    (tmp_path / "config").write_text("1.0")
    script = written(tmp_path, top)
    with running(tmp_path, script, replicas=2, warm=True, cwd=tmp_path) as job:
        job.wait_for_steps(3)
        (tmp_path / "config").write_text("2.0")
        os.kill(job.pid_of("r2"), signal.SIGKILL)
        said = job.wait_for(lambda: refused(job), "r3 is refused")
        let_end(job)

    assert sentence in said
    assert {record["replica"] for record in job.records("worker")} == {"r1", "r2", "r3"}
    if "log" in top:
        assert (tmp_path / "log.csv").read_text() == "step,loss"


def refused(job: RunningJob) -> str:
    """Return why nothing more is started, once that is said."""
    texts = [str(record["text"]) for record in job.records("note")]
    return next(
        (
            text
            for text in texts
            if "starts nothing more until pliant scale N, as r3 was refused" in text
        ),
        "",
    )


@pytest.mark.parametrize("is_in_tail", [True, False])
def test_a_leader_that_dies_in_its_tail_is_told_with_the_step(
    tmp_path: Path, is_in_tail: bool
) -> None:
    script = written(tmp_path)
    text = script.read_text().replace("        while ", "        session.leader\n        while ")
    if not is_in_tail:
        wait = text.partition("leader\n")[2].partition("    if")[0].replace("5", "6")
        text = text.replace("        for a", wait + "        for a").replace("== 5", "== 50")
    script.write_text(text)
    with running(tmp_path, script, replicas=2, warm=True, cwd=tmp_path) as job:
        job.wait_for_steps(6)
        os.kill(job.pid_of("r1"), signal.SIGKILL)
        job.wait_for(lambda: any(r["replica"] == "r3" for r in job.records("spare")), "r3 comes")
        let_end(job)

    told = [str(one["text"]) for one in job.records("note") if one.get("lasting")]
    sentence = (
        "r1 was lost in the tail of step 5, which it led: what the leader alone was to write there "
        "may be missing"
    )
    assert told == [sentence] * is_in_tail


@pytest.mark.parametrize(("replicas", "is_killed"), [(2, True), (1, True), (2, False)])
def test_a_leader_that_is_killed_with_a_file_open_is_told(
    tmp_path: Path, replicas: int, is_killed: bool
) -> None:
    script = written(tmp_path, 'log = open("rows.csv", "a")')
    text = script.read_text().replace("        while ", "        session.leader\n        while ")
    kept = 'dataset=data, checkpoint=pliant.Checkpoint("kept", every="1steps"),'
    script.write_text(text.replace("dataset=data,", kept))
    with running(tmp_path, script, replicas=replicas, warm=True, cwd=tmp_path) as job:
        job.wait_for_steps(6)  # it is in the tail of step 5, until it may go on
        if is_killed:
            os.kill(job.pid_of("r1"), signal.SIGKILL)
        else:
            with job.client() as client:
                client.post("/v1/replicas/r1/drain").raise_for_status()
        let_end(job)

    told = {str(one["text"]) for one in job.records("note") if one.get("lasting")}
    sentence = (
        "r1, which led, was lost: what it had not flushed to rows.csv is missing; "
        "session.open_log(path) keeps every row"
    )
    tail = (
        "r1 was lost in the tail of step 5, which it led: what the leader alone was to write there "
        "may be missing"
    )
    assert told == ({sentence, *[tail][: replicas - 1]} if is_killed else set())
