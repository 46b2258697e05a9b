"""The ledger audit: each sample of an epoch counted exactly once, in the order fixed by the seed.

Owns the proof.  What each step must consist of is the identity that every replica reported before
it joined (event log, ``spare``).  Every replica's ledger has, in this order for each step it takes
part in, a slot line per computed slot (before its vote) and a commit line (after its commit)::

    {"lineage": 1, "step": 7, "generation": 3, "slot": 2, "ids": [17, 4, 901, 33]}
    {"lineage": 1, "step": 7, "generation": 3, "commit": true, "digest": "9f..."}

A step counts with the slot lines of the generation that made its commit; lines of attempts that
nobody committed count for nothing.  A slot without a backward of a weight above 0 says so,
``"unused": true``: its samples were handed out and not learned from.  Duplicates are accepted only
if they are equal.  A later lineage supersedes every step from its first one on.  What counts is
then compared with the order of the seed, position by position, and no sample of an epoch may come
twice; where all lines of an epoch are there, its order is checked to be a permutation.

Where a sampler gives the order, "once" is once per draw: a sample that is drawn twice counts twice.
Which sample a draw is only the script's sampler can say, and every replica asks its own: each
commit line has a hash of what it draws for the step (``"draws"``), and the first epoch's is in the
identity.  What was computed must have the hash that every replica named.

What a script did with the samples that it got is not in the ledger; what can be seen of a loop
that trains on other data is refused (``engine.guard.script_calls``).

The ledgers are read as a stream (``observe.ledgers``).  Of a long run the oldest lines are gone:
they were audited before, and what came of that is kept (``observe.condensing``).  Of the event log,
too, the first parts may be gone; what is needed of them is at the beginning of those that are left
(``observe.carried``).

Knows nothing of the engine, and shares with it only the permutation's definition in ``core``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pliant.core.step import order
from pliant.machine import run_files
from pliant.observe.audit_epochs import Epochs
from pliant.observe.audit_plan import AuditPlan, first_step_of, plan_of
from pliant.observe.condensed import Condensed, read_condensed
from pliant.observe.ledgers import (
    BEFORE_ALL,
    END,
    Key,
    Ledger,
    LedgerFile,
    OutOfOrderError,
    by_step,
    key_of,
    ledgers_in,
)
from pliant.observe.log import Record
from pliant.observe.reading import every, lacks_beginning
from pliant.observe.told_steps import told_until

_PLACES = ("lineage", "step", "generation")

MAX_PROBLEMS = 20
"""Sentences after which an audit stops listing; one fault tends to cause many."""

MAX_TRIES = 5
"""How often an audit begins anew because the ledger was condensed meanwhile."""


@dataclass(slots=True, kw_only=True)
class Audit:
    """What an audit found; it passed if ``problems`` is empty."""

    committed_steps: int = 0
    committed_samples: int = 0
    epochs: int = 0
    """Epochs that were at least begun."""

    unused_samples: int = 0
    """Of the committed ones, those that the script ran no backward for, or one of weight 0."""

    duplicates: int = 0
    """Lines that repeat an earlier one, equal to it."""

    superseded: int = 0
    """Committed steps that were done again after a restore from an earlier one."""

    first_step: int = 0
    """What came before is another directory's: the run began there from a checkpoint."""

    uncommitted: int = 0
    """Slot lines of attempts that nobody committed: work done again or given up."""

    sampler: str = ""
    """Name of what gave the order, if that was a sampler: then each draw is counted once."""

    torn: int = 0
    """Ledgers that are left whose last line was cut off by a crash."""

    condensed_steps: int = 0
    """Of the committed ones, those audited while the run went on; their lines are gone."""

    problems: list[str] = field(default_factory=list)

    @property
    def exactly_once(self) -> bool:
        """Whether every committed step used exactly the samples it must."""
        return not self.problems

    def complain(self, sentence: str) -> None:
        """Add a problem, up to ``MAX_PROBLEMS``."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(sentence)
        elif len(self.problems) == MAX_PROBLEMS:
            self.problems.append("and more of the same")


@dataclass(slots=True)
class _Step:
    """What all replicas recorded of one step of one lineage."""

    slots: dict[int, dict[int, list[int]]] = field(default_factory=lambda: defaultdict(dict))
    """generation -> slot -> ids."""

    unused: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """generation -> samples without a backward."""

    commits: dict[int, str] = field(default_factory=dict)
    """generation -> digest of the result."""

    draws: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """generation -> what its replicas' samplers drew for it, hashed."""


