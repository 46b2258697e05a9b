"""Bad input through the real command line: one sentence, its exit code, and nothing left behind.

Which sentence refuses what is in ``tests/features``; how a script ends is in ``test_launch``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.live.prompt import run_typed

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SCRIPT = """\
import os, sys, threading, torch, pliant
pliant.seed(1)
model = torch.nn.Linear(4, 1, bias=not os.path.exists("other"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(512, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
def session(**more):
    return pliant.Session(model=model, optimizer=optimizer, dataset=data, global_batch_size=32,
                          micro_batch_size=4, **more)
with session() as s:
    for step in s.steps(int(sys.argv[1])):
        for a, b in step:
            loss = torch.nn.functional.mse_loss(model(a), b)
            step.backward(loss)
        s.log(loss=step.loss)
"""

JOB = """\
apiVersion: pliant.dev/v1alpha1
kind: ElasticJob
metadata: {name: gpt}
spec:
  elasticPolicy: {minReplicas: 1, maxReplicas: 4}
  startReplicas: 2
  command: [train.py, "20"]
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PLIANT_")}
    return {**kept, "XDG_STATE_HOME": str(home / "state"), "NO_COLOR": "1"}


def run(home: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command; nothing that came of it may live on."""
    done = run_typed("pliant", *arguments, cwd=home, environment=environment(home))
    return done.returncode, done.stdout, done.stderr


def left(home: Path) -> list[str]:
    """Return the files beside the input."""
    files = [
        str(path.relative_to(home))
        for path in home.rglob("*")
        if path.is_file() and path.name not in ("train.py", "job.yaml", "wrong.pt")
    ]
    return [*files, *(["runs"] if (home / "runs").exists() else [])]


def test_what_can_be_seen_beforehand_starts_nothing(home: Path) -> None:
    (home / "job.yaml").write_text(JOB.replace("minReplicas: 1", "minReplicas: 5"))

    code, said, complained = run(home, "run", "job.yaml")

    sentence = "job.yaml line 5: minReplicas 5 is greater than maxReplicas 4"
    assert (code, said, complained) == (2, "", f"pliant: {sentence}\n")
    assert left(home) == []


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "step.backward(loss)",
            "step.backward(loss); optimizer.step()",
            "optimizer.step() was called by the script; the session steps the optimizer when the "
            "loop over a step ends (train.py, line 14)",
        ),
        (
            "s.steps(int(sys.argv[1]))",
            "()",
            "the session ended before its first step; train inside it with "
            "`for step in session.steps(total):` (train.py, line 10)",
        ),
    ],
)
def test_what_a_script_asks_wrongly_ends_the_job_with_2(
    home: Path, old: str, new: str, sentence: str
) -> None:
    (home / "train.py").write_text(SCRIPT.replace(old, new))

    code, _, complained = run(home, "run", "--max", "1", "train.py", "20")

    assert (code, complained) == (2, f"pliant: {sentence}\n")
    assert left(home) == []


def test_weights_that_do_not_fit_are_refused_in_one_line(home: Path) -> None:
    import torch

    torch.save({"strange": torch.zeros(1)}, home / "wrong.pt")

    code, _, complained = run(home, "run", "--max", "1", "--init", "wrong.pt", "train.py", "3")

    assert code == 2
    assert complained.count("\n") == 1
    assert 'Missing key(s) in state_dict: "weight", "bias"' in complained
    assert left(home) == []


@pytest.mark.parametrize("moment", ["before", "while the session is made", "in the first step"])
def test_a_script_that_always_raises_is_started_twice_at_most_and_told_once(
    home: Path, moment: str
) -> None:
    text = {
        "before": SCRIPT.replace("model =", "1 / 0\nmodel ="),
        "while the session is made": SCRIPT.replace(
            "def session", "type(data).__getitem__ = lambda *_: 1 / 0\ndef session"
        ),
        "in the first step": SCRIPT.replace("loss = torch", "loss = 1 / 0 * torch"),
    }[moment]
    (home / "train.py").write_text("print('begun', flush=True)\n" + text)

    code, said, complained = run(home, "run", "--max", "1", "train.py", "3")

    assert code == 1
    assert "ZeroDivisionError" in complained
    assert said.count("begun") == (1 if moment == "in the first step" else 2)
    assert said.count("Traceback") == 1
    assert "r1 raised ZeroDivisionError" in said


def test_a_replica_that_raises_is_told_and_replaced_while_the_others_go_on(home: Path) -> None:
    wrong = "        if s.replica == 'r2' and step.index == 5: raise ValueError('bad sample')\n"
    wait = "        threading.Event().wait(0.05)\n"
    stop = "        if s.replica == 'r3': step.stop()\n"
    text = SCRIPT.replace("        for a", wrong + wait + "        for a")
    (home / "train.py").write_text(text.replace("        s.log", stop + "        s.log"))
    code, said, complained = run(home, "run", "--max", "2", "train.py", "100000")
    assert (code, complained) == (0, "")
    assert said.count("Traceback") == 1
    assert "r2 raised:\nTraceback" in said
    assert "r2 lost at step" in said
    assert "ValueError: bad sample" in said
    assert "r3 joined at step" in said


def test_torchrun_without_an_agent_is_refused(home: Path) -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}

    alone = run_typed("train.py", "3", cwd=home, environment=environment(home) | torchrun)

    assert alone.returncode != 0
    assert "this process is one of 2 that torchrun started" in alone.stderr.splitlines()[-1]
    assert "Start the script with `pliant run`, or with `python`" in alone.stderr.splitlines()[-1]


HOSTILE = r"nothing in [/data/a] \x1b[2J\x1b]0;owned\x07 \udc80"


def test_what_a_script_prints_and_raises_is_shown_and_not_obeyed(home: Path) -> None:
    """It once ended the job with a MarkupError, and cleared the terminal."""
    raises = f"print('{HOSTILE}'.encode(errors='replace').decode())\nraise ValueError('{HOSTILE}')"
    (home / "train.py").write_text(f"import pliant\n{raises}\n")

    code, said, complained = run(home, "run", "--max", "1", "--out", "out", "train.py")
    shown = [run(home, command, "--out", "out") for command in ("status", "explain")]
    log = run(home, "logs", "--out", "out", "r1")

    assert code == 1
    assert r"nothing in [/data/a] \x1b[2J\x1b]0;owned\x07" in complained
    assert r"nothing in [/data/a] \x1b[2J\x1b]0;owned\x07" in log[1]
    assert [answer[0] for answer in (*shown, log)] == [0, 0, 0]
    everything = "".join(
        [said, complained, *(part for _, *parts in (*shown, log) for part in parts)]
    )
    assert "\x1b" not in everything
    assert "\x07" not in everything
    assert "MarkupError" not in everything
