"""Finding jobs: which run here, and which one a command is about.

Owns the choice among the discovery records.  Knows nothing of what a job is doing, which is asked
over its URL, and of those that have ended (``observe.runs``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pliant.machine.discovery import Served, served, the_one

NONE_RUNNING = "no job is running; start one with pliant run"


def running_jobs(directory: Path) -> list[Served]:
    """Return every running job, oldest first; remove the records of those that are gone."""
    return served("job", directory)


def find_job(
    name: str | None, directory: Path, none_running: Callable[[], str] = lambda: NONE_RUNNING
) -> Served:
    """Return the job that is meant; see ``the_one``."""
    return the_one(
        "job",
        running_jobs(directory),
        name,
        none_at_all=none_running,
        not_that_one="none is; start one with pliant run",
        told_apart=lambda one: f"{one.name} (in {one.out})",
    )