def audit_run(out: Path, *, is_growing: bool = False) -> Audit:
    """Audit the ledgers below a run's output directory; the run may still go on.

    ``is_growing``: it does, and is audited as far as all of its members have told what they did.
    """
    for _ in range(MAX_TRIES):
        before = read_condensed(out)
        with suppress(FileNotFoundError):  # a part has just been condensed
            audit = _audit_run(out, before, is_growing=is_growing)
            if read_condensed(out) == before:
                return audit
    audit = Audit()
    audit.complain("the ledger changed again and again while it was read; try again")
    return audit


def _audit_run(out: Path, before: Condensed | None, *, is_growing: bool) -> Audit:
    ledgers, log = ledgers_in(out / run_files.LEDGER), run_files.event_log(out)
    plan, doubt = plan_of(every(log))
    first_step = first_step_of(every(log))
    until = told_until(ledgers, log) if is_growing else END
    while True:
        try:
            audit = _audit(ledgers, plan, first_step, before, until)
            break
        except OutOfOrderError as error:
            error.ledger.is_in_order = False
    if doubt:
        audit.complain(doubt)
    if lacks_beginning(log):
        audit.complain(
            "the beginning of the event log is gone, and with it which plans replicas reported"
        )
    audit.torn = sum(ledger.is_torn for ledger in ledgers)
    for ledger in ledgers:
        if (said := unreadable(ledger)) and said not in audit.problems:
            audit.complain(said)
    return audit


def unreadable(ledger: LedgerFile) -> str:
    """Say what of a ledger could not be read; empty: nothing."""
    if not ledger.skipped:
        return ""
    return f"the ledger of {ledger.replica} has {ledger.skipped} unreadable line(s)"


def _audit(
    ledgers: Sequence[Ledger],
    plan: AuditPlan | None,
    first_step: int,
    before: Condensed | None = None,
    until: Key = END,
) -> Audit:
    audit = Audit(first_step=first_step, sampler="" if plan is None else plan.sampler)
    committed = committed_in(ledgers)
    if not committed and before is None:
        audit.complain("the ledger has no committed step")
        return audit
    epochs = None if plan is None else Epochs(plan, audit)
    expected, after = first_step, BEFORE_ALL
    if before is not None:
        expected, after = go_on(audit, plan, before, committed), before.end
    if epochs is not None:
        epochs.go_on(expected)
    count_steps(
        ledgers,
        committed,
        plan,
        audit,
        expected=expected,
        epochs=epochs,
        after=after,
        until=max(until, after),
    )
    if epochs is None:
        audit.complain("no replica reported its plan, so the order of samples cannot be checked")
    else:
        audit.epochs = epochs.end()
    return audit


def go_on(
    audit: Audit, plan: AuditPlan | None, before: Condensed, committed: Mapping[int, range]
) -> int:
    """Take in what was audited before; return the step after the last that still counts.

    A later lineage may have begun before its end.  What the script ran no backward for is then not
    known of the rest alone: at most as much as of all of it.
    """
    later = [steps.start for lineage, steps in committed.items() if lineage > before.lineage]
    kept = max(min([before.until, *later]), audit.first_step)
    redone = max(before.until - kept, 0)
    audit.superseded += before.superseded + redone
    audit.duplicates += before.duplicates
    audit.uncommitted += before.uncommitted + redone * (0 if plan is None else plan.num_slots)
    audit.committed_steps = audit.condensed_steps = kept - audit.first_step
    if plan is not None:
        audit.committed_samples = plan.num_committed(audit.first_step, kept)
    audit.unused_samples = min(before.unused, audit.committed_samples)
    for sentence in before.problems:
        audit.complain(sentence)
    return kept


def count_steps(
    ledgers: Sequence[Ledger],
    committed: Mapping[int, range],
    plan: AuditPlan | None,
    audit: Audit,
    *,
    expected: int,
    epochs: Epochs | None,
    after: Key,
    until: Key = END,
) -> None:
    """Count what belongs to the steps from one on and before another; ``expected`` comes first."""
    superseded = _superseded_from(committed)
    for (lineage, number), lines in by_step(ledgers):
        if (lineage, number) >= until:
            return
        if (lineage, number) < after:
            continue
        step = _Step()
        for replica, line in lines:
            try:
                _count_line(step, line, number, audit)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                audit.complain(
                    f"the ledger of {replica} has a line without meaning: {error!r:.200}"
                )
        if not step.commits or number >= superseded[lineage]:
            audit.superseded += bool(step.commits)
            audit.uncommitted += sum(map(len, step.slots.values()))
            continue
        for missing in range(expected, min(number, expected + MAX_PROBLEMS + 1)):
            audit.complain(f"step {missing} was never committed although a later one was")
        expected = max(expected, number + 1)
        _count_step(step, number, plan, audit)
        if epochs is not None:
            epochs.add(number, step.slots.get(min(step.commits), {}))


