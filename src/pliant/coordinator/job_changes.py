"""What has changed of a job that people want to see, and no command of this coordinator shows.

Owns these records of the log.  Decides nothing.
"""

from __future__ import annotations

from pliant.core.job.apart import pauses
from pliant.core.job.state import Job
from pliant.core.job.stragglers import slow_times
from pliant.core.policy.decide import Policy
from pliant.core.values import Register
from pliant.observe.log import EventLog
from pliant.observe.timeline import Timeline
from pliant.spec.policy import document_of

BY_THE_REGISTER = "register"
"""Who tells of an order that its coordinator could not log."""


def write_changes(log: EventLog, before: Job, after: Job, *, now_s: float) -> None:
    """Log in what a job differs from what it was."""
    if after.sizing.policy is not None and after.sizing.policy != before.sizing.policy:
        write_policy(log, after.sizing.policy)
    if after.nodes.apart != before.nodes.apart:
        log.write("nodes_apart", pairs=pauses(after.nodes.apart, now_s))
    if after.nodes.silent != before.nodes.silent:
        heard = (before.nodes.silent - after.nodes.silent) & after.nodes.devices.keys()
        log.write("nodes_silent", nodes=sorted(after.nodes.silent), heard=sorted(heard))
    if after.stragglers.slow is before.stragglers.slow:
        return
    slow = slow_times(after.stragglers.slow, now_s)
    if [one[:2] for one in slow] != [one[:2] for one in slow_times(before.stragglers.slow, now_s)]:
        log.write("replicas_slow", replicas=slow)


def write_policy(log: EventLog, policy: Policy) -> None:
    """Log what counts from now on."""
    log.write(
        "policy_changed",
        policy=document_of(policy),
        min_replicas=policy.min_replicas,
        max_replicas=policy.max_replicas,
    )


def write_unlogged_order(log: EventLog, recorded: Register | None, known: Timeline) -> None:
    """Log the newest order of the register if the coordinator before was killed before it could.

    Orders are sent before a line is logged of them.  Which kind it was the register does not tell:
    a Reform brings nobody in and lets nobody leave.
    """
    order = None if recorded is None else recorded.newest
    if recorded is None or order is None or order.generation <= max(known.members, default=0):
        return
    before = known.members.get(known.generation, ())
    is_reform = bool(before) and not recorded.leavers and set(order.replicas) <= set(before)
    log.write("reform" if is_reform else "switch", to=(), order=order, by=BY_THE_REGISTER)
