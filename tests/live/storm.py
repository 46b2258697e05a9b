"""A storm: things that may happen, each with its weight, in an order that a seed decides.

Owns the draw, and what has happened.  Knows nothing of jobs or pools: what happens is the caller's,
and so is what must be true afterwards.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Storm:
    """Draws one event after the other."""

    draw: random.Random
    events: Mapping[str, tuple[float, Callable[[], bool]]]
    """By name: how likely each is, and what does it; False: it is impossible now."""

    happened: Counter[str] = field(default_factory=Counter)
    trail: list[str] = field(default_factory=list)
    """What happened, in order; for the report of a failure."""

    def happen(self) -> bool:
        """Let the next event happen; False if it could not."""
        names, weights = list(self.events), [weight for weight, _ in self.events.values()]
        (name,) = self.draw.choices(names, weights)
        if not self.events[name][1]():
            return False
        self.happened[name] += 1
        self.trail.append(name)
        return True
