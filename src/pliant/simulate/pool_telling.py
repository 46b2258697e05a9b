"""The replay of a pool as people and programs read it: each turn in lines or as JSON, and the sum.

Owns the sum and the order of lines; what came in and what was answered is said as
``observe.pool_history`` says it of a log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pliant.core.text import counted, in_one_line
from pliant.observe.log import Record
from pliant.observe.pool_history import Teller, sentence
from pliant.simulate.pool_replay import PoolStep, PoolTurn, record_of_action
from pliant.simulate.replay import Break, summary
from pliant.simulate.replay_telling import tell_difference


@dataclass(slots=True)
class PoolAccount:
    """Eats the steps of a replay; knows the sum of it."""

    inputs: int = 0
    """What the core was told, of which the answer was compared."""

    unknown: int = 0
    """The same where no answer could be known."""

    answers: int = 0
    gaps: int = 0
    difference: str | None = None
    """The first one."""

    version: str = ""
    """Of the pliant that wrote the log, as far as it says."""

    _whys: list[str] = field(default_factory=list)

    def add(self, step: PoolStep) -> None:
        """Take in the next step."""
        if isinstance(step, Break):
            self.gaps += 1
            self._whys = [f"{step.place.where}: {step.why}"]
            return
        self.version = step.version or self.version
        if step.difference is not None and self.difference is None:
            self.difference = f"{step.place.where}: {step.difference}"
        if step.event is not None:
            self.unknown += step.actions is None
            self.inputs += step.actions is not None
            self.answers += len(step.actions or ())

    @property
    def sentence(self) -> str:
        """Say what was found."""
        if not self.inputs and self.difference is None:
            why = self._whys[-1] if self._whys else "it does not say with what a pool began"
            return f"nothing of this log can be replayed: {why}"
        told = f"{counted(self.inputs, 'input')}, {counted(self.answers, 'answer')}"
        if self.difference is not None:
            return tell_difference(told, self.difference, self.version)
        gaps = ""
        if self.unknown:
            compared = f"{self.unknown} of {counted(self.inputs + self.unknown, 'input')}"
            gaps = f", as far as it can be known; {compared} could not be compared"
        return in_one_line(f"{told}: the core shares out the same as was recorded{gaps}")

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        return {
            "inputs": self.inputs,
            "not_known": self.unknown,
            "answers": self.answers,
            "gaps": self.gaps,
            "difference": self.difference,
            "version": self.version or None,
            "is_same": self.difference is None and self.inputs > 0,
        }


def lines_of_pool(step: PoolStep, start_at: float) -> list[str]:
    """Tell one step, first the time and what came in."""
    at = step.place.at
    clock = datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
    when = f"{clock}  +{max(0.0, at - start_at):.3f} s"
    if isinstance(step, Break):
        return [in_one_line(f"{when}  -- {step.place.where}: {step.why}; not certain from here on")]
    said = [in_one_line(f"{when}  {told_of(step)}")]
    if step.actions is None:
        said += [f"    recorded: {one}" for one in told_each(step.recorded)]
    else:
        said += [f"    {one}" for one in told_each(map(record_of_action, step.actions))]
    if step.difference is not None:
        difference = in_one_line(f"{step.place.where}: {step.difference}")
        said.append(f"    NOT AS RECORDED, {difference}")
    return said


def told_of(turn: PoolTurn) -> str:
    """Say what the core was told."""
    if turn.beginning is not None:
        return f"the pool begins with {counted(turn.beginning.devices, 'device')}"
    words = str(turn.record.get("kind")).replace("_", " ")
    return _told(turn.record) or f"{turn.record.get('name') or ''} {words}".strip()


def told_each(records: Iterable[Record]) -> list[str]:
    """Say what was answered."""
    return [in_one_line(_told(one) or summary(one)) for one in records]


def json_of_pool(step: PoolStep) -> dict[str, Any]:
    """Return one step for programs."""
    place = step.place
    values: dict[str, Any] = {"where": place.where, "at": place.at}
    if isinstance(step, Break):
        return {**values, "break": step.why, "is_certain": step.is_certain}
    answers = None if step.actions is None else [*map(record_of_action, step.actions)]
    return {
        **values,
        "now_s": step.now_s,
        "told": step.record,
        "line": told_of(step),
        "recorded": list(step.recorded),
        "answers": answers,
        "difference": step.difference,
    }


def _told(record: Record) -> str:
    move = Teller().move_of(record)
    return "" if move is None else sentence(move)
