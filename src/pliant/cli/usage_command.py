"""``pliant usage``: what was used of a pool, by team, user or job.

Owns argv and the table.  Knows nothing of how the sums come about (``observe.pool_usage``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from pliant.cli.arguments import some_seconds, state_directory
from pliant.cli.options import Json, PoolName
from pliant.cli.printing import draw, print_json, say
from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_OK
from pliant.core.pool_defaults import DEFAULT_POOL
from pliant.core.printable import printable
from pliant.http.client import Caller
from pliant.machine import run_files
from pliant.machine.registry import NotRunningError, any_pool, pool_place
from pliant.observe.log import Record
from pliant.observe.pool_usage import BY, PoolUsage, UsageRow, usage_of
from pliant.observe.reading import every


def usage(
    by: Annotated[
        str, typer.Option("--by", metavar="|".join(BY), help="Whose sums to show.")
    ] = "team",
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Of the last 7d, 12h, ...  [default: all]"),
    ] = None,
    which: PoolName = None,
    as_json: Json = False,
) -> int:
    """Sum up what was used of a pool: device-hours, waiting, preemptions."""
    chosen = next((one for one in BY if one == by), None)
    if chosen is None:
        raise ConfigError(f"--by {by} is none of {', '.join(BY)}")
    since_s = None if since is None else some_seconds("--since", since)
    pool, records, is_running = _records(which)
    found = usage_of(
        records,
        by=chosen,
        since_s=since_s,
        now_at=time.time(),
        now_mono=time.monotonic() if is_running else None,
    )
    if as_json:
        return print_json({"pool": pool, **asdict(found)})
    if not found.rows:
        return say(f"nothing was used of pool {printable(pool)}")
    draw(_table(pool, found))
    if found.is_cut:
        say(f"\nthe log reaches back to {_when(found.since_at)} only")
    return EXIT_OK


def _records(which: str | None) -> tuple[str, Iterable[Record], bool]:
    """Return which pool is meant, its records, and whether it runs.

    One that ended is read where it lies; without a name the default one, if none runs at all.
    """
    state = state_directory()
    try:
        pool = any_pool(which, state)
    except NotRunningError:
        name = which or DEFAULT_POOL
        log = run_files.event_log(pool_place(name, state) / name)
        if os.access(log, os.R_OK):
            return name, every(log), False
        raise
    if pool.socket is not None and pool.out.stat().st_uid != os.geteuid():
        return pool.name, Caller(pool).pages(), True
    return pool.name, every(run_files.event_log(pool.out)), True


def _table(pool: str, found: PoolUsage) -> Table:
    times = f"{_when(found.since_at)} to {_when(found.until_at)}"
    title = f"pool {printable(pool)}, {times}"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", header_style="dim")
    table.add_column(found.by, no_wrap=True)
    for name in ("device-hours", "waited (hours)", "preempted", "claims"):
        table.add_column(name, justify="right")
    for row in found.rows:
        table.add_row(Text(printable(row.name)), *_figures(row))
    if len(found.rows) > 1:
        table.add_section()
        table.add_row("all", *_figures(found.total))
    return table


def _figures(row: UsageRow) -> tuple[str, ...]:
    hours, waited = row.device_s / 3600, row.waiting_s / 3600
    return f"{hours:,.2f}", f"{waited:,.2f}", str(row.preemptions), str(row.claims)


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
