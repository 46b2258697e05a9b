"""Finding pools: which run here, and which one a command is about.

Owns the choice among the discovery records, and where a pool keeps its files.  Knows nothing of
what a pool is doing; that is asked over its URL.

    <state>/pliant/pools/default.json         while it runs: where it is served
    <state>/pliant/pools/default.token        who knows this may talk to it
    <state>/pliant/pools/default/             its files, which outlive it:
        events.jsonl  state.json  running.lock  devices/<d>.lock
"""

from __future__ import annotations

from pathlib import Path

from pliant.core.pool_defaults import DEFAULT_POOL
from pliant.machine.discovery import Served, served, the_one

START = "pliant pool start --devices N"

DEVICES = "devices"
"""Directory of the locks of a pool's devices, inside its own."""


def running_pools(directory: Path) -> list[Served]:
    """Return every running pool, oldest first; remove the records of those that are gone."""
    return served("pool", directory)


def find_pool(name: str | None, directory: Path) -> Served:
    """Return the pool that is meant; see ``the_one``."""
    start = START if name in (None, DEFAULT_POOL) else f"{START} --name {name}"
    return the_one(
        "pool",
        running_pools(directory),
        name,
        none_at_all=lambda: f"no pool is running; start one with {START}",
        not_that_one=f"start it with {start}",
    )
