"""Why the job has the size it has: its last decisions with their reasons.

Owns nothing but the selection; every reason is the sentence that the decision itself carried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pliant.observe.log import Record

LAST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoned:
    """One decision as the log has it."""

    at: float
    target_replicas: int | None
    reason: str


def interval_of(records: Iterable[Record]) -> str | None:
    """Return how often there is a checkpoint now, and why; None if nothing was said of it."""
    said = None
    for record in records:
        if record.get("kind") == "interval_chosen":
            said = str(record.get("reason"))
    return said


def decisions_of(records: Iterable[Record], last: int = LAST) -> list[Reasoned]:
    """Return the last decisions, oldest first; a repeated one only once, at its first time."""
    kept: deque[Reasoned] = deque(maxlen=max(last, 1))
    for record in records:
        if record.get("kind") != "decision":
            continue
        target = record.get("target_replicas")
        decision = Reasoned(
            at=float(record.get("at") or 0.0),
            target_replicas=target if isinstance(target, int) else None,
            reason=str(record.get("reason") or "no reason given"),
        )
        same = kept and (kept[-1].target_replicas, kept[-1].reason) == (
            decision.target_replicas,
            decision.reason,
        )
        if not same:
            kept.append(decision)
    return list(kept)
