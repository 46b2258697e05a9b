"""What a job would have measured of itself by now: the core decides by it, simulated or not.

Owns which commits ``core.policy.costs`` is told of, so few that a simulation of months stays quick.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pliant.core.policy import costs
from pliant.core.policy.costs import Costs


@dataclass(frozen=True, slots=True)
class SizeChange:
    """A job's change of size; sizes are numbers of replicas."""

    before: int
    after: int
    since_s: float
    """Since when it has had the size before."""

    at_s: float
    pause_s: float
    step_before_s: float
    step_after_s: float


def learnt(known: Costs, change: SizeChange) -> Costs:
    """Return what commits before and after a change would have told the core."""
    now_s, step_s = change.at_s, change.step_before_s
    is_ripe = known.step_time_s(change.before) is not None
    if is_ripe and len(known.pause_s) >= costs.KEPT:
        return known
    if not is_ripe:
        steps = costs.RIPE if now_s - change.since_s >= costs.RIPE * step_s else 0
        for step in range(steps + 1):
            at_s = now_s - (steps - step) * step_s
            known = costs.committed(known, size=change.before, num_steps=1, now_s=at_s)
    known = costs.crossed(replace(known, size=change.before, committed_at=now_s))
    at_s = now_s + change.pause_s + change.step_after_s
    return costs.interrupted(costs.committed(known, size=change.after, num_steps=1, now_s=at_s))
