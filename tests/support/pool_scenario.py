"""A stretch of a recorded pool as a scenario file, and how such a file is played.

Owns the form of the file: what the core was told begins a line, what it answered stands below it::

    pool {"devices": 4, "is_open": false}
    at 0.1 opened {}
    at 2 asked {"claim": {"name": "gpt", "ask_replicas": 4}}
      grant gpt to=4 devices=0,1,2,3

Whose core answers is the caller's to say.  A pool's file begins where the pool began; it was played
before it is written, and answers as was recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from tests.support.log_scenario import DIGITS, Scenario, moment_text, stretch_of
from tools.replay_log import POOL_EVENTS
from tools.replay_turns import Step

from pliant.core.allocation import (
    Action,
    Event,
    Grant,
    Overdue,
    Refuse,
    Shrink,
    Suspend,
    kinds,
)
from pliant.core.allocation.kinds import PoolBeginning, begun
from pliant.core.allocation.values import Actions
from pliant.core.errors import ConfigError
from pliant.core.text import in_one_line
from pliant.observe.core_values import value_of, written
from pliant.observe.log import kind_of

Teller = Callable[[Event, float], Actions]
"""Tells one pool an event at a moment; returns what it answers."""

MakePool = Callable[[PoolBeginning, float], Teller]


def core_alone(beginning: PoolBeginning, now_s: float) -> Teller:
    """Return the core itself, which nobody drives."""
    pool = begun(beginning, now_s=now_s)

    def tell(event: Event, now_s: float) -> Actions:
        nonlocal pool
        pool, actions = kinds.step_kinds(pool, event, now_s=now_s)
        return actions

    return tell


def play_pool(text: str, make: MakePool) -> str:
    """Return the scenario with the answers that this pool gives to its events.

    Raises:
        ConfigError: a line cannot be played.
    """
    out: list[str] = []
    teller: Teller | None = None
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        out.append(line)
        if not line.strip() or line.startswith("#"):
            continue
        first, at, kind, data = (*line.split(" ", 3), "", "", "")[:4]
        if first != ("pool" if teller is None else "at") or (teller and kind not in POOL_EVENTS):
            raise ConfigError(f"unknown scenario line: {line[:80]}")
        try:
            if teller is None:
                beginning = value_of(PoolBeginning, json.loads(line.removeprefix("pool")))
                teller = make(beginning, 0.0)
                continue
            actions = teller(value_of(POOL_EVENTS[kind], json.loads(data)), float(at))
        except ValueError as error:
            raise ConfigError(f"{line[:80]!r} cannot be played: {error}") from error
        out += [f"  {one}" for one in map(answer_line, actions)]
    return "\n".join(out) + "\n"


def answer_line(action: Action) -> str:
    """Write one answer as scenario files show it."""
    return in_one_line(_answered(action))


def _answered(action: Action) -> str:
    match action:
        case Grant(name=name, to=to, devices=devices):
            return f"grant {name} to={to}{_listed(devices)}"
        case Shrink(name=name, to=to, devices=devices, for_=for_):
            return f"shrink {name} to={to}{_listed(devices)}{_for(for_)}"
        case Suspend(name=name, for_=for_):
            return f"suspend {name}{_for(for_)}"
        case Overdue(name=name, to=to, excess=excess):
            return f"overdue {name} to={to} excess={excess}"
        case Refuse(reason=reason):
            return f"refuse: {reason}"


def _listed(devices: tuple[int, ...]) -> str:
    return f" devices={','.join(map(str, devices))}" if devices else ""


def _for(name: str) -> str:
    return f" for={name}" if name else ""


def event_line(event: Event, at_s: float, digits: int) -> str:
    """Write what the core was told as scenario files show it."""
    return f"at {moment_text(at_s, digits)} {kind_of(event)} {json.dumps(brief(event))}"


def brief(value: Any) -> dict[str, Any]:
    """Return a value as JSON has it, without what is as always."""
    data: dict[str, Any] = written(type(value), value)
    for one in fields(value):
        item = getattr(value, one.name)
        if one.default is not MISSING and item == one.default:
            del data[one.name]
        elif is_dataclass(item):
            data[one.name] = brief(item)
    return data


def scenario_of_pool(steps: Iterable[Step], *, title: str) -> Scenario:
    """Return the first life of a pool that is certain as a scenario.

    Raises:
        ConfigError: there is none, or played it answers otherwise than was recorded.
    """
    turns, until = stretch_of(steps)
    if len(turns) < 2:
        raise ConfigError(
            "no scenario can be made: no beginning of a pool, with what it was told, is in the log"
        )
    began, *told = turns
    answers = [line for turn in told for line in map(answer_line, turn.actions)]
    head = f"# {title}\n\npool {json.dumps(brief(began.beginning))}\n"
    for digits in DIGITS:
        lines = [event_line(turn.event, turn.now_s - began.now_s, digits) for turn in told]
        text = play_pool(head + "\n".join(lines) + "\n", core_alone)
        if [line[2:] for line in text.splitlines() if line.startswith("  ")] == answers:
            return Scenario(text=text, num_events=len(lines), num_left_out=0, until=until)
    raise ConfigError("no scenario can be made: played, it answers otherwise than was recorded")
