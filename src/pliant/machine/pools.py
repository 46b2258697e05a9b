"""Finding pools: which run here, and which one a command is about.

Owns the choice among the discovery records, and where a pool keeps its files.  Knows nothing of
what a pool is doing; that is asked over its URL.

    <state>/pliant/pools/default.json         while it runs: where it is served
    <state>/pliant/pools/default.token        who knows this may talk to it
    <state>/pliant/pools/default/             its files, which outlive it:
        events.jsonl  state.json  running.lock  devices/<d>.lock
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from pliant.core.pool_defaults import DEFAULT_POOL
from pliant.machine.discovery import Served, StateDirectory, served, the_one
from pliant.machine.shared_pools import pool_place, shared_pool, shared_pools, trusted_pool

START = "pliant pool start --devices N"

DEVICES = "devices"
"""Directory of the locks of a pool's devices, inside its own."""

ENDING_S = 5.0
"""What a pool that was told to stop may take, in seconds."""

POLL_S = 0.05
"""How often one that ends is looked for, in seconds."""


def running_pools(directory: Path) -> list[Served]:
    """Return every running pool, oldest first; remove the records of those that are gone."""
    return served("pool", directory)


def served_pools(directory: Path) -> list[Served]:
    """Return every running pool of a directory, shared ones as far as this user may see them."""
    return running_pools(directory) or shared_pools(directory)


def wait_for_end(pool: Served) -> None:
    """Wait until a pool that was told to stop is served no longer, for ``ENDING_S`` at most."""
    pause, until_s = threading.Event(), time.monotonic() + ENDING_S
    while time.monotonic() < until_s and any(
        (one.name, one.pid) == (pool.name, pool.pid) for one in served_pools(pool.out.parent)
    ):
        pause.wait(POLL_S)


def any_pool(name: str | None, state: StateDirectory) -> Served:
    """Return the pool that is meant, a user's own or a shared one; see ``the_one``."""
    if name is not None:
        return find_pool(name, pool_place(name, state))
    if running_pools(state.pools):
        return find_pool(None, state.pools)
    if not shared_pools(state.shared_pools):  # a shared directory need not be listed
        return find_pool(None, pool_place(DEFAULT_POOL, state))
    return find_pool(None, state.shared_pools)


def find_pool(name: str | None, directory: Path) -> Served:
    """Return the pool that is meant; see ``the_one``.  Of the others none is asked."""
    found = running_pools(directory)
    if name is not None and all(one.name != name for one in found):
        named = shared_pool(name, directory)
        if named is not None:
            return named
    if not found:
        default = trusted_pool(DEFAULT_POOL, directory)  # a shared directory need not be listed
        found = shared_pools(directory) or ([] if default is None else [default])
    start = START if name in (None, DEFAULT_POOL) else f"{START} --name {name}"
    return the_one(
        "pool",
        found,
        name,
        none_at_all=lambda: f"no pool is running; start one with {START}",
        not_that_one=f"start it with {start}",
    )
