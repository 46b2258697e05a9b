"""What becomes of replicas that are far slower than the others: told, and replaced if that is set.

Owns whose place a spare takes, and how often.  Must not know how slowness is found out, nor how a
replica leaves: it goes as any other that is sent away, so its state has other holders.
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.events import Progressed
from pliant.core.job import replicas
from pliant.core.job.state import Job, JobPhase, ReplicaState, Slow, Slowness, spares, trainers
from pliant.core.job.transaction import Transaction
from pliant.core.membership.state import NEVER
from pliant.core.values import ReplicaId

HOUR_S = 3600.0

AGAIN_S = 30.0
"""Between two looks whether one that is to be replaced can be, in seconds."""


def hear_slowness(tx: Transaction, event: Progressed) -> None:
    """Take note of what a replica says of itself in a sign of life."""
    known = with_slowness(tx.job.stragglers.slow, event.replica, event.slow, tx.now_s)
    if known is not tx.job.stragglers.slow:
        tx.job.stragglers = replace(tx.job.stragglers, slow=known)
        _look_again(tx)


def look_at_slow(tx: Transaction) -> None:
    """Tell who is slow for long, and let a spare take its place."""
    job = tx.job
    if not job.stragglers.slow or job.phase is not JobPhase.RUNNING:
        return
    present = trainers(job)
    known = job.stragglers.slow.drop(*(n for n in job.stragglers.slow if n not in present))
    for name, slow in known.items():
        if not slow.is_told and slow.since_s + tx.settings.slow_s <= tx.now_s:
            known = known.put(name, replace(slow, is_told=True))
            tx.notes.append(_what(known, name, tx.now_s))
    tx.job.stragglers = replace(job.stragglers, slow=known)
    if (slowest := _to_replace(tx)) is not None:
        tx.notes.append(f"{_what(known, slowest, tx.now_s)}; a spare takes its place")
        reason = f"{known[slowest].tenths / 10:g} times as slow as the others"
        recent = (*_recent(tx.job, tx.now_s), tx.now_s)
        tx.job.stragglers = replace(tx.job.stragglers, replaced=recent, slow=known.drop(slowest))
        notice_s = tx.settings.leave_s
        replicas.send_away(tx, slowest, notice_s, reason)
    _look_again(tx)


def _look_again(tx: Transaction) -> None:
    """Set when the next look is due, if nothing else happens."""
    after_s = tx.settings.policy.replace_slow_after_s
    moments = [NEVER]
    for slow in tx.job.stragglers.slow.values():
        if not slow.is_told:
            moments.append(slow.since_s + tx.settings.slow_s)
        if after_s is not None:
            due_s = slow.since_s + after_s
            moments.append(due_s if due_s > tx.now_s else tx.now_s + AGAIN_S)
    tx.job.stragglers = replace(tx.job.stragglers, look_s=min(moments))


def _to_replace(tx: Transaction) -> ReplicaId | None:
    """Choose the slowest of those that are slow for long enough, while a spare waits for it."""
    policy, job = tx.settings.policy, tx.job
    after_s = policy.replace_slow_after_s
    if after_s is None or not spares(job) or len(trainers(job)) < 2:
        return None
    busy = (ReplicaState.LEAVING, ReplicaState.ENDING)
    if any(replica.state in busy for replica in job.replicas.values()):
        return None
    if len(_recent(job, tx.now_s)) >= policy.max_slow_replacements_per_hour:
        return None
    due = [name for name, slow in job.stragglers.slow.items() if slow.since_s + after_s <= tx.now_s]
    return max(due, key=lambda name: (job.stragglers.slow[name].tenths, name), default=None)


def _recent(job: Job, now_s: float) -> tuple[float, ...]:
    return tuple(at_s for at_s in job.stragglers.replaced if at_s > now_s - HOUR_S)


def _what(known: Slowness, name: ReplicaId, now_s: float) -> str:
    slow = known[name]
    return (
        f"{name} has taken {slow.tenths / 10:g} times as long for a micro-batch as the others for "
        f"{now_s - slow.since_s:.0f} s"
    )


def with_slowness(known: Slowness, name: ReplicaId, tenths: int, now_s: float) -> Slowness:
    """Return the memory once a replica has said how slow it is; 0: not markedly."""
    before = known.get(name)
    if not tenths:
        return known if before is None else known.drop(name)
    if before is None:
        return known.put(name, Slow(tenths=tenths, since_s=now_s))
    return known if before.tenths == tenths else known.put(name, replace(before, tenths=tenths))


def slow_times(known: Slowness, now_s: float) -> list[tuple[ReplicaId, float, float]]:
    """Return of whom people hear: who, how many times as long, and for how many seconds so far."""
    return [
        (name, slow.tenths / 10, now_s - slow.since_s)
        for name, slow in sorted(known.items())
        if slow.is_told
    ]
