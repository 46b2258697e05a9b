"""Why the job has the size it has: its last decisions with their reasons.

Owns nothing but the selection; every sentence is one that the decision itself carried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pliant.observe.log import Record
from pliant.observe.prose import pool_line

LAST = 10


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


def interval_of(records: Iterable[Record]) -> str | None:
    """Return how often there is a checkpoint now, and why; None if nothing was said of it."""
    said = None
    for record in records:
        if record.get("kind") == "interval_chosen":
            said = str(record.get("reason"))
    return said


def pool_of(records: Iterable[Record]) -> str | None:
    """Return where the job stands in its pool, and why; None: it is in none."""
    said = None
    for record in records:
        if record.get("kind") == "job_started":
            said = None
        elif record.get("kind") == "pool":
            said = pool_line(record)
    return said


def decisions_of(records: Iterable[Record], last: int = LAST) -> list[Reasoned]:
    """Return the last decisions, oldest first; a repeated one only once, at its first time."""
    kept: deque[Reasoned] = deque(maxlen=max(last, 1))
    for record in records:
        if record.get("kind") != "decision":
            continue
        target, change = record.get("target_replicas"), record.get("would_change")
        at, wait_s = float(record.get("at") or 0.0), record.get("looks_again_s")
        decision = Reasoned(
            at=at,
            target_replicas=target if isinstance(target, int) else None,
            reason=str(record.get("reason") or "no reason given"),
            would_change=None if change is None else str(change),
            looks_again_at=at + wait_s if isinstance(wait_s, int | float) else None,
        )
        same = kept and (kept[-1].target_replicas, kept[-1].reason) == (
            decision.target_replicas,
            decision.reason,
        )
        if same:
            decision = replace(decision, at=kept.pop().at)
        kept.append(decision)
    return list(kept)