def committed_in(ledgers: Iterable[Ledger]) -> dict[int, range]:
    """Return lineage -> the steps from its first committed one to its newest."""
    committed: dict[int, range] = {}
    for ledger in ledgers:
        for line in ledger.commits():
            lineage, step = key_of(line, (-1, -1))
            if lineage >= 0 and step >= 0:
                known = committed.get(lineage, range(step, step))
                committed[lineage] = range(min(step, known.start), max(step + 1, known.stop))
    return committed


def _superseded_from(committed: Mapping[int, range]) -> dict[int, float]:
    """Return lineage -> the step from which on a later one supersedes it."""
    until: dict[int, float] = {}
    least = math.inf
    for lineage in sorted(committed, reverse=True):
        until[lineage] = least
        least = min(least, committed[lineage].start)
    return until


def _count_step(step: _Step, number: int, plan: AuditPlan | None, audit: Audit) -> None:
    """Check a step that counts."""
    audit.committed_steps += 1
    if len(set(step.commits.values())) > 1:
        names = ", ".join(map(str, sorted(step.commits)))
        audit.complain(f"step {number} was committed with different results in generations {names}")
    for generation in step.commits:
        slots = step.slots.get(generation, {})
        _check_slots(slots, number, generation, plan, audit)
        if audit.sampler:
            _check_draws(slots, step.draws[generation], number, audit)
    counts = min(step.commits)
    audit.committed_samples += sum(map(len, step.slots.get(counts, {}).values()))
    audit.unused_samples += step.unused.get(counts, 0)
    audit.uncommitted += sum(
        len(slots) for generation, slots in step.slots.items() if generation not in step.commits
    )


def _count_line(step: _Step, line: Record, number: int, audit: Audit) -> None:
    places = lineage, of_step, generation = [int(line[name]) for name in _PLACES]
    if min(places) < 0:
        raise ValueError(f"lineage {lineage}, step {of_step}, generation {generation}")
    if line.get("commit"):
        digest = str(line.get("digest", ""))
        known = step.commits.setdefault(generation, digest)
        step.draws[generation].add(str(line.get("draws", "")))
        if known != digest:
            audit.complain(
                f"step {number} was committed with two results in generation {generation}"
            )
        return
    slot, ids = int(line["slot"]), [int(sample) for sample in line["ids"]]
    slots = step.slots[generation]
    if slot not in slots:
        slots[slot] = ids
        step.unused[generation] += len(ids) if line.get("unused") else 0
    elif slots[slot] == ids:
        audit.duplicates += 1
    else:
        audit.complain(
            f"micro-batch {slot} of step {number} was computed twice in generation {generation},"
            " with different samples"
        )


def _check_slots(
    slots: Mapping[int, list[int]],
    step: int,
    generation: int,
    plan: AuditPlan | None,
    audit: Audit,
) -> None:
    """Compare the slots of one committed step with the permutation; of a sampler, count them."""
    if plan is None:
        if not slots:
            audit.complain(f"step {step} was committed but no replica recorded a micro-batch of it")
        return
    missing = (slot for slot in plan.used_slots(step) if slot not in slots)
    for slot in islice(missing, MAX_PROBLEMS + 1):
        audit.complain(
            f"step {step} was committed in generation {generation},"
            f" but nobody recorded its micro-batch {slot}"
        )
    epoch = step // plan.steps_per_epoch
    for slot, used in slots.items():
        if slot not in range(plan.num_slots):
            audit.complain(f"step {step} has a micro-batch {slot}, but a step has {plan.num_slots}")
            continue
        positions = plan.slot_positions(step, slot)
        is_as_long = len(used) == len(positions)
        if plan.sampler:
            if not is_as_long:
                audit.complain(
                    f"micro-batch {slot} of step {step}: {len(used)} draws, not {len(positions)}"
                )
        elif not is_as_long or used != [plan.sample(epoch, position) for position in positions]:
            audit.complain(f"micro-batch {slot} of step {step} had other samples than the seed's")


def _check_draws(slots: Mapping[int, list[int]], drawn: set[str], step: int, audit: Audit) -> None:
    """Compare what one committed step used with what each replica's sampler drew for it."""
    used = [sample for _, ids in sorted(slots.items()) for sample in ids]
    if len(drawn) > 1:
        audit.complain(f"the samplers of the replicas drew different samples for step {step}")
    elif drawn != {order.digest(used)}:
        audit.complain(f"step {step} used other samples than the sampler drew for it")
