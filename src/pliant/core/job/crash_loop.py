"""The restart budget: which losses count, and when a script fails in a loop.

Owns what a loss costs.  The budget ends a script that always fails; a script that fails alike twice
before its first step is not tried again (``deterministic_failure``).
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.events import OUT_OF_MEMORY, Broken, Exited, ExitKind
from pliant.core.job.state import (
    Job,
    JobSettings,
    Loss,
    ReplicaState,
)
from pliant.core.job.transaction import Transaction
from pliant.core.text import counted

CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGSYS", OUT_OF_MEMORY)
"""Ends by a signal that a process brings upon itself."""

WAY_IN = (ReplicaState.STARTING, ReplicaState.SPARE, ReplicaState.TRAINING)
"""The states of a replica on its way to the first step, in order."""


TIMES_EACH_DEVICE = 3
"""So often a device may fail, with no step committed since, until nothing is started any more."""

MOST_TIMES = 12
"""The same of all devices together: what takes too much memory on a few does on a thousand."""


def count_failed_device(tx: Transaction, sentence: str) -> None:
    """Count a loss that says nothing of the script, but that a device has failed."""
    job = tx.job
    committed = job.membership.committed
    loss = Loss(at_s=tx.now_s, kind=ExitKind.DEVICE, sentence=sentence, committed=committed)
    since = [one for one in job.budget.by_devices if one.committed == committed]
    tx.job.budget = replace(job.budget, by_devices=(*since, loss)[-MOST_TIMES:])


def failed_devices(job: Job) -> Loss | None:
    """Return the newest loss by a device if another start would be in vain."""
    since = [x for x in job.budget.by_devices if x.committed == job.membership.committed]
    devices = max(1, sum(job.nodes.devices.values()))
    return since[-1] if len(since) >= min(MOST_TIMES, TIMES_EACH_DEVICE * devices) else None


def recent_losses(job: Job, settings: JobSettings, now_s: float) -> tuple[Loss, ...]:
    """Return the losses that count against the restart budget: before the first step another."""
    old_s, committed = now_s - settings.restart_forget_s, job.membership.committed
    alike = (x for x in job.budget.losses if bool(x.committed) == bool(committed))
    is_counted = not settings.is_restarting
    return tuple(x for x in alike if x.at_s > old_s or (is_counted and x.committed == committed))


def is_spent(tx: Transaction) -> bool:
    """Whether nothing may be started any more, for now."""
    return len(recent_losses(tx.job, tx.settings, tx.now_s)) > tx.settings.restart_budget


def signature(event: Exited) -> str:
    """Say what failures of a script have in common: the exception's type, or a signal of its own.

    Its text may contain a path or an address.
    """
    if event.kind is ExitKind.DEVICE:
        return str(event.kind)
    if event.kind is ExitKind.SCRIPT:
        return event.detail.partition(":")[0]
    is_own = event.kind is ExitKind.SIGNAL and event.detail in CRASHES
    return event.detail if is_own else ""


def charge_restart(tx: Transaction, event: Broken) -> str | None:
    """Count that a script has failed, once for each generation; return why that was the last time.

    What fails in the same generation after the first mostly fails of that.
    """
    known = tx.job.budget.restarted
    if event.failure is None or event.generation <= known:
        return None
    tx.job.budget = replace(tx.job.budget, restarted=event.generation)
    charge(tx, event.failure, event.reason)
    tx.notes.append(event.reason)
    if not is_spent(tx):
        return None
    return (
        f"the script has failed {counted(tx.settings.restart_budget + 1, 'time')} within "
        f"{tx.settings.restart_forget_s:g} s; last: {event.reason}"
    )


def deterministic_failure(job: Job) -> Loss | None:
    """Return the newest loss if the script may fail like that before its first step wherever it is
    started: two have, and nobody who is left has come further.
    """
    last = job.budget.losses[-1] if job.budget.losses else None
    if last is None or not last.signature or job.membership.committed:
        return None
    alike = sum(
        loss.signature == last.signature and not loss.committed for loss in job.budget.losses
    )
    further = WAY_IN[WAY_IN.index(last.reached) + 1 :]
    has_company = any(replica.state in further for replica in job.replicas.values())
    return last if alike > 1 and not has_company else None


def charge(
    tx: Transaction,
    kind: ExitKind,
    sentence: str,
    *,
    signature: str = "",
    reached: ReplicaState = ReplicaState.STARTING,
) -> None:
    """Count a loss that nobody asked for against the restart budget."""
    committed = tx.job.membership.committed
    loss = Loss(
        at_s=tx.now_s,
        kind=kind,
        sentence=sentence,
        committed=committed,
        signature=signature,
        reached=reached,
    )
    other = [one for one in tx.job.budget.losses if bool(one.committed) != bool(committed)]
    alike = [one for one in tx.job.budget.losses if bool(one.committed) == bool(committed)]
    was_spent = is_spent(tx)
    kept = (*other, *[*alike, loss][-(tx.settings.restart_budget + 1) :])
    tx.job.budget = replace(tx.job.budget, losses=kept)
    if not was_spent and is_spent(tx) and not tx.settings.is_restarting:
        tx.notes.append(
            f"the restart budget of {tx.settings.restart_budget} is spent: nothing is started "
            f"until a loss is older than {tx.settings.restart_forget_s:g} s and a step was "
            "committed since"
        )
