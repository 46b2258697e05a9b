"""A job that cannot go on, or never began, ends in one sentence and leaves nothing useless."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pliant.cli import start
from pliant.cli.main import code_of


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


def ends_like(monkeypatch: pytest.MonkeyPatch, run_job: Callable[..., Any]) -> None:
    monkeypatch.setattr(start, "run_job", run_job)


def test_a_full_disk_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(config: Any, **_: Any) -> int:
        (config.out / "events.jsonl").touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ends_like(monkeypatch, fill)

    assert code_of(["run", "train.py"]) == 1

    out = Path("runs/train").absolute()
    assert capsys.readouterr().err == f"pliant: the job ended: {out}: No space left on device\n"
    assert out.exists()


def test_an_interrupt_before_the_start_leaves_no_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends_like(monkeypatch, lambda config, **_: 3)

    assert code_of(["run", "train.py"]) == 3

    assert capsys.readouterr().err == "pliant: stopped before the job had started\n"
    assert sorted(path.name for path in Path().iterdir()) == ["train.py"]
