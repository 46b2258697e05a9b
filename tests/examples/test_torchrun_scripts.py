"""Scripts of torchrun and of HyperPod as people have them, started again at other sizes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes.launching import RunningJob, running
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from pliant.integrations.hyperpod import COORDINATION
from pliant.restart.processes import ON_PATH

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(420)]

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = (1, 4, 2, 3)


def losses_of(printed: str) -> dict[int, list[float]]:
    found = defaultdict(list)
    for step, loss in re.findall(r"^step (\d+) loss (\S+)$", printed, re.MULTILINE):
        found[int(step)].append(float(loss))
    return found


def begun(printed: str) -> list[tuple[int, int, int]]:
    """Return the size, the first step and the restarts of each generation."""
    lines = re.findall(r"^(\d+) processes begin at step (\d+), restart (\d+)$", printed, re.M)
    return [(int(size), int(step), int(restarts)) for size, step, restarts in lines]


def state_of(kept: Path) -> dict[str, Any]:
    """Return what the newest checkpoint holds."""
    whole = sorted(one.parent for one in kept.glob("step-*/.metadata"))
    if whole:
        dcp_to_torch_save(whole[-1], kept / "snapshot.pt")
    state: dict[str, Any] = torch.load(kept / "snapshot.pt", weights_only=True)
    return dict(state.get("training", state))


class Played:
    """What happened to a job, and what it had printed by then."""

    def __init__(self, job: RunningJob, script: str) -> None:
        self.job = job
        self.script = script

    @property
    def printed(self) -> str:
        """Return the lines of all replicas; only rank 0 prints, one generation after the other."""
        texts = "".join(path.read_text() for path in self.job.out.glob("logs/r*.log"))
        return "".join(line for line in texts.splitlines(keepends=True) if line.endswith("\n"))

    def await_steps(self, size: int, restarts: int) -> None:
        """Wait until a generation trains, and has kept a checkpoint of its own."""

        def has_gone_on() -> bool:
            first = [
                step
                for many, step, times in begun(self.printed)
                if many == size and times == restarts
            ]
            return bool(first) and max(losses_of(self.printed), default=0) > max(first) + 25

        self.job.wait_for(has_gone_on, f"{size} processes train")

    def kill_one(self) -> None:
        found = [one for one in self.job.processes() if "-u" in one.cmdline()]
        found[-1].kill()


@pytest.mark.parametrize("script", ["torchrun_ddp.py", "torchrun_fsdp2.py", "hyperpod_ddp.py"])
def test_a_script_as_it_is_goes_on_at_1_4_2_and_3_and_after_a_kill(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COORDINATION, "distributed")
    words: list[object] = [EXAMPLES / script, tmp_path / "kept"]
    with running(
        tmp_path, *words, "--steps", 100_000, "--pace", 0.02, mode="restart", replicas=4, start=1
    ) as job:
        run = Played(job, script)
        for size in SIZES:
            if size > 1:
                with job.client() as client:
                    client.post("/v1/scale", json={"target": size}).raise_for_status()
            run.await_steps(size, restarts=int(size == 3))
            if size == 2:
                run.kill_one()
                run.await_steps(2, restarts=1)
        job.stop()
        job.assert_nothing_is_left()
        printed, notes = run.printed, "\n".join(one["text"] for one in job.records("note"))

    ours, losses = state_of(tmp_path / "kept"), losses_of(printed)
    generations = sorted(begun(printed), key=lambda one: one[1])
    assert [one[0] for one in generations] == [1, 4, 2, 2, 3]
    assert [one[2] for one in generations] == [0, 0, 0, 1, 1]
    assert sorted(losses) == list(range(1, max(losses) + 1))
    assert "was ended by SIGKILL; all processes are started again" in notes
    if script.startswith("hyperpod"):
        ends = [line for line in notes.splitlines() if line.startswith("stopped from")]
        assert all("exited with code 0 by itself" in line for line in ends), "they had saved"
        assert sum(len(times) > 1 for times in losses.values()) <= 10, "only what was killed"

    steps = ours["step"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with (tmp_path / "alone.txt").open("w") as out:
        subprocess.run(
            [*torchrun, EXAMPLES / script, tmp_path / "alone", "--steps", str(steps)],
            env={**os.environ, "PYTHONPATH": str(ON_PATH)},
            stdout=out,
            check=True,
        )
    alone = losses_of((tmp_path / "alone.txt").read_text())
    assert sorted(alone) == list(range(1, steps + 1))
    for step, (loss,) in alone.items():
        assert losses[step] == pytest.approx([loss] * len(losses[step]), rel=1e-3, abs=1e-5)
    theirs = state_of(tmp_path / "alone")
    assert theirs["step"] == steps
    torch.testing.assert_close(ours["model"], theirs["model"])
