"""How members divide the slots of a step by speed, as each concludes for itself.

Owns what a worker of the model says of its time, around the real ``core.step.balance``.
"""

from __future__ import annotations

from typing import Any

from tests.core.explorer.process import Process
from tests.core.explorer.universe import Universe

from pliant.core.step.balance import UNKNOWN_US, Balance, divide, hear_times, pace_of

USUAL_US = 100


def pace(universe: Universe, process: Process) -> int:
    """Return how long it took for one slot."""
    return USUAL_US * (process.slow or 10) // 10 if universe.is_balanced else UNKNOWN_US


def known_pace(universe: Universe, process: Process) -> int:
    """Return what it says of its time on entering a generation."""
    if process.division < 0 or process.home < 0:
        return UNKNOWN_US
    rank = universe.orders[process.home].replicas.index(process.name)
    return pace_of(universe.divisions[process.division], rank)


def divided(universe: Universe, process: Process) -> int:
    """Return the number of the division with which it enters a generation."""
    if not universe.is_balanced:
        return -1
    division = divide(universe.num_slots, process.paces, balance=Balance.SPEED)
    return universe.divisions.put(division)


def heard(universe: Universe, process: Process, values: tuple[Any, ...]) -> int:
    """Return the number of the division once it has heard how long all took for a step."""
    if process.division < 0:
        return -1
    before = universe.divisions[process.division]
    return universe.divisions.put(hear_times(before, [took_us for *_, took_us in values]))


def sizes_of(universe: Universe, process: Process) -> tuple[int, ...]:
    """Return by which division it computes."""
    return universe.divisions[process.division].sizes if process.division >= 0 else ()
