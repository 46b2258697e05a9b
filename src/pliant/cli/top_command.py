"""``pliant top``: a pool, or a job, as it is now, again and again.

Owns argv of this command.  Knows nothing of how either is drawn.
"""

from __future__ import annotations

import os
from functools import partial
from typing import cast

from pliant.cli import job_commands, pool_commands
from pliant.cli.arguments import state_directory
from pliant.cli.options import Job, Json, PoolName
from pliant.cli.screens import job_panel
from pliant.cli.terminal import PlainConsole
from pliant.cli.which_job import JobPlace, from_any_host, the_job
from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_OK
from pliant.http.client import Caller
from pliant.machine.registry import NotRunningError, any_pool, running_jobs
from pliant.observe.runs import find_running


def _only_a_job() -> str | None:
    """Return the job that runs where no pool does; None: there is a pool, or no job either."""
    state = state_directory()
    try:
        any_pool(None, state)
    except NotRunningError:
        return find_running(None, state).name if running_jobs(state.jobs) else None
    except ConfigError:  # several pools
        pass
    return None


@from_any_host
def top(which: PoolName = None, job: Job = None, as_json: Json = False) -> int:
    """Watch the pool: who has what, who waits and why; or a job."""
    from pliant.cli.top import live, pool_panel

    console, place = PlainConsole(), cast(JobPlace, job)
    is_watched = console.is_terminal and not as_json
    if place is None and which is None:
        place = _only_a_job()
    if place is None:
        if not is_watched:
            return pool_commands.status(which, as_json)
        live(
            partial(pool_commands.pool_caller(which).ask, "GET", "/v1/status"), pool_panel, console
        )
        return EXIT_OK
    if which is not None and which != os.environ.get("PLIANT_POOL"):
        raise ConfigError(f"--pool {which} is a pool, and --job or --join a job; give one")
    if not is_watched:
        return job_commands.show_status(place, as_json=as_json)
    live(partial(Caller(the_job(place)).ask, "GET", "/v1/status"), job_panel, console)
    return EXIT_OK
