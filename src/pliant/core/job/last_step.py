"""Whether somebody has done the last step of the run, so that nobody new is needed in it.

Owns the memory of it, which outlives a coordinator, and how long it counts.  Must not know how a
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
    if event.lineage == tx.job.membership.lineage and last != tx.job.last_step:
        by_s = tx.now_s + tx.moment.timeouts.step_s
        tx.job = replace(tx.job, last_step=last, last_step_by_s=by_s)


def is_done(job: Job, now_s: float) -> bool:
    """Whether a replica that is started now would find nothing to do.

    Not once a new history has begun or must begin, or somebody went on; and not for longer than a
    step may take: what ends one script need not end those that are left.
    """
    membership = job.membership
    if job.last_step is None or membership.phase is Phase.LOST or now_s >= job.last_step_by_s:
        return False
    lineage, count = job.last_step
    return lineage == membership.lineage and membership.committed <= count
