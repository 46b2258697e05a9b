"""Names that a shell completes: those of jobs, of their replicas and of their workers.

Owns where they are found.  Whatever is wrong, there are none: a shell that completes is no place
to say it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import typer

from pliant.cli.arguments import state_directory
from pliant.core.worker_names import order_of, replica_of
from pliant.machine import run_files
from pliant.observe.runs import find_run, known_runs


def job_names(incomplete: str) -> list[str]:
    """Return the names of jobs that begin like this."""
    with contextlib.suppress(Exception):
        names = dict.fromkeys(run.job for run in known_runs(state_directory()))
        return [name for name in names if name.startswith(incomplete)]
    return []


def replica_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of replicas, of the job that is meant, that begin like this."""
    return list(dict.fromkeys(replica_of(name) for name in worker_names(ctx, incomplete)))


def worker_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of replicas and workers, of the job that is meant, that begin like this."""
    with contextlib.suppress(Exception):
        out = ctx.params.get("out")
        run = find_run(ctx.params.get("job"), out and Path(out), state_directory())
        names = [path.stem for path in (run / run_files.LOGS).glob("r*.log")]
        found = sorted({*names, *map(replica_of, names)}, key=order_of)
        return [name for name in found if name.startswith(incomplete)]
    return []
