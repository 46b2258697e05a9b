"""What a job begins from: the newest checkpoint that nobody found damaged, or nothing.

Owns which checkpoints count and how a new history is opened (R20).  Does not read storage: workers
say what they see, in their Spare, and what became durable, in Saved.

A new history never has the number of an older one, wherever that is known from: the register, or a
checkpoint of a job whose register is gone.  So what is still said in an older one can be told.
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.commands import Command, ListCheckpoints
from pliant.core.events import Saved, Spare
from pliant.core.job.state import Checkpoints, Job, ReplicaState, spares
from pliant.core.membership import changes
from pliant.core.membership.state import Membership, Moment, Orders, Outcome, members
from pliant.core.membership.transitions import Phase
from pliant.core.values import NO_CHECKPOINT, NO_LINEAGE, CheckpointInfo, Lineage, Restore

NOTHING = CheckpointInfo(name=NO_CHECKPOINT, committed=0, lineage=NO_LINEAGE)
"""Begins a history again at step 0, when nothing of the last one was ever made durable.  It makes
what that one made, for a step has one result; what is still said in that one is stale."""

MAX_SAVED = 16
"""Checkpoints of this process's time that are remembered; storage keeps fewer."""


def newest(job: Job) -> CheckpointInfo | None:
    """Return what to restore: highest lineage, then most steps; None if there is nothing."""
    return max(_candidates(job), key=_age, default=None)


def is_pending(job: Job) -> bool:
    """Whether the first generation must not begin before it is known what it begins from."""
    return job.membership.phase is Phase.LOST or (
        job.membership.orders.recorded is None
        and job.membership.restore is None
        and newest(job) is not None
    )


def saved(known: Checkpoints, event: Saved) -> Checkpoints:
    """Return what is known of checkpoints once one has become durable."""
    found = CheckpointInfo(
        name=event.checkpoint, committed=event.committed, lineage=event.lineage, calls=event.calls
    )
    kept = sorted({*known.saved, found}, key=_age)[-MAX_SAVED:]
    after = known.asked_after
    is_it = after is not None and event.committed > after
    asked_after = None if is_it else after
    return replace(known, saved=tuple(kept), exist=True, asked_after=asked_after)


def look_anew(job: Job) -> tuple[Checkpoints, tuple[Command, ...]]:
    """Ask the spares for what there is now, as what they have said of it may be old.

    If something may have been published, so may be what one has said that is on its way: one that
    is starting, or passes through to the call of those who are lost.
    """
    names = tuple(spares(job))
    known = replace(job.checkpoints, looks=job.checkpoints.looks + 1)
    if known.publishers:
        coming = (n for n, one in job.replicas.items() if one.state is ReplicaState.STARTING)
        behind = (n for n, one in job.membership.spares.items() if one.calls < job.membership.calls)
        left = known.publishers.intersection(job.replicas)
        known = replace(known, outdated=frozenset((*coming, *behind)), publishers=left)
    if not names:
        return known, ()
    looking = replace(known, looking=frozenset(names))
    return looking, (ListCheckpoints(to=names, number=known.looks),)


def has_looked(job: Job, event: Spare) -> bool:
    """Whether what a spare says was seen after it was asked to look last."""
    return (event.asked_by, event.looked) == (job.membership.incarnation, job.checkpoints.looks)


def restored(state: Membership, found: CheckpointInfo) -> Membership:
    """Open a new history from this checkpoint; nobody is a member of it yet.

    Spares stay, and what they still say of older generations is stale: numbers only grow.
    """
    lineage = Lineage(max(state.lineage, found.lineage) + 1)
    return Membership(
        incarnation=state.incarnation,
        lineage=lineage,
        orders=Orders(issued=state.orders.issued),
        restore=Restore(checkpoint=found.name, committed=found.committed, lineage=lineage),
        spares=state.spares,
        pulses=state.pulses,
        calls=found.calls,
        committed=found.committed,
        stale=state.stale,
    )


def retried(state: Membership, found: CheckpointInfo, moment: Moment) -> Outcome:
    """Open another history with the same members, whose origin could not load the last one's."""
    opened = restored(state, found)
    present = frozenset(members(state))
    opened = replace(
        opened,
        orders=replace(
            opened.orders, recorded=state.orders.recorded, gone=state.orders.gone, joiners=present
        ),
    )
    return changes.reform(opened, moment, cause="not restorable")


def sentence(found: CheckpointInfo) -> str:
    """Say from what the run goes on."""
    if found is NOTHING:
        return "nothing was made durable before: the run begins again, at step 0"
    if found.name == NO_CHECKPOINT:
        return "the run begins at step 0, whatever other runs have left in its place"
    return f"restore {found.name}: go on from {found.committed} committed steps"


def has_trained(job: Job) -> bool:
    """Whether a step was made since the job began; not if its checkpoint was of its last one."""
    restore, count = job.membership.restore, job.membership.committed
    if restore is None or restore.checkpoint == NO_CHECKPOINT or restore.committed < count:
        return True
    return any(
        one.committed == count and one.lineage < restore.lineage for one in job.checkpoints.saved
    )


def nothing_left(job: Job) -> str:
    """Say that no checkpoint can be restored, and what can be done about it."""
    if job.checkpoints.damaged:
        return (
            f"no checkpoint can be restored; damaged: {', '.join(sorted(job.checkpoints.damaged))}"
        )
    return "its state is gone and no replica finds a checkpoint of it"


def _candidates(job: Job) -> set[CheckpointInfo]:
    seen = {found for spare in job.membership.spares.values() for found in spare.checkpoints}
    return {
        found
        for found in seen.union(job.checkpoints.saved)
        if found.name not in job.checkpoints.damaged
    }


def _age(found: CheckpointInfo) -> tuple[int, int, str]:
    return found.lineage, found.committed, found.name
