"""A job that begins in this process."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pliant.core.errors import ConfigError
from pliant.core.job.state import JobSettings
from pliant.core.policy.decide import Policy
from pliant.machine import locks
from pliant.run.job_config import JobConfig
from pliant.run.local import run_job
from pliant.run.run_directory import locked


def test_a_run_that_begins_waits_for_nobody_in_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were started at the same moment; it would go on with what the other one has begun."""
    config = JobConfig(
        name="gpt",
        argv=("train.py",),
        settings=JobSettings(policy=Policy()),
        out=tmp_path / "run",
        environ={"XDG_STATE_HOME": str(tmp_path / "state")},
    )
    config.out.mkdir()
    lock = locks.lock
    with ExitStack() as other:
        other.enter_context(locked(config.out, alone=True))

        def leaving(fd: int, *, shared: bool = False, within_s: float | None = None) -> bool:
            if within_s:
                other.close()
            return lock(fd, shared=shared, within_s=within_s)

        monkeypatch.setattr(locks, "lock", leaving)

        def begun(*named: Any, **given: Any) -> Any:
            raise AssertionError("two run in one directory")

        with pytest.raises(ConfigError, match="running already"):
            run_job(config, start_server=begun)
