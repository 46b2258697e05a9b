"""What people type to put a run aside and take it up again, and what they read meanwhile."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.checkpoint import plain_torch
from tests.checkpoint.test_broken_disk import may_mount
from tests.live.prompt import WAIT_S, run_typed, typed
from tests.processes.test_cli import ROOT, environment, pliant, pliant_afresh, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

HERE = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
"""For scripts that use a module of the tests."""

SLOWLY = {"PACE": "1"}
"""Seconds that a tail of the script takes: a run is to be stopped before its end."""

SCRIPT = """\
import contextlib, glob, os, sys, threading, torch, pliant
KEPT, EVERY = os.environ.get("KEPT", "kept"), os.environ.get("EVERY", "1h")
pliant.seed(1)
model = torch.nn.Linear(4, 1)
x = torch.randn(512, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
with pliant.Session(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
                    dataset=data, global_batch_size=32, micro_batch_size=4,
                    checkpoint=pliant.Checkpoint(KEPT, every=EVERY)) as session:
    try:
        for step in session.steps(int(sys.argv[1])):
            for a, b in step:
                step.backward(torch.nn.functional.mse_loss(model(a), b))
            threading.Event().wait(float(os.environ.get("PACE", 0)))
            if "FILL" in os.environ and glob.glob(KEPT + "/step-*/pliant.json"):
                fill = os.open(os.environ.pop("FILL"), os.O_WRONLY | os.O_CREAT)
                with contextlib.suppress(OSError):
                    while os.write(fill, bytes(1 << 16)): pass
                print("filled", flush=True)
    finally:
        print("leaving", session.leaving, flush=True)
    if session.leader:
        print("digest", session.committed, session.state_digest(), flush=True)
"""

INITIAL = """\
import os, sys, torch, pliant
from tests.checkpoint.plain_torch import model_and_optimizer
model, optimizer = model_and_optimizer()
if workers := int(os.environ.get("WORLD_SIZE", 0)):
    from torch.distributed.fsdp import fully_shard
    fully_shard(model, mesh=pliant.mesh(shard=workers)["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(3)
data = torch.utils.data.TensorDataset(torch.randn(64, 6), torch.randn(64, 3))
if len(sys.argv) > 2:
    whole = torch.load(sys.argv[2], weights_only=True)
    from torch.distributed.checkpoint.state_dict import (
        set_model_state_dict, set_optimizer_state_dict)
    set_model_state_dict(model, whole["model"])
    set_optimizer_state_dict(model, optimizer, whole["optim"])
with pliant.Session(model=model, optimizer=optimizer, dataset=data,
                    global_batch_size=24, micro_batch_size=8) as session:
    for step in session.steps(3):
        for a, b in step:
            step.backward(torch.nn.functional.mse_loss(model(a), b))
    digest = session.state_digest()
    if session.leader:
        open(sys.argv[1], "w").write(digest)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def digest_of(said: str) -> str:
    (line,) = [line for line in said.splitlines() if line.startswith("digest 40 ")]
    return line


def test_a_job_is_suspended_named_and_resumed_at_another_size(home: Path) -> None:
    alone = run_typed("train.py", "40", cwd=home, environment=environment(home))
    (home / "kept").rename(home / "of the run alone")
    words = ["pliant", "run", "--max", "2", "train.py", "40"]
    with typed(*words, cwd=home, environment=environment(home) | SLOWLY) as run:
        wait_for(home, "r1,r2", state="training")

        assert pliant(home, "suspend").returncode == 0
        done = run.ended()
    said, complained = done.stdout, done.stderr
    assert done.returncode == 3, complained
    assert "is durable" in said
    assert "leaving True" in said
    assert "digest" not in said  # what stands behind the loop is for a run that is done
    assert f": pliant resume {home}/runs/train" in complained
    assert "to go on: pliant resume train" in pliant(home, "status").stdout
    assert json.loads(pliant(home, "status", "--out", "runs/train", "--json").stdout)["state"] == (
        "suspended"
    )
    assert pliant(home, "checkpoint", "verify", "kept").returncode == 0

    resumed = pliant(home, "run", "--resume", "--max", "3", "train.py", "40")
    assert resumed.returncode == 0, resumed.stderr
    assert digest_of(resumed.stdout) == digest_of(alone.stdout)
    assert "finished" in pliant(home, "status").stdout.splitlines()[0]
    (known,) = json.loads(pliant(home, "ls", "--json").stdout)["runs"]
    assert (known["state"], known["lives"], known["go_on"]) == ("finished", 2, None)
    audit = json.loads(pliant(home, "audit", "--json", "--out", "runs/train").stdout)
    assert (audit["samples_exactly_once"], audit["superseded"]) == (True, 0)


def test_ctrl_c_saves_and_says_how_to_go_on(home: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "pliant", "run", "--max", "1", "train.py", "40"],
        cwd=home,
        env=environment(home) | SLOWLY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    wait_for(home, "r1", state="training")
    run.send_signal(signal.SIGINT)
    _, complained = run.communicate(timeout=WAIT_S)

    assert run.returncode == 3
    assert f"pliant resume {home}/runs/train" in complained
    resumed = pliant_afresh(home, "resume", "--detach")
    assert resumed.stdout == "job train runs in the background; follow it with pliant status\n"
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        status = json.loads(pliant(home, "status", "--out", "runs/train", "--json").stdout)
        if status["state"] == "finished":
            break
        time.sleep(0.2)
    assert (status["state"], status["step"]) == ("finished", 40)
    assert status["restored"]["committed"] > 0


def test_a_terminal_that_is_closed_saves_the_run(home: Path) -> None:
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(home)
        words = ["-m", "pliant", "run", "--max", "1", "train.py", "40"]
        os.execve(sys.executable, [sys.executable, *words], environment(home) | SLOWLY)
    events = home / "runs" / "train" / "events.jsonl"
    deadline_s = time.monotonic() + WAIT_S
    while not (events.exists() and '"kind":"commit"' in events.read_text()):
        assert time.monotonic() < deadline_s
        if select.select([terminal], [], [], 0.2)[0]:
            os.read(terminal, 1 << 16)
    os.close(terminal)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    status = json.loads(pliant(home, "status", "--out", "runs/train", "--json").stdout)
    assert status["checkpoint"]["committed"] == status["step"] > 0
    assert "to go on: pliant resume train" in pliant(home, "status").stdout


def on_a_small_disk(home: Path, *, cwd: str, kept: str) -> subprocess.CompletedProcess[str]:
    """Run in a namespace where ``disk`` is small, and full once a checkpoint was published."""
    if not may_mount():
        pytest.skip("needs the right to mount in a namespace of its own")
    (home / "disk").mkdir()
    run = f"exec {sys.executable} -m pliant run --max 1 {home}/train.py 12"
    words = f"mount -t tmpfs -o size=4m none disk && cd {cwd} && {run}"
    more = {"FILL": f"{home}/disk/fill", "KEPT": kept, "EVERY": "1steps", "PACE": "0.3"}
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", words],
        cwd=home,
        env=environment(home) | more,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_where_the_disk_of_its_directory_fills_up_a_run_trains_on(home: Path) -> None:
    done = on_a_small_disk(home, cwd="disk", kept=f"{home}/kept")

    assert done.returncode == 0, done.stderr  # the register has room of its own
    assert "filled" in done.stdout, done.stderr
    assert "digest 12 " in done.stdout


def test_what_cannot_be_resumed_is_refused_and_nothing_is_removed(home: Path) -> None:
    assert pliant(home, "resume").stderr == (
        "pliant: there is no run to resume here; name its directory\n"
    )
    assert "holds no run to resume; leave out --resume" in (
        pliant(home, "run", "--resume", "train.py", "1").stderr
    )
    done = pliant(home, "run", "--max", "1", "train.py", "3")
    assert done.returncode == 0
    (home / "train.py").write_text(SCRIPT.replace("pliant.seed(1)", "pliant.seed(2)"))

    other = pliant(home, "run", "--resume", "--max", "1", "train.py", "3")

    assert other.returncode == 2
    assert "seed is 2 here and 1 in checkpoint step-00000003-l1" in other.stderr
    assert (home / "runs" / "train" / "events.jsonl").exists()


def test_a_place_is_gone_on_from_by_the_same_job_with_the_same_arguments(home: Path) -> None:
    def run(
        *words: str, steps: int = 3, script: tuple[str, ...] = ("train.py",)
    ) -> subprocess.CompletedProcess[str]:
        return pliant(home, "run", "--max", "1", *words, *script, str(steps))

    assert run().returncode == 0

    module = ("-m", "train")  # the same file
    again, other_job = run(script=module), run("--name", "tune")
    other_arguments = run(steps=5, script=module)
    assert again.returncode == 0
    assert "the run goes on after step 3, from checkpoint step-00000003-l1 of" in again.stdout
    assert "already finished (3 steps)" in again.stdout
    assert "its arguments are now 5" in other_arguments.stdout
    longer = pliant(home, "resume", "--", "train.py", "6")
    assert "goes on after step 5" in longer.stdout
    assert "digest 6" in longer.stdout
    kept = sorted(path.name for path in (home / "kept").glob("step-*"))
    text = (home / "train.py").read_text()
    (home / "train.py").write_text(text.replace("lr=0.1", "lr=0.3"))
    other_rate = run(steps=7)
    (home / "train.py").write_text(text)
    for refused, why in (
        (other_job, "and this is another job: job tune (train.py 3); give this run a place"),
        (other_rate, "lr of optimizer 0 is 0.3 here and 0.1 in checkpoint step-00000006-l"),
    ):
        assert refused.returncode == 2, refused.stderr
        assert why in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert {*kept} <= {path.name for path in (home / "kept").glob("step-*")}

    anyway = run("--from-checkpoint", "anyway", steps=6)
    assert "goes on after step 6" in anyway.stdout
    anew = run("--from-checkpoint", "never", "--name", "tune", steps=6)
    assert "goes on after" not in anew.stdout
    digests = [line for r in (anyway, anew) for line in r.stdout.splitlines() if "digest 6" in line]
    assert len(digests) == 2
    assert len(set(digests)) == 1
    assert "--resume goes on; leave out one of them" in (
        run("--from-checkpoint", "never", "--resume").stderr
    )


@pytest.mark.soak
def test_what_too_few_replicas_have_is_saved_before_the_job_gives_up(home: Path) -> None:
    words = ["pliant", "run", "--min", "2", "--max", "2", "--max-restarts", "0", "train.py", "40"]
    with typed(*words, cwd=home, environment=environment(home) | SLOWLY) as run:
        now = wait_for(home, "r1,r2", state="training")
        os.kill(now["replicas"][0]["pids"][-1], signal.SIGKILL)
        done = run.ended()

    assert done.returncode == 1
    assert "fewer than minReplicas=2 are left" in done.stderr
    status = json.loads(pliant(home, "status", "--out", "runs/train", "--json").stdout)
    assert status["checkpoint"]["committed"] == status["step"] > 0
    resumed = pliant(home, "run", "--resume", "--max", "2", "train.py", "40")
    assert resumed.returncode == 0, resumed.stderr
    audit = json.loads(pliant(home, "audit", "--json", "--out", "runs/train").stdout)
    assert (audit["samples_exactly_once"], audit["superseded"]) == (True, 0)


@pytest.mark.timeout(240)
def test_a_sharded_checkpoint_of_plain_torch_starts_replicas_of_any_number_and_shape(
    tmp_path: Path,
) -> None:
    sharded, whole = tmp_path / "sharded", tmp_path / "whole.pt"
    around = environment(tmp_path) | HERE
    written = run_typed(
        plain_torch.__file__, "write", sharded, whole, cwd=tmp_path, environment=around
    )
    assert written.returncode == 0, written.stderr
    assert set(torch.load(whole, weights_only=True)) == {"model", "optim"}
    (tmp_path / "start.py").write_text(INITIAL)
    alone = run_typed("start.py", "expected", whole, cwd=tmp_path, environment=around)
    assert alone.returncode == 0, alone.stderr
    for replicas, workers in ((1, 1), (2, 1), (3, 1), (2, 2)):
        words = ["run", "--init", sharded, "--max", replicas, "--workers-per-replica", workers]
        done = run_typed("pliant", *words, "start.py", "got", cwd=tmp_path, environment=around)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "got").read_text() == (tmp_path / "expected").read_text()
        (tmp_path / "got").unlink()


@pytest.mark.parametrize("is_moved", [True, False], ids=["moved", "removed"])
def test_a_run_that_loses_its_directory_keeps_what_it_has_trained(
    home: Path, is_moved: bool
) -> None:
    alone = run_typed("train.py", "40", cwd=home, environment=environment(home))
    (home / "kept").rename(home / "of the run alone")
    words = ["pliant", "run", "--max", "1", "--out", "out", "train.py", "40"]
    with typed(*words, cwd=home, environment=environment(home) | SLOWLY) as run:
        wait_for(home, "r1", state="training")
        if is_moved:
            (home / "out").rename(home / "elsewhere")
        else:
            shutil.rmtree(home / "out")
        done = run.ended()

    was = f"moved to {home}/elsewhere" if is_moved else "removed"
    said = f"{home}/out, the directory of the run, was {was} while it ran; it stopped after "
    assert done.returncode == 1, done.stderr
    assert said in done.stderr
    assert "goes on from its checkpoint of step" in done.stderr
    assert said in pliant(home, "status", "--job", "train").stderr
    assert "train  failed" in pliant(home, "ls").stdout

    again = ["resume", "elsewhere"] if is_moved else [*words[1:4], "--out", "other", *words[6:]]
    resumed = pliant(home, *again)
    assert resumed.returncode == 0, resumed.stderr
    assert digest_of(resumed.stdout) == digest_of(alone.stdout)


HANGING = """\
import threading
from pliant.checkpoint import writer
from pliant.checkpoint.store.directory import LocalStorage
from pliant.engine.state import saving
writer.CLOSE_S = saving.CLOSE_S = 0.2
remove = LocalStorage.remove
def hang(storage, path):
    if path.endswith("pliant.json") and session.leaving:
        threading.Event().wait()
    remove(storage, path)
LocalStorage.remove = hang
"""


def test_a_suspend_does_not_wait_for_a_storage_that_removes_nothing(home: Path) -> None:
    (home / "train.py").write_text(HANGING + SCRIPT.replace("every=EVERY", "every=EVERY, keep=1"))
    alone = environment(home) | {"PACE": "0.3", "EVERY": "1steps"}
    with typed(
        "pliant", "run", "--max", "1", "train.py", "400", cwd=home, environment=alone
    ) as run:
        wait_for(home, "r1", state="training")

        assert pliant(home, "suspend").returncode == 0
        done = run.ended()

    assert done.returncode == 3, done.stderr
    assert "older checkpoints are left in it, and go with the next save" in done.stdout
    assert "it can go on after step" in done.stderr
    assert "not saved" not in done.stderr


def test_a_replacement_that_its_host_refuses_is_tried_again_and_costs_no_restart(
    home: Path,
) -> None:
    refusal = "import os\nif os.path.exists('expired'): raise OSError(24, 'Too many open files')\n"
    (home / "train.py").write_text(refusal + SCRIPT)
    words = ["pliant", "run", "--max", "2", "--max-restarts", "1", "train.py", "4000"]
    slowly = environment(home) | {"PACE": "0.2"}
    with typed(*words, cwd=home, environment=slowly) as run:
        wait_for(home, "r1,r2", state="training")

        (home / "expired").touch()
        assert pliant(home, "kill", "r2").returncode == 0
        said = ""
        while "is set aside for 4 s: r5 failed: " not in said:
            said = pliant(home, "explain").stdout
        (home / "expired").unlink()
        wait_for(home, "r1,r6", state="training")
        assert "set aside" not in pliant(home, "explain").stdout
        assert pliant(home, "stop").returncode == 0
        done = run.ended()

    assert done.returncode == 3, done.stderr
    assert "is no longer set aside: r6 is ready" in done.stdout
