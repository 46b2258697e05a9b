"""Ledgers of a long run, kept short: what was audited while it goes on need not be kept.

Owns what may go: the steps that no replica writes about any more, once they were audited and what
came of that is durable.  Of a run with a sampler an epoch goes as a whole, as only all draws of it
prove that it used each once.  One process does it at a time.  Knows nothing of when it is time.

    audit of the steps before S --> ledger.snapshot --> parts that have nothing from S on: removed

A line of a step before S that comes later, of a replica that was cut off, counts for nothing.

A part whose lines are not in order is read whole, as an audit of the whole run does; of more than
``MOST_WHOLE_BYTES`` of such parts nothing goes, as that takes six times the memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pliant.machine import run_files
from pliant.machine.files import open_private
from pliant.machine.locks import lock, locked
from pliant.observe.audit import Audit, TooMuchError, audit_ledgers, committed_in
from pliant.observe.audit_cover import cover_of
from pliant.observe.audit_plan import AuditPlan, first_step_of, plan_of
from pliant.observe.ledgers import (
    BEFORE_ALL,
    Condensed,
    Key,
    LedgerFile,
    key_of,
    ledgers_in,
    read_condensed,
    write_condensed,
)
from pliant.observe.reading import every, record_of

KEPT_STEPS = 1000
"""Newest committed steps whose lines stay: nobody is that far behind and still writes."""

MOST_WHOLE_BYTES = 8 << 20
"""Of parts that are not in order, together: two of a replica's."""

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
        OSError: the storage does not take or give something.
    """
    with locked(out / run_files.CONDENSING_LOCK, within_s=0) as is_ours:
        if not is_ours:
            return False
        before, ledgers = read_condensed(out), ledgers_in(out / run_files.LEDGER)
        log = run_files.event_log(out)
        plan, _ = plan_of(every(log))
        if plan is None:
            return False
        committed = committed_in(ledgers)
        until = _end_of_the_old(committed, plan, kept_steps)
        if until is None:
            return False
        if before is None or before.end < until:
            try:
                # With a seed each slot is compared with its places: that is enough
                # (docs/decisions/0016).
                audit = audit_ledgers(
                    ledgers,
                    plan,
                    committed,
                    first_step=first_step_of(every(log)),
                    before=before,
                    until=until,
                    cover=cover_of(every(log)),
                    is_by_epoch=bool(plan.sampler),
                    most_whole_bytes=MOST_WHOLE_BYTES,
                )
            except TooMuchError:
                return False
            write_condensed(out, _condensed(audit, until))
        return _remove(ledgers, until if before is None else max(until, before.end))


def _condensed(audit: Audit, until: Key) -> Condensed:
    lineage, step = until
    return Condensed(
        lineage=lineage,
        until=step,
        unused=audit.unused_samples,
        duplicates=audit.duplicates,
        superseded=audit.superseded,
        uncommitted=audit.uncommitted,
        problems=tuple(audit.problems),
        uncovered=tuple(audit.uncovered),
        uncovered_steps=audit.uncovered_steps,
    )


def _end_of_the_old(committed: Mapping[int, range], plan: AuditPlan, kept_steps: int) -> Key | None:
    """Return the step from which on lines stay, in the newest lineage; None: all stay."""
    if not committed:
        return None
    lineage = max(committed)
    until = committed[lineage].stop - kept_steps
    if plan.sampler:
        until -= until % plan.steps_per_epoch
    return (lineage, until) if until > committed[lineage].start else None


def _remove(ledgers: list[LedgerFile], until: Key) -> bool:
    """Remove the parts that tell of nothing from a step on, and that nobody writes to.

    Raises:
        OSError: one could not be removed; the others are.
    """
    has_removed, failed = False, None
    for path in (ledger.path for ledger in ledgers):
        try:
            if _is_old(path, until):
                has_removed |= _remove_unused(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return has_removed


def _remove_unused(path: Path) -> bool:
    fd = open_private(path, os.O_RDWR)  # for its lock on NFS
    try:
        if is_ours := lock(fd, within_s=0):
            path.unlink()
        return is_ours
    finally:
        os.close(fd)


def _is_old(path: Path, until: Key) -> bool:
    """Whether a part tells only of steps before one; the end of most tells at once that not."""
    last = _last_key(path)
    if last is not None and last >= until:
        return False
    with path.open("rb") as file:
        records = (record for line in file if (record := record_of(line)) is not None)
        newest = max((key_of(record, BEFORE_ALL) for record in records), default=BEFORE_ALL)
    return BEFORE_ALL < newest < until


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
