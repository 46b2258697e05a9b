"""Finding pools: which run here, and which one a command is about.

Owns the choice among the discovery records, and where a pool keeps its files.  Knows nothing of
what a pool is doing; that is asked over its URL.

    <state>/pliant/pools/default.json         while it runs: where it is served
    <state>/pliant/pools/default.token        who knows this may talk to it
    <state>/pliant/pools/default/             its files, which outlive it:
        events.jsonl  state.json  running.lock  devices/<d>.lock
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.core.pool_defaults import DEFAULT_POOL
from pliant.machine.discovery import Served, directory_of, served

NONE_RUNNING = "no pool is running; start one with pliant pool start --devices N"

DEVICES = "devices"
"""Directory of the locks of a pool's devices, inside its own."""


def running_pools(directory: Path | None = None) -> list[Served]:
    """Return every running pool, oldest first; remove the records of those that are gone."""
    return served("pool", directory)


def find_pool(name: str | None = None, directory: Path | None = None) -> Served:
    """Return the pool that is meant.

    Raises:
        ConfigError: none runs, several do and none was named, or none has that name.
    """
    pools = running_pools(directory)
    names = ", ".join(pool.name for pool in pools)
    if name is not None:
        named = next((pool for pool in pools if pool.name == name), None)
        if named is not None:
            return named
        others = f"running: {names}" if pools else f"start it with {_start(name)}"
        raise ConfigError(f"no pool named {name} is running; {others}")
    if not pools:
        raise ConfigError(NONE_RUNNING)
    if len(pools) > 1:
        raise ConfigError(f"several pools are running, say which with --pool: {names}")
    return pools[0]


def pool_directory(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return where a pool keeps its files, whether it runs or not."""
    return directory_of("pool", environ) / name


def _start(name: str) -> str:
    start = "pliant pool start --devices N"
    return start if name == DEFAULT_POOL else f"{start} --name {name}"
