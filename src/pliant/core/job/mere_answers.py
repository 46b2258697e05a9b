"""Answers of many members to one order, heard together: as one after the other, in less time.

Owns when an answer is no more than that: its replica trains and was heard all the time, and others
are still awaited.  Each of a thousand would copy what is known of a thousand; together they copy it
once.  Whatever else an answer may mean is for the ``controller`` to conclude.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pliant.core.events import Event, Prepared, Switched
from pliant.core.job.state import Job, JobSettings, ReplicaState, Stage
from pliant.core.job.transaction import Transaction, draft_of
from pliant.core.membership import state as group
from pliant.core.membership.state import NEVER, Membership
from pliant.core.membership.transitions import Phase
from pliant.core.membership.worker_events import at_boundary
from pliant.core.table import Table
from pliant.core.transitions import extended
from pliant.core.values import ReplicaId

Answer = Prepared | Switched


def hear_together(
    job: Job, events: Sequence[Event], *, now_s: float, settings: JobSettings
) -> tuple[Job, int]:
    """Hear the first of these as far as they are mere answers; return what follows, and how many.

    It is what ``controller.step`` makes of each of them, which asks nothing of its driver.
    """
    heard = _mere_answers(job, events)
    is_asleep = now_s - job.history.seen_s > settings.timeouts.asleep_s
    if len(heard) < 2 or is_asleep or job.stage in (Stage.RECOVERING, Stage.ENDED):
        return job, 0
    tx = Transaction(job=draft_of(job), now_s=now_s, settings=settings)
    state, names = job.membership, frozenset(answer.replica for answer in heard)
    silence_s = tx.moment.timeouts.heartbeat_s
    pulses = {
        name: replace(pulse, silent_at_s=max(now_s, pulse.busy_until_s) + silence_s)
        for name, pulse in ((name, state.pulses[name]) for name in names)
    }
    state = replace(
        state,
        pulses=Table({**state.pulses, **pulses}),
        wait=replace(state.wait, awaiting=state.wait.awaiting - names),
        trouble=replace(
            state.trouble,
            late=state.trouble.late - names if state.trouble.late else state.trouble.late,
        ),
        story=extended(state.story, *heard),
    )
    if isinstance(heard[0], Switched):
        steps = [answer.step for answer in heard if isinstance(answer, Switched)]
        state = at_boundary(replace(state, committed=max(state.committed, *steps)), tx.moment)
    return replace(
        job,
        membership=state,
        history=replace(job.history, seen_s=now_s, story=extended(job.history.story, *heard)),
    ), len(heard)


def _mere_answers(job: Job, events: Sequence[Event]) -> list[Answer]:
    """Return the first of these events as far as they are mere answers to the order under way."""
    state, heard = job.membership, list[Answer]()
    kind = _awaited_kind(state)
    if kind is None or not events or not isinstance(events[0], kind):
        return heard
    generation, left = group.under_way(state).generation, set(state.wait.awaiting)
    for event in events:
        if (
            not isinstance(event, kind)
            or event.generation != generation
            or event.replica not in left
            or len(left) == 1
            or not _is_heard_as_ever(job, event.replica)
        ):
            break
        left.remove(event.replica)
        heard.append(event)
    return heard


def _awaited_kind(state: Membership) -> type[Answer] | None:
    """Return what is answered to the order under way, if nothing else follows from an answer."""
    if state.phase is Phase.PREPARING:
        return Prepared
    is_entering = state.phase in (Phase.SWITCHING, Phase.REFORMING)
    return Switched if is_entering and not state.orders.leavers else None


def _is_heard_as_ever(job: Job, name: ReplicaId) -> bool:
    """Whether nothing but its answer is new of a replica: it trains, or is to leave."""
    state, replica, pulse = job.membership, job.replicas.get(name), job.membership.pulses.get(name)
    return (
        replica is not None
        and not replica.is_lost
        and replica.state is not ReplicaState.SPARE
        and pulse is not None
        and pulse.mute_at_s == NEVER
        and name not in state.trouble.unheard
        and name not in state.trouble.unsure
        and name not in state.orders.joiners
        and name not in state.spares
    )
