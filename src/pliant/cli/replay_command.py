"""``pliant replay``: a recorded run once more, decision by decision, through the same core.

Owns argv of the command and what is printed.  Knows nothing of how a run is replayed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from pliant.cli.arguments import changes_of
from pliant.cli.options import Json
from pliant.cli.printing import print_json, say
from pliant.cli.replay_pool import ask_pool, pool_scenario, show_pool
from pliant.cli.replay_printing import print_account
from pliant.core.counts import counted
from pliant.core.durations import seconds_of
from pliant.core.errors import ConfigError
from pliant.core.exits import EXIT_OK
from pliant.simulate.pool_replay import PoolStep, is_pool_log
from pliant.simulate.replay import Break, Step, Turn, replayed
from pliant.simulate.replay_log import entries, log_at
from pliant.simulate.replay_prospect import (
    Prospect,
    is_news,
    lines_of_prospect,
    prospect_json,
)
from pliant.simulate.replay_scenario import scenario_of, title_of
from pliant.simulate.replay_telling import Account, json_of, lines_of
from pliant.simulate.replay_what_if import change_of

_OF_DAY = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")

Log = Annotated[
    Path,
    typer.Argument(metavar="LOG|DIR", help="The event log of a run or a pool, or its directory."),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Show from here on: 90s, 1.5h or 14:05:30."),
]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Show up to here.")]


ToScenario = Annotated[
    Path | None,
    typer.Option(
        "--to-scenario",
        metavar="FILE",
        help="Write a scenario file of it, as tests play them, and try it.",
    ),
]
Around = Annotated[
    str | None,
    typer.Option(
        "--around", metavar="TIME", help="The scenario is of half a minute before and after this."
    ),
]


PolicyFields = Annotated[
    list[str] | None,
    typer.Option(
        "--policy", metavar="KEY=VALUE", help="What had happened with this? E.g. maxReplicas=6."
    ),
]
After = Annotated[
    str | None,
    typer.Option(
        "--after",
        metavar="stop|model",
        help="Where that stops being certain: stop, or go on with a model.  [default: stop]",
    ),
]


def replay(
    path: Log,
    from_: From = None,
    to: To = None,
    to_scenario: ToScenario = None,
    around: Around = None,
    policy: PolicyFields = None,
    after: After = None,
    as_json: Json = False,
) -> int:
    """Play a recorded run or pool once more; exit code 1 if anything is decided otherwise now."""
    log = log_at(path)
    _require_sense(policy, to_scenario, around=around, after=after)
    is_pool, goes_on = is_pool_log(log), after == "model"
    if policy:
        ask = ask_pool if is_pool else _ask_what_if
        return ask(log, policy, goes_on=goes_on, as_json=as_json)
    if to_scenario is not None:
        return _write_scenario(log, to_scenario, around, is_pool=is_pool, as_json=as_json)
    account, window = Account(), _Window(from_, to)
    if is_pool:
        return show_pool(log, window.shows, as_json=as_json)
    shown: list[dict[str, Any]] = []
    for step in replayed(entries(log)):
        account.add(step)
        if not window.shows(step):
            continue
        if as_json:
            shown.append(json_of(step))
        else:
            for line in lines_of(step, window.start_at):
                say(line)
    return print_account(log, shown, account, as_json=as_json)


def _require_sense(
    policy: list[str] | None, to_scenario: Path | None, *, around: str | None, after: str | None
) -> None:
    if around is not None and to_scenario is None:
        raise ConfigError("--around says of what a scenario is; give --to-scenario FILE, too")
    if after not in (None, "stop", "model"):
        raise ConfigError(f"--after {after} is none of stop, model")
    if after is not None and not policy:
        raise ConfigError("--after says how a what-if goes on; give --policy KEY=VALUE, too")
    if policy and to_scenario is not None:
        raise ConfigError("--policy and --to-scenario exclude each other; give one of them")


def _ask_what_if(log: Path, fields: list[str], *, goes_on: bool, as_json: bool) -> int:
    steps = list(replayed(entries(log)))
    start = next((one for one in steps if isinstance(one, Turn) and one.ready is not None), None)
    if start is None:
        account = Account()
        for step in steps:
            account.add(step)
        raise ConfigError(account.sentence)
    prospect = Prospect(steps=steps, change=change_of(changes_of(fields)), goes_on=goes_on)
    shown: list[dict[str, Any]] = []
    for turn in prospect.turns():
        if not is_news(turn):
            continue
        if as_json:
            shown.append(prospect_json(turn, prospect.at))
        else:
            for line in lines_of_prospect(turn, prospect.at, start.place.at):
                say(line)
    if as_json:
        return print_json({"log": str(log), "turns": shown, **prospect.as_json()})
    for sentence in prospect.sentences():
        say(sentence)
    return EXIT_OK


def _write_scenario(
    log: Path, file: Path, around: str | None, *, is_pool: bool, as_json: bool
) -> int:
    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} is there already; name another file for the scenario")

    def moment(start_at: float) -> float | None:
        return None if around is None else _moment("--around", around, start_at, 0.0)

    if is_pool:
        found = pool_scenario(log, moment)
    else:
        steps = replayed(entries(log))
        first = next(steps)
        title = title_of(log.name, first.place, version("pliant"))
        found = scenario_of(chain([first], steps), title=title, around_at=moment(first.place.at))
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


@dataclass(slots=True)
class _Window:
    """Which steps are shown: between two moments, without signs of life of which nothing came."""

    since: str | None
    until: str | None
    start_at: float = 0.0
    _between: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Refuse at once what is no moment.

        Raises:
            ConfigError: one of the two is none.
        """
        _moment("--from", self.since, 0.0, 0.0)
        _moment("--to", self.until, 0.0, 0.0)

    def shows(self, step: Step | PoolStep) -> bool:
        """Whether this step is shown."""
        at = step.place.at
        if self._between is None:
            self.start_at = at
            first = _moment("--from", self.since, at, 0.0)
            self._between = first, _moment("--to", self.until, at, float("inf"))
        first, last = self._between
        if isinstance(step, Break):
            return first <= at <= last
        return first <= at <= last and not (step.is_quiet and step.difference is None)


def _moment(option: str, text: str | None, start_at: float, otherwise: float) -> float:
    """Read a time since the beginning of the log, or of the day it began."""
    if text is None:
        return otherwise
    after_s = seconds_of(text)
    if after_s is not None:
        return start_at + after_s
    found = _OF_DAY.fullmatch(text.strip())
    hour, minute, second = (int(part or 0) for part in found.groups()) if found else (24, 0, 0)
    if hour > 23 or minute > 59 or second > 59:
        raise ConfigError(
            f"{option} {text!r} is no time; write 90s or 1.5h after the beginning, or 14:05:30"
        )
    began = datetime.fromtimestamp(start_at).astimezone()
    moment = began.replace(hour=hour, minute=minute, second=second, microsecond=0)
    if moment < began.replace(microsecond=0):
        moment += timedelta(days=1)
    return moment.timestamp()
