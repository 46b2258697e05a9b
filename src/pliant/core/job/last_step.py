"""Whether somebody has done the last step of the run, so that nobody new is needed in it.

Owns the memory of it, which outlives a coordinator, how long it counts, and whether the leader has
done its part of it, as far as this coordinator has heard.  Must not know how a
job ends: that is for those who are left to say.
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.events import Finished, Registered
from pliant.core.job.state import Job
from pliant.core.job.transaction import Transaction
from pliant.core.membership.transitions import Phase


def hear_finished(tx: Transaction, event: Finished | Registered) -> None:
    """Take note that the last step is done, whoever says it, also one that is lost or released.

    All had voted for that step, so whoever is left has it or its result.
    """
    last = (event.lineage, event.committed)
    if event.lineage == tx.job.membership.lineage and last != tx.job.ending.last_step:
        by_s = tx.now_s + tx.moment.timeouts.step_s
        tx.job.ending = replace(tx.job.ending, last_step=last, last_step_by_s=by_s)


def hear_lacking(tx: Transaction, event: Finished) -> None:
    """Take note whether what the leader alone does after the last step was another one's to do."""
    before = tx.job.ending.lacking
    tail, end = event.lacks_tail, event.lacks_end
    if before is not None and before[0] == event.committed:
        tail, end = tail and before[1], end and before[2]
    tx.job.ending = replace(tx.job.ending, lacking=(event.committed, tail, end))


def is_lacking(job: Job) -> bool:
    """Whether the leader was lost at what it alone does, and nobody who is left has done it."""
    count = job.membership.committed
    return job.ending.lacking in ((count, True, True), (count, True, False), (count, False, True))


def is_done(job: Job, now_s: float) -> bool:
    """Whether a replica that is started now would find nothing to do.

    Not once a new history has begun or must begin, or somebody went on; and not for longer than a
    step may take: what ends one script need not end those that are left.
    """
    membership = job.membership
    if (
        job.ending.last_step is None
        or membership.phase is Phase.LOST
        or now_s >= job.ending.last_step_by_s
    ):
        return False
    lineage, count = job.ending.last_step
    return lineage == membership.lineage and membership.committed <= count
