"""Which worker of a replica keeps the others waiting, and whether the replica waits as a whole.

Owns what follows from where each worker's main thread is.  A replica waits for the other members
while none of its own workers keeps it from going on; a worker in the script while another waits
for it is the one that may hang.  Knows nothing of threads or of how that was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

EACH_OTHER = -1
"""Stands for a worker: all wait for each other, as if their scripts made other calls."""


class Whereabouts(StrEnum):
    """Where the main thread of a worker is."""

    MEMBERS = "members"
    """It waits for the workers of its place in other replicas."""

    REPLICA = "replica"
    """It has been waiting for other workers of its replica."""

    SCRIPT = "script"
    """In the script, or in what that calls: it computes, or hangs."""

    ENGINE = "engine"
    """In the session's own work, or not known."""


def waits(workers: Sequence[Whereabouts]) -> bool:
    """Whether a replica waits for the other members: none of its workers is anywhere else."""
    return Whereabouts.MEMBERS in workers and Whereabouts.SCRIPT not in workers


def held_up_by(workers: Sequence[Whereabouts]) -> int | None:
    """Return which worker keeps others of its replica waiting; None: nobody does."""
    if Whereabouts.REPLICA not in workers:
        return None
    if Whereabouts.SCRIPT in workers:
        return workers.index(Whereabouts.SCRIPT)
    return EACH_OTHER if set(workers) == {Whereabouts.REPLICA} else None
