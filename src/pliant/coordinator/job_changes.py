"""What an event has changed of a job that people want to see, and no command shows.

Owns these records of the log.  Decides nothing.
"""

from __future__ import annotations

from pliant.core.job.apart import pauses
from pliant.core.job.slowness import times
from pliant.core.job.state import Job
from pliant.core.policy.decide import Policy
from pliant.observe.log import EventLog
from pliant.spec.policy import document_of


def write_changes(log: EventLog, before: Job, after: Job, *, now_s: float) -> None:
    """Log in what a job differs from what it was."""
    if after.policy is not None and after.policy != before.policy:
        write_policy(log, after.policy)
    if after.apart != before.apart:
        log.write("nodes_apart", pairs=pauses(after.apart, now_s))
    if after.slow is before.slow:
        return
    slow = times(after.slow, now_s)
    if [one[:2] for one in slow] != [one[:2] for one in times(before.slow, now_s)]:
        log.write("replicas_slow", replicas=slow)


def write_policy(log: EventLog, policy: Policy) -> None:
    """Log what counts from now on."""
    log.write(
        "policy_changed",
        policy=document_of(policy),
        min_replicas=policy.min_replicas,
        max_replicas=policy.max_replicas,
    )
