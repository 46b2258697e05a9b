"""``pliant replay``: a recorded run or pool once more, decision by decision, through the same core.

Owns argv of the command and the order of what is printed.  Knows nothing of how either is replayed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pliant.cli.arguments import Json
from pliant.cli.help import argument, option
from pliant.cli.terminal import print_json, say
from pliant.core.errors import EXIT_FAILED, EXIT_OK, ConfigError
from pliant.core.text import counted, seconds_of
from pliant.simulate.pool_scenario import scenario_of_pool
from pliant.simulate.replay import Break, Step, replayed
from pliant.simulate.replay_log import entries, is_pool_log, log_at
from pliant.simulate.replay_scenario import scenario_of, title_of
from pliant.simulate.replay_telling import Account, json_of, lines_of

_OF_DAY = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")

Log = Annotated[Path, argument("LOG|DIR", "The event log of a run or a pool, or its directory.")]
From = Annotated[str | None, option("--from TIME", "Show from here on: 90s, 1.5h or 14:05:30.")]
To = Annotated[str | None, option("--to TIME", "Show up to here.")]


ToScenario = Annotated[
    Path | None,
    option("--to-scenario FILE", "Write a scenario file of it, as tests play them, and try it."),
]
Around = Annotated[
    str | None, option("--around TIME", "The scenario is of half a minute before and after this.")
]


def replay(
    path: Log,
    from_: From = None,
    to: To = None,
    to_scenario: ToScenario = None,
    around: Around = None,
    as_json: Json = False,
) -> int:
    """Play a recorded run or pool once more; exit code 1 if anything is decided otherwise now."""
    log = log_at(path)
    if around is not None and to_scenario is None:
        raise ConfigError("--around says of what a scenario is; give --to-scenario FILE, too")
    is_pool = is_pool_log(log)
    if to_scenario is not None:
        return _write_scenario(log, to_scenario, around, is_pool=is_pool, as_json=as_json)
    window = _Window(from_, to)
    account = Account(is_pool)
    shown: list[dict[str, Any]] = []
    for step in replayed(entries(log)):
        account.add(step)
        if not window.shows(step):
            continue
        if as_json:
            shown.append(json_of(step))
            continue
        for line in lines_of(step, window.start_at):
            say(line)
    if as_json:
        print_json({"log": str(log), "turns": shown, **account.as_json()})
    else:
        say(account.sentence)
    return EXIT_OK if account.inputs and account.difference is None else EXIT_FAILED


def _write_scenario(
    log: Path, file: Path, around: str | None, *, is_pool: bool, as_json: bool
) -> int:
    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} is there already; name another file for the scenario")

    def moment(start_at: float) -> float | None:
        return None if around is None else _moment("--around", around, start_at, 0.0)

    steps = replayed(entries(log))
    if (first := next(steps, None)) is None:
        raise ConfigError(f"{log} is empty; no scenario can be made of it")
    title = title_of(log.name, first.place, version("pliant"))
    make = scenario_of_pool if is_pool else scenario_of
    found = make(chain([first], steps), title=title, around_at=moment(first.place.at))
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

    def shows(self, step: Step) -> bool:
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
