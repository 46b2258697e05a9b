"""``pliant replay`` of the log of a pool: what is printed of it.

Owns the order of what is printed.  Knows nothing of how a pool is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from pliant.cli.printing import print_json, say
from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_FAILED, EXIT_OK
from pliant.simulate.pool_replay import PoolStep, pool_replayed
from pliant.simulate.pool_scenario import scenario_of_pool
from pliant.simulate.pool_telling import (
    PoolAccount,
    json_of_pool,
    lines_of_pool,
)
from pliant.simulate.replay_scenario import Scenario, title_of
from pliant.simulate.replay_telling import Account


def show_pool(log: Path, shows: Callable[[PoolStep], bool], *, as_json: bool) -> int:
    """Print the log of a pool turn by turn, and whether the core decides the same now."""
    account, start_at = PoolAccount(), None
    shown: list[dict[str, Any]] = []
    for step in pool_replayed(log):
        account.add(step)
        start_at = step.place.at if start_at is None else start_at
        if not shows(step):
            continue
        if as_json:
            shown.append(json_of_pool(step))
            continue
        for line in lines_of_pool(step, start_at):
            say(line)
    return print_account(log, shown, account, as_json=as_json)


def pool_scenario(log: Path, moment: Callable[[float], float | None]) -> Scenario:
    """Make a scenario of the log; ``moment`` says around what, by when the log begins."""
    steps = pool_replayed(log)
    first = next(steps, None)
    if first is None:
        raise ConfigError(f"{log} is empty; no scenario can be made of it")
    title = title_of(log.name, first.place, version("pliant"))
    return scenario_of_pool(chain([first], steps), title=title, around_at=moment(first.place.at))


def print_account(
    log: Path, shown: list[dict[str, Any]], account: Account | PoolAccount, *, as_json: bool
) -> int:
    """Print the sum of a replay, as JSON with the turns before it; return the exit code."""
    if as_json:
        print_json({"log": str(log), "turns": shown, **account.as_json()})
    else:
        say(account.sentence)
    return EXIT_OK if account.inputs and account.difference is None else EXIT_FAILED
