"""``pliant replay`` of the log of a pool: what is printed of it.

Owns the order of what is printed.  Knows nothing of how a pool is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from pliant.cli.arguments import changes_of
from pliant.cli.printing import print_json, say
from pliant.cli.replay_printing import print_account
from pliant.core.counts import counted
from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_OK
from pliant.simulate.pool_replay import PoolStep, PoolTurn, pool_replayed, record_of_action
from pliant.simulate.pool_scenario import scenario_of_pool
from pliant.simulate.pool_telling import (
    PoolAccount,
    json_of_pool,
    lines_of_pool,
    told_each,
    told_of,
)
from pliant.simulate.pool_what_if import PoolAnswer, asked_of_pool, rules_of
from pliant.simulate.replay_scenario import Scenario, title_of


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


def ask_pool(log: Path, fields: list[str], *, goes_on: bool, as_json: bool) -> int:
    """Print what would have been answered by other rules, up to the first that differs."""
    if goes_on:
        raise ConfigError(
            "--after model: there is no model of the claimants of a pool; leave --after out"
        )
    found = asked_of_pool(pool_replayed(log), rules_of(changes_of(fields)))
    step = found.step
    if as_json:
        where = None if step is None else step.place.where
        answers = [record_of_action(action) for action in found.actions]
        told = json_of_pool(step) if isinstance(step, PoolTurn) else None
        return print_json(
            {
                "log": str(log),
                "same": found.same,
                "until": where,
                "why": found.why or None,
                "told": told,
                "answers": answers,
            }
        )
    for line in _told(found):
        say(line)
    return EXIT_OK


def _told(found: PoolAnswer) -> list[str]:
    same, step = counted(found.same, "input"), found.step
    if step is None:
        return [f"{same}: nothing would have been answered otherwise"]
    lines = []
    if isinstance(step, PoolTurn):
        now = told_each(map(record_of_action, found.actions)) or ["nobody is told anything"]
        then = told_each(step.recorded) or ["nobody was told anything"]
        lines += [told_of(step), *(f"    {one}" for one in now)]
        lines += [f"    in the log: {one}" for one in then]
    lines.append(
        f"certain up to {step.place.where}: {found.why}; until then {same} had the same answer"
    )
    return lines


def pool_scenario(log: Path, moment: Callable[[float], float | None]) -> Scenario:
    """Make a scenario of the log; ``moment`` says around what, by when the log begins."""
    steps = pool_replayed(log)
    first = next(steps, None)
    if first is None:
        raise ConfigError(f"{log} is empty; no scenario can be made of it")
    title = title_of(log.name, first.place, version("pliant"))
    return scenario_of_pool(chain([first], steps), title=title, around_at=moment(first.place.at))
