"""What ``pliant ls`` knows of real runs, whatever became of their processes.

The workers are fake (no torch): nothing here depends on what is trained.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.processes import launching
from tests.processes.elastic import wait_for_members
from tests.processes.launching import FAKE_WORKER

from pliant.machine.registry import StateDirectory
from pliant.observe.runs import KnownRun, known_runs

running = partial(launching.running, forked=True)
"""A job and its fork server need no interpreter of their own here."""

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def known(directory: Path) -> KnownRun:
    (run,) = known_runs(StateDirectory(directory / "state" / "pliant"))
    return run


def test_a_run_is_listed_while_it_trains_and_when_all_of_it_was_killed(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 10_000, 0.01) as job:
        wait_for_members(job, "r1", "r2")
        job.wait_for_steps(3)
        lives = known(tmp_path)

        for pid in (job.process.pid, *(process.pid for process in job.processes())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.exit_code()
        killed = known(tmp_path)

        assert not job.record_path.exists()

        assert (lives.is_running, lives.outcome.state) == (True, "training")
        assert (killed.is_running, killed.outcome.state) == (False, "killed")
        assert killed.outcome.step >= lives.outcome.step >= 3
        assert killed.outcome.num_replicas == 2
        assert killed.ended_at is not None


def test_a_run_that_came_to_its_end_is_listed_with_it(tmp_path: Path) -> None:
    with running(tmp_path, FAKE_WORKER, 3, 0.01, replicas=1) as job:
        assert job.exit_code() == 0, job.said()

        run = known(tmp_path)
        assert (run.outcome.state, run.outcome.exit_code, run.outcome.step) == ("finished", 0, 3)


def test_a_state_directory_without_room_for_it_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "state" / "pliant").mkdir(parents=True)
    (tmp_path / "state" / "pliant" / "runs").touch()  # no directory can be made there

    with running(tmp_path, FAKE_WORKER, 3, 0.01, replicas=1) as job:
        assert job.exit_code() == 0, job.said()
