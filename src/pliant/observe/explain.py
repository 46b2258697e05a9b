"""Why the job has the size it has: its last decisions with their reasons.

Owns nothing but the selection; every sentence is one that the decision itself carried.  In bounded
memory, however long the log.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pliant.core.values import Mode
from pliant.observe.log import Record, seconds, whole
from pliant.observe.prose import SET_ASIDE, pool_line

LAST = 10

RESTARTS = (
    "mode restart: each change of size ends all processes of the script and starts them again; in "
    "place, in a script with a pliant.Session, none would have been started again"
)

_STOPPED = re.compile(r"stopped (from \d+ to \d+)")
_REPEATED = re.compile(r".*: (up to \d+ steps?) may be repeated")
"""What the restart workers note of a change of size (``restart.stopping``)."""

_START = re.compile(r"start r\d+ on [^:]+: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoned:
    """One decision as the log has it."""

    at: float
    target_replicas: int | None
    reason: str

    would_change: str | None = None
    """What would have to change for another answer; None in logs that do not say it."""

    looks_again_at: float | None = None
    """When it looks again though nothing happens; None: time alone changes nothing."""


@dataclass(slots=True)
class Explained:
    """Eats records in file order; keeps the last decisions and what is said of the rest."""

    decisions: deque[Reasoned] = field(default_factory=lambda: deque(maxlen=LAST))
    """Oldest first; a repeated one only once, at its first time."""

    interval: str | None = None
    """How often there is a checkpoint now, and why; None if nothing was said of it."""

    pool: str | None = None
    """Where the job stands in its pool, and why; None: it is in none."""

    start: str | None = None
    """Where the newest replica was started, and why there; None: there was nothing to choose."""

    mode: str | None = None
    """What each change of size costs, where the script is started again; None: it is not."""

    cost: str | None = None
    """What the last one has cost there; None: there was none."""

    aside: str | None = None
    """Which node was set aside last, and for which cause of its host; None: none is known to be."""

    ordered_at: float = 0.0
    """When the change was ordered whose cost is told of."""

    is_awaited: bool = False
    """Nothing is known yet of the first step after it."""

    def add(self, record: Record) -> None:
        """Take in one record; kinds it does not know change nothing."""
        if self.mode is not None:
            self._add_cost(record, float(record.get("at") or 0.0))
        match record.get("kind"):
            case "job_started":
                self.pool = self.start = self.aside = self.cost = None
                self.mode = RESTARTS if record.get("mode") == Mode.RESTART else None
            case "note" if _START.match(str(record.get("text"))):
                self.start = str(record["text"])
            case "note" if found := SET_ASIDE.match(str(record.get("text"))):
                self.aside = None if found[1].startswith("no") else str(record["text"])
            case "pool":
                self.pool = pool_line(record)
            case "interval_chosen":
                self.interval = str(record.get("reason"))
            case "decision":
                self._on_decision(record)
            case _:
                pass

    def _add_cost(self, record: Record, at: float) -> None:
        """Take in what tells of a change of size in restart mode."""
        kind, text = record.get("kind"), str(record.get("text"))
        after = f"{max(at - self.ordered_at, 0.0):.1f} s after it was ordered"
        if kind == "switch":
            self.ordered_at = at
        elif kind == "note" and (stopped := _STOPPED.match(text)):
            self.cost = f"the last change, {stopped[1]} processes: all had ended {after}"
            self.is_awaited = True
        elif kind == "note" and self.cost is not None and (repeated := _REPEATED.match(text)):
            self.cost += f"; {repeated[1]} may be repeated"
        elif kind == "commit" and self.cost is not None and self.is_awaited:
            self.cost += f"; the next step was done {after}"
            self.is_awaited = False

    def _on_decision(self, record: Record) -> None:
        target, change = whole(record.get("target_replicas")), record.get("would_change")
        at, wait_s = float(record.get("at") or 0.0), seconds(record.get("looks_again_s"))
        decision = Reasoned(
            at=at,
            target_replicas=target,
            reason=str(record.get("reason") or "no reason given"),
            would_change=None if change is None else str(change),
            looks_again_at=None if wait_s is None else at + wait_s,
        )
        last = self.decisions[-1] if self.decisions else None
        if last and (last.target_replicas, last.reason) == (target, decision.reason):
            decision = replace(decision, at=self.decisions.pop().at)
        self.decisions.append(decision)


MAX_KEPT = 20
"""Of one job; what comes later is in the log alone."""

MAX_SHOWN = 5
"""In the closing lines, and in a panel."""

_REFUSED = re.compile(r"(?:node .* as )?(\S+) (?:was )?(refused: .*|cannot join: .*)", re.DOTALL)
"""What the coordinator notes of a replica that the job goes on without."""

_NUMBERS = re.compile(r"(?<![\w'])([-+]?[\d.][^\s,;:)]*(, )?)+")
"""Replicas that say the same of other values say it once; digits in quoted names count."""


def after(record: Record, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return [{text, by, at}] of all so far, in the order in which they came."""
    if record.get("kind") != "note" or len(before) == MAX_KEPT:
        return before
    text, by = str(record.get("text")), record.get("replica")
    if found := _REFUSED.fullmatch(text):
        by, text = found.groups()
    elif not record.get("lasting"):
        return before
    if any(is_same(text, known["text"]) for known in before):
        return before
    return [*before, {"text": text, "by": by, "at": record.get("at") or 0.0}]


def is_same(text: str, other: str) -> bool:
    """Whether two notes differ at most in the numbers that they name."""
    return _NUMBERS.sub("#", text) == _NUMBERS.sub("#", other)


def lines(notes: Sequence[dict[str, Any]]) -> list[str]:
    """Return one line of each, for people; a bounded number."""
    shown = [f"warning ({note['by']}): {note['text']}" for note in notes[:MAX_SHOWN]]
    more = len(notes) - len(shown)
    return [*shown, f"{more} more: pliant status --json"] if more > 0 else shown
