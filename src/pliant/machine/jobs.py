"""Finding jobs: which run here, and which one a command is about.

Owns the choice among the discovery records, and those of suspended jobs.  Knows nothing of what a
job is doing; that is asked over its URL.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.machine import run_files
from pliant.machine.discovery import Served, served, the_one

NONE_RUNNING = "no job is running; start one with pliant run"

SUSPENDED = ".suspended"
"""Ends the names of records of jobs that do not run and can go on."""


def running_jobs(directory: Path) -> list[Served]:
    """Return every running job, oldest first; remove the records of those that are gone."""
    return served("job", directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedJob:
    """A job that does not run and can go on from a checkpoint."""

    job: str
    out: Path
    committed: int


def record_suspended(job: str, out: Path, committed: int, directory: Path) -> None:
    """Remember a job that can go on; what cannot be remembered is still on its storage."""
    values = {"job": job, "out": str(out.absolute()), "committed": committed}
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (directory / f"{job}{SUSPENDED}").write_text(json.dumps(values))


def forget_suspended(job: str, directory: Path) -> None:
    """Forget a job that runs again."""
    with suppress(OSError):
        (directory / f"{job}{SUSPENDED}").unlink()


def suspended_jobs(directory: Path) -> list[SuspendedJob]:
    """Return the jobs that can go on, by name; forget those whose directory is gone."""
    found = []
    for path in sorted(directory.glob(f"*{SUSPENDED}")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            values = json.loads(path.read_text())
            job = SuspendedJob(
                job=str(values["job"]), out=Path(values["out"]), committed=int(values["committed"])
            )
            if run_files.holds_run(job.out):
                found.append(job)
            else:
                path.unlink()
    return found


def find_job(name: str | None, directory: Path) -> Served:
    """Return the job that is meant; see ``the_one``."""
    return the_one(
        "job",
        running_jobs(directory),
        name,
        none_at_all=lambda: _none_running(directory),
        not_that_one="none is; start one with pliant run",
    )


def find_run(name: str | None, out: Path | None, directory: Path) -> Path:
    """Return the output directory that is meant: ``out``, or that of a running job.

    Without either, the newest run below ``runs/`` here.

    Raises:
        ConfigError: there is none.
    """
    if out is not None:
        if not run_files.holds_run(out):
            raise ConfigError(f"{out} holds no run: it has no {run_files.EVENTS}")
        return out
    if name is not None or running_jobs(directory):
        return find_job(name, directory).out
    if (newest := run_files.newest_run()) is None:
        raise ConfigError(NONE_RUNNING)
    return newest


def _none_running(directory: Path) -> str:
    waiting = suspended_jobs(directory)
    if not waiting:
        return NONE_RUNNING
    names = ", ".join(f"{job.job} (after step {job.committed})" for job in waiting)
    return f"no job is running; suspended: {names}; go on with pliant resume {waiting[-1].job}"


def find_resumable(which: str | None, directory: Path) -> Path:
    """Return the directory of the run to resume: named, or of a suspended job, or the newest here.

    Raises:
        ConfigError: there is none, or several are suspended.
    """
    if which is not None and run_files.holds_run(Path(which)):
        return Path(which)
    waiting = {job.job: job.out for job in suspended_jobs(directory)}
    names = ", ".join(waiting)
    if which is not None:
        if which not in waiting:
            known = names or "none is"
            raise ConfigError(f"{which} is neither a run's directory nor suspended ({known})")
        return waiting[which]
    if len(waiting) > 1:
        raise ConfigError(f"several jobs are suspended, say which: {names}")
    if waiting:
        return waiting.popitem()[1]
    if (newest := run_files.newest_run()) is None:
        raise ConfigError("there is no run to resume here; name its directory")
    return newest
