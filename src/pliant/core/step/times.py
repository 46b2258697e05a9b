"""Step times: into what the time of a step goes, for all members together.

Owns how the parts of a step's time are told apart, from what each member says of itself beside its
vote.  Nobody can see in itself whether it waits for others or for the network; but the member that
comes last waits for nobody, so what it is held up by is the exchange, and what the others are held
up by beyond that is waiting for it.  Must not know clocks, tensors or who the members are.

    member 1   data | compute          | exchange |
    member 2   data | compute   | waiting          |      held up: 7 of 10, of them 4 waiting
                                       ^ the last one comes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PARTS = ("data", "compute", "exchange", "waiting")
"""What the time of a step goes to, in this order; what is left of it is ``REST``."""

REST = "other"
"""The script's tail, saving, changes of size, attempts that were given up."""


class MemberTimes(NamedTuple):
    """What one member's time since the vote before went to, in microseconds."""

    data_us: int = 0
    """It waited for its loader."""
    compute_us: int = 0
    """Micro-batches, without their data; and what the step before did behind its vote."""
    held_up_us: int = 0
    """All was computed here, and not all sums were there."""


UNKNOWN_TIMES = MemberTimes()


def parts_us(members: Sequence[MemberTimes]) -> tuple[int, int, int, int]:
    """Return the parts of a step's time, each the mean of the members, in microseconds."""
    number = len(members)
    data = sum(one.data_us for one in members) // number
    compute = sum(one.compute_us for one in members) // number
    held_up = sum(one.held_up_us for one in members) // number
    exchange = min(one.held_up_us for one in members)
    return data, compute, exchange, held_up - exchange
