"""Finding jobs: which run here, and which one a command is about.

Owns the choice among the discovery records, and the rule by which a run is chosen (``meant``).
Knows nothing of what a job is doing, which is asked over its URL, and of those that have ended
(``observe.runs``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pliant.machine.discovery import Served, served, the_one

NONE_RUNNING = "no job is running; start one with pliant run"


def running_jobs(directory: Path) -> list[Served]:
    """Return every running job, oldest first; remove the records of those that are gone."""
    return served("job", directory)


def meant(found: Sequence[Path]) -> Path:
    """Return the run that a command is about where several could be meant.

    That of this directory (its files lie below, or around us), else any; of several the newest.

    Args:
        found: the directories of runs, at least one, the newest last.
    """
    here = Path.cwd()
    near = [out for out in found if _is_of(out.absolute(), here)]
    return (near or found)[-1]


def _is_of(out: Path, here: Path) -> bool:
    return out.is_relative_to(here) or here.is_relative_to(out)


def find_job(
    name: str | None, directory: Path, none_running: Callable[[], str] = lambda: NONE_RUNNING
) -> Served:
    """Return the job that is meant; of several, if none is named, see ``meant``."""
    return the_one(
        "job",
        running_jobs(directory),
        name,
        none_at_all=none_running,
        not_that_one="none is; start one with pliant run",
        choose=_meant,
    )


def _meant(found: list[Served]) -> Served:
    by_place = {one.out: one for one in found}
    return by_place[meant(list(by_place))]
