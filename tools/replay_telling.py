"""A replay as people and programs read it: each turn in lines or as JSON, and the sum of it.

Owns the words; of a pool they are those of ``observe.pool_history``.  Knows nothing of terminals,
nor of how a replay comes about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import version
from typing import Any

from tools.replay_turns import Break, Step, Turn, summary

from pliant.core.job.state import JobSettings
from pliant.core.text import counted, in_one_line
from pliant.observe.log import Record, fields_of, kind_of
from pliant.observe.pool_history import Teller, sentence
from pliant.observe.status_facts import clock

MOST_TOLD = 160
"""Characters of what a core was told: a spare describes its whole model."""


@dataclass(slots=True)
class Account:
    """Eats the steps of a replay; knows the sum of it."""

    is_pool: bool = False
    inputs: int = 0
    """What the core was told, of which the answer was compared."""

    unknown: int = 0
    """The same where no answer could be known."""

    decisions: int = 0
    others: int = 0
    """Commands of a job's core, or all answers of a pool's."""

    gaps: int = 0
    difference: str | None = None
    """The first one."""

    version: str = ""
    """Of the pliant that wrote the log, as far as it says."""

    _last_why: str = "it does not say with what a core began"

    def add(self, step: Step) -> None:
        """Take in the next step."""
        match step:
            case Break(is_certain=False, why=why, place=place):
                self.gaps += 1
                self._last_why = f"{place.where}: {why}"
                if why.startswith("what the core knows differs"):
                    self._differ(self._last_why)
            case Turn(answers=None, difference=None):
                self.unknown += 1
            case Turn(difference=difference, place=place):
                self.version = step.version or self.version
                self.inputs += step.event is not None
                for answer in step.answers or ():
                    self.decisions += answer["kind"] == "decision"
                    self.others += answer["kind"] not in ("decision", "note")
                if difference is not None:
                    self._differ(f"{place.where}: {difference}")
            case _:
                pass

    def _differ(self, what: str) -> None:
        self.difference = self.difference or what

    @property
    def _answers(self) -> dict[str, int]:
        if self.is_pool:
            return {"answer": self.others}
        return {"decision": self.decisions, "command": self.others}

    @property
    def sentence(self) -> str:
        """Say what was found."""
        if not self.inputs and self.difference is None:
            return f"nothing of this log can be replayed: {self._last_why}"
        counts = {"input": self.inputs, **self._answers}
        told = ", ".join(counted(number, noun) for noun, number in counts.items())
        if self.difference is not None:
            return _tell_difference(told, self.difference, self.version)
        gaps = f" but for {counted(self.gaps, 'gap')}" if self.gaps else ""
        if self.unknown:
            inputs = counted(self.inputs + self.unknown, "input")
            gaps += f"; {self.unknown} of {inputs} could not be compared"
        return in_one_line(f"{told}: the core decides the same as was recorded{gaps}")

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        return {
            "inputs": self.inputs,
            "not_known": self.unknown,
            **{f"{noun}s": number for noun, number in self._answers.items()},
            "gaps": self.gaps,
            "difference": self.difference,
            "version": self.version or None,
            "is_same": self.difference is None and self.inputs > 0,
        }


def _tell_difference(told: str, difference: str, recorded_by: str) -> str:
    """Say what differs, and the version that recorded it where it was another one."""
    here = version("pliant")
    other = recorded_by and recorded_by != here
    since = f" (recorded by pliant {recorded_by}, this is {here})" if other else ""
    return in_one_line(f"{told}: not the same as recorded{since}: {difference}")


def lines_of(step: Step, start_at: float) -> list[str]:
    """Tell one step, first the time and what came in."""
    when = f"{clock(step.place.at)}  +{max(0.0, step.place.at - start_at):.3f} s"
    if isinstance(step, Break):
        what = "certain again" if step.is_certain else "not certain from here on"
        return [in_one_line(f"{when}  -- {step.place.where}: {step.why}; {what}")]
    said = [in_one_line(f"{when}  {_told(step)}"), *(f"    {one}" for one in _answers(step))]
    if step.difference is not None:
        difference = in_one_line(f"{step.place.where}: {step.difference}")
        said.append(f"    NOT AS RECORDED, {difference}")
    return said


def json_of(step: Step) -> dict[str, Any]:
    """Return one step for programs."""
    place = step.place
    values = {"where": place.where, "at": place.at, "incarnation": place.incarnation}
    if isinstance(step, Break):
        return {**values, "break": step.why, "is_certain": step.is_certain}
    return {
        **values,
        "now_s": step.now_s,
        "told": _told_json(step),
        "line": _told(step),
        "recorded": list(step.recorded),
        "answers": None if step.answers is None else list(step.answers),
        "declined": step.declined,
        "difference": step.difference,
    }


def _told_json(turn: Turn) -> Record | None:
    if turn.is_of_pool:
        return turn.record
    event = turn.event
    return None if event is None else {"kind": kind_of(event), "fields": fields_of(event)}


def _told(turn: Turn) -> str:
    if turn.beginning is not None:
        return f"the pool begins with {counted(turn.beginning.devices, 'device')}"
    if turn.is_of_pool:
        words = str(turn.record.get("kind")).replace("_", " ")
        return _moved(turn.record) or f"{turn.record.get('name') or ''} {words}".strip()
    if turn.event is None:
        settings = ", ".join(_unusual(turn.settings, JobSettings()))
        who = f"coordinator {turn.place.incarnation}"
        return f"{who} begins: {settings or 'all settings at their defaults'}"
    line = summary({"kind": kind_of(turn.event), **fields_of(turn.event)})
    return line if len(line) <= MOST_TOLD else f"{line[:MOST_TOLD]}..."


def _unusual(value: Any, usual: Any, where: str = "") -> Iterator[str]:
    """Yield the settings that have not their default, as ``policy.max_replicas=4``."""
    for one in fields(value):
        mine, default, name = getattr(value, one.name), getattr(usual, one.name), where + one.name
        if is_dataclass(mine) and is_dataclass(default):
            yield from _unusual(mine, default, f"{name}.")
        elif mine != default:
            yield f"{name}={mine}"


def _answers(turn: Turn) -> Iterable[str]:
    """Tell what was decided, why, and what was ordered; as recorded where it is not known."""
    if turn.answers is None:
        return [f"recorded: {_answer(one, turn)}" for one in turn.recorded]
    told = []
    if turn.ready is not None and (decision := turn.ready.decision) is not None:
        size = counted(decision.target_replicas, "replica")
        told.append(f"decided on {size}: {decision.reason}")
        told.append(f"what would change it: {decision.would_change}")
    if turn.declined is not None:
        told.append(f"declined: {turn.declined}")
    answers = [one for one in turn.answers if one["kind"] != "decision"]
    return [in_one_line(line) for line in (*told, *(_answer(one, turn) for one in answers))]


def _answer(answer: Record, turn: Turn) -> str:
    if answer["kind"] == "note":
        return in_one_line(str(answer.get("text")))
    return in_one_line((turn.is_of_pool and _moved(answer)) or summary(answer))


def _moved(record: Record) -> str:
    """Say what a record of a pool's log tells people."""
    move = Teller().move_of(record)
    return "" if move is None else sentence(move)
