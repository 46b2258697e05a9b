"""Who may write to a checkpoint root: the decision, apart from any storage or clock.

Owns one rule: a living holder is never displaced by another job.  Knows nothing of storage,
processes or the time; the caller passes in what it saw.

No two wall clocks are ever compared, so a jump of any of them changes nothing.  A holder of this
machine is dead when its process is.  One elsewhere is dead when its beat, a counter that it raises
several times per ``ttl_s``, stood still for that long by the watcher's own monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

BEATS_PER_TTL = 4
"""How often a holder beats in the time after which it is taken for dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Who holds a root."""

    job: str
    """The job's id; whoever has the same is the same job, restarted."""
    holder: str
    """Unique to one acquisition: tells two processes of one job apart."""
    node: str
    """For people."""
    machine: str
    """Where ``pid`` means something: the boot, and the process namespace in it."""
    pid: int
    process_started: str
    beat: int = 0
    ttl_s: float = 60.0


class LeaseAction(Enum):
    """What a candidate does."""

    TAKE = "take"
    WATCH = "watch"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class LeaseDecision:
    """What a candidate does, and why."""

    action: LeaseAction
    reason: str


def decide(
    found: LeaseRecord | None,
    me: LeaseRecord,
    *,
    is_alive: bool | None,
    still_for_s: float,
    has_beaten: bool,
) -> LeaseDecision:
    """Say whether a root may be taken.

    Args:
        found: who holds it, as read; ``None`` if nobody does.
        me: the candidate.
        is_alive: whether the holder's process is, if it is of this machine; ``None`` elsewhere.
        still_for_s: how long the candidate has seen this very record, by its monotonic clock.
        has_beaten: whether the candidate has seen the record change.
    """
    if found is None:
        return LeaseDecision(LeaseAction.TAKE, "nobody holds it")
    if found.job == me.job:
        return LeaseDecision(LeaseAction.TAKE, "this job held it before")
    who = f"job {found.job} (process {found.pid} on {found.node})"
    if is_alive is False:
        return LeaseDecision(LeaseAction.TAKE, f"{who} has ended")
    if is_alive or has_beaten:
        return LeaseDecision(LeaseAction.REFUSE, f"{who} writes to it")
    if still_for_s >= found.ttl_s:
        return LeaseDecision(LeaseAction.TAKE, f"{who} was silent for {found.ttl_s:g} s")
    return LeaseDecision(LeaseAction.WATCH, f"waiting whether {who} lives")
