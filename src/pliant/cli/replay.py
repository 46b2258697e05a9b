"""``pliant replay``: a recorded run or pool once more, decision by decision, through the same core.

Owns argv of the command and the order of what is printed.  Knows nothing of how either is replayed.
"""

from __future__ import annotations

from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pliant.cli.arguments import Json
from pliant.cli.help import argument, option
from pliant.cli.terminal import print_json, say
from pliant.core.errors import EXIT_FAILED, EXIT_OK, ConfigError
from pliant.core.text import counted
from pliant.simulate.pool_scenario import scenario_of_pool
from pliant.simulate.replay import Turn, replayed
from pliant.simulate.replay_log import entries, is_pool_log, log_at
from pliant.simulate.replay_scenario import scenario_of, title_of
from pliant.simulate.replay_telling import Account, json_of, lines_of

Log = Annotated[Path, argument("LOG|DIR", "The event log of a run or a pool, or its directory.")]
ToScenario = Annotated[
    Path | None,
    option("--to-scenario FILE", "Write a scenario file of it, as tests play them, and try it."),
]


def replay(
    path: Log,
    to_scenario: ToScenario = None,
    as_json: Json = False,
) -> int:
    """Play a recorded run or pool once more; exit code 1 if anything is decided otherwise now."""
    log = log_at(path)
    is_pool = is_pool_log(log)
    if to_scenario is not None:
        return _write_scenario(log, to_scenario, is_pool=is_pool, as_json=as_json)
    account = Account(is_pool)
    shown: list[dict[str, Any]] = []
    start_at: float | None = None
    for step in replayed(entries(log)):
        account.add(step)
        start_at = step.place.at if start_at is None else start_at
        if isinstance(step, Turn) and step.is_quiet and step.difference is None:
            continue
        if as_json:
            shown.append(json_of(step))
            continue
        for line in lines_of(step, start_at):
            say(line)
    if as_json:
        print_json({"log": str(log), "turns": shown, **account.as_json()})
    else:
        say(account.sentence)
    return EXIT_OK if account.inputs and account.difference is None else EXIT_FAILED


def _write_scenario(log: Path, file: Path, *, is_pool: bool, as_json: bool) -> int:
    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} is there already; name another file for the scenario")

    steps = replayed(entries(log))
    if (first := next(steps, None)) is None:
        raise ConfigError(f"{log} is empty; no scenario can be made of it")
    title = title_of(log.name, first.place, version("pliant"))
    make = scenario_of_pool if is_pool else scenario_of
    found = make(chain([first], steps), title=title)
    with file.open("x", encoding="utf-8") as out:
        out.write(found.text)
    if as_json:
        values = {"scenario": str(file), "events": found.num_events, "until": found.until}
        return print_json({**values, "left_out": found.num_left_out})
    left_out = "" if is_pool else f", {counted(found.num_left_out, 'sign')} of life left out"
    say(f"{file}: {counted(found.num_events, 'event')}{left_out}; played, it answers as recorded")
    if found.until is not None:
        say(f"it ends before {found.until}")
    return EXIT_OK
