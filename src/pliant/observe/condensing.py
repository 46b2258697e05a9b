"""Ledgers of a long run, kept short: what was audited while it goes on need not be kept.

Owns what may go: the steps that no replica writes about any more, once they were audited and what
came of that is durable.  Of a run with a sampler an epoch goes as a whole, as only all draws of it
prove that it used each once.  One process does it at a time.  Knows nothing of when it is time.

    audit of the steps before S --> ledger.snapshot --> parts that have nothing from S on: removed

A line of a step before S that comes later, of a replica that was cut off, counts for nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pliant.machine import run_files
from pliant.machine.files import open_private
from pliant.machine.locks import lock, locked
from pliant.observe.audit import Audit, count_steps, first_steps, go_on, unreadable
from pliant.observe.audit_epochs import Epochs
from pliant.observe.audit_plan import AuditPlan, first_step_of, plan_of
from pliant.observe.condensed import Condensed, read_condensed, write_condensed
from pliant.observe.ledgers import BEFORE_ALL, Key, LedgerFile, OutOfOrderError, key_of, ledgers_in
from pliant.observe.reading import every, record_of

KEPT_STEPS = 1000
"""Newest committed steps whose lines stay: nobody is that far behind and still writes."""

_TAIL_BYTES = 1 << 16
"""Of a ledger, looked at for its last whole line."""


def ledger_bytes(out: Path) -> int:
    """Return how much the ledgers of a run take."""
    sizes = []
    for path in (out / run_files.LEDGER).glob("*.jsonl"):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sum(sizes)


def condense(out: Path, *, kept_steps: int = KEPT_STEPS) -> bool:
    """Audit what is old, keep what came of it, remove its lines; return whether anything went.

    Raises:
        OSError: the storage does not take or give something; nothing was removed before that.
    """
    with locked(out / run_files.CONDENSING_LOCK, within_s=0) as is_ours:
        if not is_ours:
            return False
        before, ledgers = read_condensed(out), ledgers_in(out / run_files.LEDGER)
        log = run_files.event_log(out)
        plan, _ = plan_of(every(log))
        until = None if plan is None else _end_of_the_old(ledgers, plan, kept_steps)
        if plan is None or until is None:
            return False
        if before is None or before.end < until:
            audited = _audited(ledgers, plan, first_step_of(every(log)), before, until)
            if audited is None:
                return False
            write_condensed(out, audited)
        return _remove(ledgers, until if before is None else max(until, before.end))


def _end_of_the_old(ledgers: list[LedgerFile], plan: AuditPlan, kept_steps: int) -> Key | None:
    """Return the step from which on lines stay, in the newest lineage; None: all stay."""
    firsts = first_steps(ledgers)
    if not firsts:
        return None
    lineage = max(firsts)
    newest = max(
        step
        for ledger in ledgers
        for of, step in (key_of(line, BEFORE_ALL) for line in ledger.commits())
        if of == lineage
    )
    until = newest + 1 - kept_steps
    if plan.sampler:
        until -= until % plan.steps_per_epoch
    return (lineage, until) if until > firsts[lineage] else None


def _audited(
    ledgers: list[LedgerFile],
    plan: AuditPlan,
    first_step: int,
    before: Condensed | None,
    until: Key,
) -> Condensed | None:
    """Return the audit of what is before a step; None: a ledger must be read whole for that."""
    audit = Audit(first_step=first_step, sampler=plan.sampler)
    # With a seed each slot is compared with its places, so that an epoch has nothing left to prove.
    epochs = Epochs(plan, audit) if plan.sampler else None
    expected, after = first_step, BEFORE_ALL
    if before is not None:
        expected, after = go_on(audit, plan, before, first_steps(ledgers)), before.end
    if epochs is not None:
        epochs.go_on(expected)
    try:
        count_steps(
            ledgers, plan, audit, expected=expected, epochs=epochs, after=after, until=until
        )
    except OutOfOrderError:
        return None
    if epochs is not None:
        epochs.end()
    for ledger in ledgers:
        if (said := unreadable(ledger)) and said not in audit.problems:
            audit.complain(said)
    lineage, step = until
    return Condensed(
        lineage=lineage,
        until=step,
        unused=audit.unused_samples,
        duplicates=audit.duplicates,
        superseded=audit.superseded,
        uncommitted=audit.uncommitted,
        torn=audit.torn,
        problems=tuple(audit.problems),
    )


def _remove(ledgers: list[LedgerFile], until: Key) -> bool:
    """Remove the parts that tell of nothing from a step on, and that nobody writes to."""
    has_removed = False
    for ledger in ledgers:
        last = _last_key(ledger.path)
        if last is None or last >= until:
            continue
        fd = open_private(ledger.path, os.O_RDWR)  # for its lock on NFS
        try:
            if lock(fd, within_s=0):
                ledger.path.unlink()
                has_removed = True
        finally:
            os.close(fd)
    return has_removed


def _last_key(path: Path) -> Key | None:
    """Return where the last whole line of a ledger belongs; None: it cannot be told."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines = file.read().split(b"\n")
    for line in reversed(lines):
        record = record_of(line)
        if record is not None:
            key = key_of(record, BEFORE_ALL)
            return None if key == BEFORE_ALL else key
    return None
