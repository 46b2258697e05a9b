"""Signs of life of many replicas, heard together: as one after the other, in less time.

Owns when a sign of life is no more than that: its replica was heard all the time, is as far as the
others or behind them, and has nothing to say against itself or them.  Each of a thousand would copy
what is known of a thousand, and twice; together they copy it once.  Whatever else one may mean is
for the ``controller`` to conclude, the first that tells of a step among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pliant.core.events import Event, Progressed
from pliant.core.job.state import Job, JobSettings, Stage
from pliant.core.job.transaction import Transaction, draft_of
from pliant.core.membership.state import NEVER, Membership, Pulse
from pliant.core.membership.transitions import PHASES, Phase
from pliant.core.table import Table
from pliant.core.values import NO_GENERATION, ReplicaId


def hear_together(
    job: Job, events: Sequence[Event], *, now_s: float, settings: JobSettings
) -> tuple[Job, int]:
    """Hear the first of these as far as they are mere signs of life; return what follows, how many.

    It is what ``controller.step`` makes of each of them, which asks nothing of its driver.
    """
    state, said, number = job.membership, dict[ReplicaId, Pulse](), 0
    is_asleep = now_s - job.history.seen_s > settings.timeouts.asleep_s
    if is_asleep or job.stage in (Stage.RECOVERING, Stage.ENDED):
        return job, 0
    silence_s = Transaction(
        job=draft_of(job), now_s=now_s, settings=settings
    ).moment.timeouts.heartbeat_s
    for event in events:
        if not isinstance(event, Progressed):
            break
        pulse = said.get(event.replica) or state.pulses.get(event.replica)
        if pulse is None or not _is_as_ever(job, event.replica, pulse):
            break
        if not _says_no_more(job, event) or _has_arrived(state, event):
            break
        said[event.replica] = replace(
            pulse,
            silent_at_s=max(now_s, pulse.busy_until_s) + silence_s,
            committed=max(pulse.committed, event.committed),
            waiting=event.waiting,
        )
        number += 1
    if not number:
        return job, 0
    state = replace(state, pulses=Table({**state.pulses, **said}))
    return replace(job, membership=state, history=replace(job.history, seen_s=now_s)), number


def _is_as_ever(job: Job, name: ReplicaId, pulse: Pulse) -> bool:
    """Whether nothing is awaited of a replica but that it lives, and nothing was wrong with it."""
    state, replica = job.membership, job.replicas.get(name)
    return (
        replica is not None
        and not replica.is_lost
        and pulse.mute_at_s == pulse.hung_at_s == NEVER
        and pulse.held_up_by is None
        and name not in state.trouble.unheard
        and name not in state.trouble.unsure
        and name not in job.stragglers.slow
    )


def _says_no_more(job: Job, event: Progressed) -> bool:
    """Whether a sign of life tells of no step or call that is not known, and of no trouble."""
    state = job.membership
    return (
        PHASES.hears(state.phase, Progressed.__name__)
        and event.committed <= state.committed
        and event.calls <= state.calls
        and event.held_up_by is None
        and not event.is_spoken_for
        and not event.slow
    )


def _has_arrived(state: Membership, event: Progressed) -> bool:
    """Whether one that is to enter a generation says that it waits there for the others."""
    newest = NO_GENERATION if state.orders.recorded is None else state.orders.recorded.generation
    is_entering = state.phase in (Phase.SWITCHING, Phase.REFORMING)
    return is_entering and event.waiting == newest and event.replica in state.wait.awaiting
