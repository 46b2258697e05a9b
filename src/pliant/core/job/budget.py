"""Which losses count against the restart budget, and when it is spent.

Owns the counting.  What follows for the job is for ``lifecycle`` and ``sizing`` to say.
"""

from __future__ import annotations

from dataclasses import replace

from pliant.core.events import ExitKind
from pliant.core.job.state import Job, JobSettings, Loss
from pliant.core.job.transaction import Transaction


def recent_losses(job: Job, settings: JobSettings, now_s: float) -> tuple[Loss, ...]:
    """Return the losses that count against the restart budget."""
    old_s, committed = now_s - settings.restart_forget_s, job.membership.committed
    return tuple(x for x in job.losses if x.at_s > old_s or x.committed == committed)


def is_spent(tx: Transaction) -> bool:
    """Whether nothing may be started any more, for now."""
    return len(recent_losses(tx.job, tx.settings, tx.now_s)) > tx.settings.restart_budget


def charge(tx: Transaction, kind: ExitKind, sentence: str) -> None:
    """Count a loss that nobody asked for against the restart budget."""
    committed = tx.job.membership.committed
    loss = Loss(at_s=tx.now_s, kind=kind, sentence=sentence, committed=committed)
    kept = (*tx.job.losses, loss)[-(tx.settings.restart_budget + 1) :]
    was_spent = is_spent(tx)
    tx.job = replace(tx.job, losses=kept)
    if not was_spent and is_spent(tx):
        tx.notes.append(
            f"the restart budget of {tx.settings.restart_budget} is spent: nothing is started "
            f"until a loss is older than {tx.settings.restart_forget_s:g} s and a step was "
            "committed since"
        )
