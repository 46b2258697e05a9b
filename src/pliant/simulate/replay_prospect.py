"""What a run would have been under another policy, in words: as far as is certain, and beyond.

Owns how the certain part (``replay_what_if``) and the model behind it (``replay_model``) follow
each other, and what is told of both.  Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pliant.core.commands import Command, Reform, Switch
from pliant.core.counts import counted
from pliant.core.job.state import Job
from pliant.core.policy.decide import Decision
from pliant.core.printable import in_one_line
from pliant.observe.log import fields_of
from pliant.simulate.replay import Break, Step, Turn
from pliant.simulate.replay_model import Measured, Modelled, WorkerModel
from pliant.simulate.replay_what_if import Change, Otherwise, what_if
from pliant.simulate.replay_wording import line_of, render, render_command

MOST_LINE = 160


@dataclass(slots=True)
class _Story:
    """One run in figures."""

    first_s: float | None = None
    last_s: float = 0.0
    changes: int = 0
    """Generations that were formed, or should have been."""

    commands: int = 0
    steps: int = 0

    def add(self, now_s: float, commands: Iterable[Command], job: Job | None) -> None:
        """Take in what followed from one event."""
        self.first_s = now_s if self.first_s is None else self.first_s
        self.last_s = max(self.last_s, now_s)
        for command in commands:
            self.commands += 1
            self.changes += isinstance(command, Switch | Reform)
        if job is not None:
            self.steps = max(self.steps, job.membership.committed)

    @property
    def sentence(self) -> str:
        """Say what it came to."""
        took_s = self.last_s - (self.first_s or 0.0)
        changes = f"the membership was changed {counted(self.changes, 'time')}"
        return f"{counted(self.steps, 'step')} in {took_s:.1f} s, {changes}"

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        took_s = self.last_s - (self.first_s or 0.0)
        return {"steps": self.steps, "seconds": took_s, "changes": self.changes}


@dataclass(slots=True, kw_only=True)
class Prospect:
    """A recorded run, asked what it would have been."""

    steps: Sequence[Step]
    change: Change
    goes_on: bool
    """Beyond what is certain, with a model of the workers."""

    recorded: _Story = field(default_factory=_Story)
    other: _Story = field(default_factory=_Story)
    decisions: int = 0
    """Decisions that would have been others, as far as that is certain."""

    difference: str | None = None
    """The first command that differs, and where."""

    left_out: dict[str, int] = field(default_factory=dict)
    stopped_by: str = ""
    """Why the model ends before the job."""

    at: float = 0.0
    """When the turn was that was yielded last, in seconds since 1970."""

    def turns(self) -> Iterator[Otherwise | Modelled]:
        """Yield all that would have been, first what is certain.

        Raises:
            ConfigError: the changed policy contradicts itself.
        """
        turns = [step for step in self.steps if isinstance(step, Turn)]
        offsets = _offsets_s(turns)
        for turn in turns:
            if turn.ready is not None:
                at = turn.now_s + offsets[turn.place.incarnation]
                self.recorded.add(at, turn.ready.commands, turn.after)
        last: Otherwise | None = None
        for answer in what_if(self.steps, self.change):
            self.decisions += answer.decided is not None
            self.at = answer.now_s + offsets[answer.turn.place.incarnation]
            self.other.add(self.at, answer.ready.commands, answer.job)
            last = answer
            yield answer
        if last is None or last.difference is None:
            return
        self.difference = f"{last.turn.place.where}: {last.difference}"
        if self.goes_on:
            yield from self._model(last, turns)

    def _model(self, last: Otherwise, turns: Sequence[Turn]) -> Iterator[Modelled]:
        offset_s = self.at - last.now_s
        measured = Measured()
        for turn in turns:
            measured.add(turn)
        at = next(i for i, turn in enumerate(turns) if turn is last.turn)
        model = WorkerModel(
            job=last.job,
            settings=last.settings,
            now_s=last.now_s,
            measured=measured,
            incarnation=last.turn.place.incarnation,
        )
        for told in model.run(last.ready, turns[at + (not last.is_own) :]):
            self.at = told.now_s + offset_s
            self.other.add(self.at, told.ready.commands, told.job)
            yield told
        self.left_out = dict(sorted(model.left_out.items()))
        self.stopped_by = model.stopped_by

    def sentences(self) -> Iterator[str]:
        """Say what came of it, once all turns were taken."""
        if any(isinstance(step, Break) for step in self.steps):
            yield "the log has gaps: behind each the other policy begins with what the run knew"
        other = counted(self.decisions, "decision") + " would have had another size or reason"
        if self.difference is None:
            yield f"certain to the end: the same is ordered, {other}"
            return
        yield in_one_line(f"certain up to {self.difference}; until then {other}")
        if not self.goes_on:
            yield (
                "from there on workers would have answered other commands than they did; "
                "--after model goes on with workers that answer as they usually did"
            )
            return
        yield f"recorded: {self.recorded.sentence}"
        end = f"; it ends there as {self.stopped_by}" if self.stopped_by else ""
        yield f"by the model: {self.other.sentence}{end}"
        if self.left_out:
            what = ", ".join(f"{number} {name}" for name, number in self.left_out.items())
            yield f"left out, as it is of replicas that would not be there: {what}"

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        return {
            "difference": self.difference,
            "other_decisions": self.decisions,
            "recorded": self.recorded.as_json(),
            "other": self.other.as_json(),
            "is_model": self.goes_on and self.difference is not None,
            "left_out": self.left_out,
            "stopped_by": self.stopped_by or None,
        }


def _offsets_s(turns: Sequence[Turn]) -> dict[int, float]:
    """Return what leads from the clock of each coordinator to seconds since 1970.

    By the first that its core was told; signs of life are written later.
    """
    signs_last = sorted(turns, key=lambda turn: turn.is_sign)
    return {turn.place.incarnation: turn.place.at - turn.now_s for turn in reversed(signs_last)}


def is_news(turn: Otherwise | Modelled) -> bool:
    """Whether something is decided otherwise than in the run, or by the model."""
    if isinstance(turn, Modelled):
        return bool(turn.ready.commands) or turn.ready.decision is not None
    return turn.decided is not None or turn.difference is not None


def lines_of_prospect(turn: Otherwise | Modelled, at: float, start_at: float) -> list[str]:
    """Tell one turn, and when it was; what the model says begins with a tilde."""
    is_model = isinstance(turn, Modelled)
    line = "tick" if turn.event is None else line_of(turn.event)
    clock = datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
    mark = "~ " if is_model else ""
    lines = [in_one_line(f"{clock}  {at - start_at:+.3f} s  {mark}{line[:MOST_LINE]}")]
    decision = turn.ready.decision if is_model else turn.decided  # type: ignore[union-attr]
    if decision is not None:
        lines.append(f"    {_decided(decision)}")
    if isinstance(turn, Otherwise):
        then = turn.turn.ready.decision if turn.turn.ready and not turn.is_own else None
        if decision is not None and then is not None:
            lines.append(f"    the run {_decided(then)}")
        if turn.difference is not None:
            lines.append(in_one_line(f"no longer certain: {turn.difference}"))
    else:
        orders = [line for line in render(turn.ready) if not line.startswith(("wait", "again"))]
        lines += [f"    {in_one_line(order)}" for order in orders]
    return lines


def prospect_json(turn: Otherwise | Modelled, at: float) -> dict[str, Any]:
    """Return one turn, and when it was, for programs."""
    decision = turn.ready.decision
    return {
        "at": at,
        "now_s": turn.now_s,
        "line": "tick" if turn.event is None else line_of(turn.event),
        "decision": None if decision is None else fields_of(decision),
        "commands": [render_command(command) for command in turn.ready.commands],
        "is_certain": isinstance(turn, Otherwise) and turn.difference is None,
    }


def _decided(decision: Decision) -> str:
    size = counted(decision.target_replicas, "replica")
    return in_one_line(f"decided on {size}: {decision.reason}")
