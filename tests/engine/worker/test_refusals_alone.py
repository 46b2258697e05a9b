"""Where ``python`` runs a script, a refusal is a sentence with its line, and exit code 2."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.live.prompt import run_typed

SCRIPT = """\
import torch
import pliant

model = torch.nn.Linear(2, 1)
data = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
{hook}
with pliant.Session(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=data,
    global_batch_size={batch}, micro_batch_size=4,
) as session:
    for step in session.steps(2):
        for x, y in step:
            step.backward(model(x).mean())
            {line}
"""


def run(folder: Path, **parts: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(**{"hook": "", "batch": "8", "line": "pass", **parts}))
    return run_typed(script.name, cwd=folder, environment=os.environ)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"batch": "7"}, "(train.py, line 7)"),
        ({"line": "step.backward(model(x).mean())"}, "call it once (train.py, line 14)"),
        ({"hook": "pliant.seed(-1)"}, "at least 0, got -1 (train.py, line 6)"),
        ({"hook": "pliant.mesh(tp=2)"}, "--workers-per-replica 2 ... (train.py, line 6)"),
    ],
)
def test_a_refusal_is_one_sentence(tmp_path: Path, parts: dict[str, str], said: str) -> None:
    done = run(tmp_path, **parts)

    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("pliant: ")
    assert last.endswith(said)
    assert "Traceback" not in done.stderr


def test_other_exceptions_keep_their_tracebacks_and_hooks(tmp_path: Path) -> None:
    hook = "import sys; sys.excepthook = lambda *found: print('theirs', found[1])"

    done = run(tmp_path, line="raise KeyError('mine')")
    hooked = run(tmp_path, hook=hook, line="raise KeyError('mine')")

    assert done.returncode == hooked.returncode == 1
    assert "Traceback" in done.stderr
    assert "theirs 'mine'" in hooked.stdout


def test_a_script_that_catches_what_its_session_failed_of_does_not_end_as_0(tmp_path: Path) -> None:
    """Seen: ``except Exception: pass`` around the loop, and the scheduler took it for done."""
    hook = "import atexit; atexit.register(print, 'last'); log = open('log', 'w'); log.write('row')"
    hook += "\nimport contextlib\nwith contextlib.suppress(KeyError):\n  "
    loop = SCRIPT.partition("{hook}\n")[2].replace("\n", "\n  ")
    again = "\n".join(line.removeprefix("  ") for line in loop.splitlines())
    script = tmp_path / "train.py"

    def play(text: str) -> subprocess.CompletedProcess[str]:
        filled = text.format(hook=hook, batch="8", line="raise KeyError('mine')")
        script.write_text(filled + "print('went on')\n")
        return run_typed(script.name, cwd=tmp_path, environment=os.environ)

    caught = play(SCRIPT.partition("{hook}\n")[0] + "{hook}" + loop.rstrip(" "))
    retried = play(
        SCRIPT.partition("{hook}\n")[0] + "{hook}" + loop.rstrip(" ") + again.replace("{line}", "")
    )

    assert (caught.returncode, caught.stdout.split()) == (1, ["went", "on", "last"])
    assert caught.stderr.splitlines()[-1] == (
        "pliant: exit code 1: the script went on after its session failed: KeyError: 'mine'"
    )
    assert (tmp_path / "log").read_text() == "row"
    assert (retried.returncode, retried.stdout.split()) == (0, ["went", "on", "last"])
