"""A stretch of a recorded run as a scenario file, which ``player`` plays.

Owns which stretch can be one, what is left out of it, and that it was tried: played by the core
alone it answers as was recorded.  Signs of life are left out unless something else follows without
them, times are rounded as far as nothing else follows from it, and what all replicas said alike of
their model is shortened.  Knows nothing of files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tests.support.notation import line_of, render, settings_lines
from tests.support.player import CoreAlone, play
from tools.replay_log import LogPlace
from tools.replay_turns import Break, Step, Turn

from pliant.core.errors import ConfigError
from pliant.core.events import NodeJoined, Registered, Spare
from pliant.core.job.recording import record
from pliant.core.job.state import Job, JobSettings
from pliant.core.text import in_one_line
from pliant.core.values import Register, host_of
from pliant.observe.core_values import value_of, written

MOST_TRIES = 200
"""How often a scenario is played to find which signs of life it needs."""

DIGITS = (3, 6, 17)
"""Of a second; the last are as they were recorded."""

_PASSING = ("wait until", "again", "stale")
"""Answers that tell of moments, or are not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A file that was tried."""

    text: str
    num_events: int
    num_left_out: int
    """Signs of life that it does without."""

    until: str | None
    """Why it does not go on to the end of the log; None: it does."""


def scenario_of(steps: Iterable[Step], *, title: str) -> Scenario:
    """Return the first stretch of a run that is certain as a scenario.

    Raises:
        ConfigError: there is none, or played it answers otherwise than was recorded.
    """
    stretch, until = stretch_of(steps)
    if not stretch:
        raise ConfigError("no scenario can be made: nothing is known of the core")
    draft = _Draft(stretch, title)
    for digits in DIGITS:
        for chosen in (draft.without_signs, draft.turns):
            if draft.is_true(chosen, digits):
                needed = chosen if chosen is draft.without_signs else draft.thinned(digits)
                return Scenario(
                    text=draft.played(needed, digits),
                    num_events=len(needed),
                    num_left_out=len(draft.turns) - len(needed),
                    until=until,
                )
    raise ConfigError(f"no scenario can be made: played, {draft.unlike} answers otherwise")


def stretch_of(steps: Iterable[Step]) -> tuple[list[Turn], str | None]:
    """Return the turns that belong together, and what ends them."""
    turns: list[Turn] = []
    for step in steps:
        if isinstance(step, Break) or step.answers is None or step.difference is not None:
            why = step.why if isinstance(step, Break) else step.difference or "it is not known"
        elif step.event is None and turns and not _follows(step, turns[-1]):
            why = "it begins once more, and not with what the one before has left"
        else:
            turns.append(step)
            continue
        if turns:
            return turns, f"{step.place.where}: {why}"
        is_beginning = isinstance(step, Turn) and step.answers is not None and not step.difference
        turns = [step] if is_beginning and isinstance(step, Turn) else []
    return turns, None


def _follows(began: Turn, last: Turn) -> bool:
    """Whether a coordinator goes on with what the one before has left."""
    if last.after is None or began.settings != last.settings:
        return False
    return began.register == record(last.after)


class _Draft:
    """One stretch, and what is tried of it."""

    def __init__(self, turns: list[Turn], title: str) -> None:
        self.turns = turns
        self.without_signs = [turn for turn in turns if not turn.is_sign]
        self.unlike = "nothing"
        self._tries = 0
        self._title = title
        self._shortener = _Shortener(turns)
        self._moments = _moments(turns)

    def is_true(self, turns: Sequence[Turn], digits: int) -> bool:
        """Play some of the turns; return whether each is answered as was recorded."""
        self._tries += 1
        lines, expected = self._lines(turns, digits)
        asked = -1
        found: list[list[str]] = [[] for _ in expected]
        for line in play("\n".join(lines), CoreAlone).splitlines():
            if line.startswith("at "):
                asked += 1
            elif line.startswith("  ") and asked >= 0:
                found[asked].append(line[2:])
        for said, wanted, turn in zip(found, expected, turns, strict=True):
            if _lasting(said) != _lasting(wanted):
                self.unlike = turn.place.where
                return False
        return True

    def thinned(self, digits: int) -> list[Turn]:
        """Leave out the signs of life without which the same follows, in ever smaller pieces."""
        signs = [turn for turn in self.turns if turn.is_sign]
        size = len(signs)
        while size > 1 and self._tries < MOST_TRIES:
            size = (size + 1) // 2
            for first in range(0, len(signs), size):
                if self._tries >= MOST_TRIES:
                    break
                rest = signs[:first] + signs[first + size :]
                if self.is_true(self._with(rest), digits):
                    signs = rest
        return self._with(signs)

    def played(self, turns: Sequence[Turn], digits: int) -> str:
        """Return the file, with the answers."""
        lines, _ = self._lines(turns, digits)
        return play("\n".join(lines), CoreAlone)

    def _with(self, signs: list[Turn]) -> list[Turn]:
        kept = set(map(id, signs))
        return [turn for turn in self.turns if not turn.is_sign or id(turn) in kept]

    def _lines(self, turns: Sequence[Turn], digits: int) -> tuple[list[str], list[list[str]]]:
        """Return the lines of the file, and what each event is to be answered."""
        lines = [f"# {self._title}", "", *settings_lines(turns[0].settings)]
        if turns[0].before is not None:
            state = self._shortener.short(written(Job, turns[0].before))
            lines.append(f"state {_quoted(state)}")
        elif turns[0].register is not None:
            lines.append(f"register {_quoted(written(Register, turns[0].register))}")
        expected = []
        for turn in turns:
            moment = self._moments[id(turn)]
            when = moment_text(moment, digits)
            if turn.event is None:
                lines.append(f"at {when} restart")
            else:
                lines.append(f"at {when} {line_of(self._shortener.short_event(turn.event))}")
            expected.append([] if turn.ready is None else render(turn.ready))
        return lines, expected


def moment_text(moment_s: float, digits: int) -> str:
    """Write a moment with so many digits, or as it was recorded."""
    is_whole = digits == DIGITS[-1]
    return repr(moment_s) if is_whole else f"{moment_s:.{digits}f}".rstrip("0").rstrip(".")


def _lasting(answers: Iterable[str]) -> list[str]:
    return [answer for answer in answers if not answer.startswith(_PASSING)]


def _quoted(data: Any) -> str:
    return json.dumps(json.dumps(data, separators=(",", ":")))


def _moments(turns: Sequence[Turn]) -> dict[int, float]:
    """Return when each turn is, in whole seconds less than recorded: so nothing is rounded.

    A coordinator on a machine whose clock says less comes as much later as by the wall clock.  In
    the midst of a run moments stay as they are: what the core knows is full of them.
    """
    offset = 0.0 if turns[0].before is not None else -float(int(turns[0].now_s))
    moments, last = {}, turns[0]
    for turn in turns:
        if turn.event is None and turn.now_s < last.now_s:
            later_s = float(int(max(0.0, turn.place.at - last.place.at)) + 1)
            offset += float(int(last.now_s) - int(turn.now_s)) + later_s
        moments[id(turn)], last = turn.now_s + offset, turn
    return moments


class _Shortener:
    """Shortens the descriptions of models, and where workers are, if they are all alike."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        told = [written(type(one.event), one.event) for one in turns if _has_spare(one.event)]
        begun = [] if turns[0].before is None else [written(Job, turns[0].before)]
        spares = list(_spares_in([told, begun]))
        self._has_hosts = len({host_of(one["endpoint"]) for one in spares}) > 1
        self._is_free = turns[0].settings.placement == JobSettings().placement
        self._short: dict[str, Any] = {}
        for name, short in (("layout", "same"), ("identity", [["seed", "1"]])):
            if len({json.dumps(one[name]) for one in spares}) == 1:
                self._short[name] = short

    def short_event(self, event: Any) -> Any:
        """Return what says the same in short."""
        if isinstance(event, NodeJoined) and self._is_free:
            return replace(event, labels=())
        kind = type(event)
        return value_of(kind, self.short(written(kind, event))) if _has_spare(event) else event

    def short(self, data: Any) -> Any:
        """Shorten a value as JSON has it."""
        for one in _spares_in(data):
            one.update(self._short)
            if not self._has_hosts:
                one["endpoint"] = f"{one['replica']}:1"
        return data


def _has_spare(event: Any) -> bool:
    return isinstance(event, Spare | Registered)


def _spares_in(data: Any) -> Iterator[dict[str, Any]]:
    """Yield all descriptions of workers that wait, wherever they stand."""
    if isinstance(data, dict) and "layout" in data:
        yield data
    elif isinstance(data, dict | list):
        for one in data.values() if isinstance(data, dict) else data:
            yield from _spares_in(one)


def title_of(log: str, first: LogPlace, version: str) -> str:
    """Say what a scenario was made of."""
    day = datetime.fromtimestamp(first.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return in_one_line(f"Recorded {day} in {log}, replayed by pliant {version}.").replace("\r", "")
