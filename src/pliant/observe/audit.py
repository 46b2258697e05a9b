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
then compared with a full permutation computed position by position, which is itself checked to be
a permutation.

What a script did with the samples that it got is not in the ledger; what can be seen of a loop
that trains on other data is refused (``engine.data.other_loaders``).

The ledgers are kept whole: the proof is what was recorded, and a summary of it would have to be
believed.  They are read as a stream (``observe.ledgers``).  Of the event log the first parts may be
gone; what is needed of them is at the beginning of those that are left (``observe.carried``).

Knows nothing of the engine, and shares with it only the permutation's definition in ``core``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pliant.core.step import order
from pliant.machine import run_files
from pliant.observe.ledgers import (
    GivenLedger,
    Ledger,
    OutOfOrderError,
    by_step,
    key_of,
    ledgers_in,
)
from pliant.observe.log import Record
from pliant.observe.reading import every, lacks_beginning

MAX_PROBLEMS = 20
"""Sentences after which an audit stops listing; one fault tends to cause many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """What fixes which sample belongs where."""

    seed: int
    num_samples: int
    num_slots: int
    global_batch: int
    micro_batch: int
    shuffle: bool = True
    drop_last: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in one pass over the data."""
        whole, rest = divmod(self.num_samples, self.global_batch)
        return whole + bool(rest and not self.drop_last)

    def positions(self, step: int) -> range:
        """Return the positions of the epoch that a step takes."""
        first = step % self.steps_per_epoch * self.global_batch
        return range(first, min(first + self.global_batch, self.num_samples))

    def slot_positions(self, step: int, slot: int) -> range:
        """Return the positions of one slot; empty past the end of a short batch."""
        whole = self.positions(step)
        return whole[slot * self.micro_batch : (slot + 1) * self.micro_batch]

    def sample(self, epoch: int, position: int) -> int:
        """Return which sample stands at a position of an epoch."""
        if not self.shuffle:
            return position
        return order.permute(position, size=self.num_samples, key=order.key(self.seed, epoch))


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

    torn: int = 0
    """Ledgers whose last line was cut off by a crash."""

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


def audit_run(out: Path) -> Audit:
    """Audit the ledgers below a run's output directory; the run may still go on."""
    ledgers, log = ledgers_in(out / run_files.LEDGER), run_files.event_log(out)
    plan, doubt = plan_of(every(log))
    first_step = first_step_of(every(log))
    while True:
        try:
            audit = _audit(ledgers, plan, first_step)
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
        if ledger.skipped:
            audit.complain(
                f"the ledger of {ledger.replica} has {ledger.skipped} unreadable line(s)"
            )
    return audit


def plan_of(records: Iterable[Record]) -> tuple[AuditPlan | None, str]:
    """Return what the replicas of a run agreed on, and a sentence if they did not.

    A replica that was refused never computed anything that counts: its identity is left out.
    """
    refused: set[object] = set()
    reported: dict[AuditPlan, dict[object, None]] = {}
    for record in records:
        if record.get("kind") == "refused" and record.get("joiner"):
            refused.add(record.get("replica"))
        elif record.get("kind") == "spare":
            plan = _plan(record.get("identity"))
            if plan is not None:
                reported.setdefault(plan, {})[record.get("replica")] = None
    plans: dict[AuditPlan, str] = {}
    for plan, replicas in reported.items():
        counting = [str(replica) for replica in replicas if replica not in refused]
        if counting:
            plans[plan] = counting[0]
    if len(plans) > 1:
        return None, f"the replicas {' and '.join(plans.values())} had different plans"
    return next(iter(plans), None), ""


def first_step_of(records: Iterable[Record]) -> int:
    """Return the step at which a run's first generation began."""
    for record in records:
        order = record.get("order")
        if record.get("kind") == "switch" and isinstance(order, dict):
            restore = order.get("restore")
            return int(restore["committed"]) if isinstance(restore, dict) else 0
    return 0


def audit_of(
    ledgers: Mapping[str, Iterable[Record]], plan: AuditPlan | None, *, first_step: int = 0
) -> Audit:
    """Audit the lines of all replicas; the result does not depend on their order."""
    given = [GivenLedger(replica, list(lines)) for replica, lines in ledgers.items()]
    return _audit(given, plan, first_step)


def _audit(ledgers: Sequence[Ledger], plan: AuditPlan | None, first_step: int) -> Audit:
    audit = Audit(first_step=first_step)
    until = _until(ledgers)
    if not until:
        audit.complain("the ledger has no committed step")
        return audit
    epochs = None if plan is None else _Epochs(plan, audit)
    expected = first_step
    for (lineage, number), lines in by_step(ledgers):
        step = _Step()
        for replica, line in lines:
            try:
                _count_line(step, line, number, audit)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                audit.complain(f"the ledger of {replica} has a line without meaning: {error!r}")
        if not step.commits or number >= until[lineage]:
            audit.superseded += bool(step.commits)
            audit.uncommitted += sum(map(len, step.slots.values()))
            continue
        for missing in range(expected, min(number, expected + MAX_PROBLEMS + 1)):
            audit.complain(f"step {missing} was never committed although a later one was")
        expected = max(expected, number + 1)
        _count_step(step, number, plan, audit)
        if epochs is not None:
            epochs.add(number, step.slots.get(min(step.commits), {}))
    if epochs is None:
        audit.complain("no replica reported its plan, so the order of samples cannot be checked")
    else:
        audit.epochs = epochs.end()
    return audit


def _until(ledgers: Iterable[Ledger]) -> dict[int, float]:
    """Return lineage -> the step from which on a later one supersedes it."""
    firsts: dict[int, int] = {}
    for ledger in ledgers:
        for line in ledger.commits():
            lineage, step = key_of(line, (-1, -1))
            if lineage >= 0:
                firsts[lineage] = min(step, firsts.get(lineage, step))
    until: dict[int, float] = {}
    least = math.inf
    for lineage in sorted(firsts, reverse=True):
        until[lineage] = least
        least = min(least, firsts[lineage])
    return until


def _count_step(step: _Step, number: int, plan: AuditPlan | None, audit: Audit) -> None:
    """Check a step that counts."""
    audit.committed_steps += 1
    if len(set(step.commits.values())) > 1:
        names = ", ".join(map(str, sorted(step.commits)))
        audit.complain(f"step {number} was committed with different results in generations {names}")
    for generation in step.commits:
        _check_slots(step.slots.get(generation, {}), number, generation, plan, audit)
    counts = min(step.commits)
    audit.committed_samples += sum(map(len, step.slots.get(counts, {}).values()))
    audit.unused_samples += step.unused.get(counts, 0)
    audit.uncommitted += sum(
        len(slots) for generation, slots in step.slots.items() if generation not in step.commits
    )


def _count_line(step: _Step, line: Record, number: int, audit: Audit) -> None:
    int(line["lineage"]), int(line["step"])  # of a line that stands for itself
    generation = int(line["generation"])
    if line.get("commit"):
        digest = str(line.get("digest", ""))
        known = step.commits.setdefault(generation, digest)
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
            f"slot {slot} of step {number} was computed twice in generation {generation},"
            " with different samples"
        )


def _plan(identity: object) -> AuditPlan | None:
    """Read a plan from the (name, value) pairs of an identity; None if it is not all there."""
    try:
        named = {str(name): str(value) for name, value in identity}  # type: ignore[attr-defined]
        return AuditPlan(
            seed=int(named["seed"]),
            num_samples=int(named["dataset_samples"]),
            num_slots=int(named["num_slots"]),
            global_batch=int(named["global_batch_size"]),
            micro_batch=int(named["micro_batch_size"]),
            shuffle=named["shuffle"] == "True",
            drop_last=named["drop_last"] == "True",
        )
    except (KeyError, TypeError, ValueError):
        return None


def _check_slots(
    slots: Mapping[int, list[int]],
    step: int,
    generation: int,
    plan: AuditPlan | None,
    audit: Audit,
) -> None:
    """Compare the slots of one committed step with the permutation."""
    if plan is None:
        if not slots:
            audit.complain(f"step {step} was committed but no replica recorded a slot of it")
        return
    epoch = step // plan.steps_per_epoch
    for slot in range(plan.num_slots):
        expected = [plan.sample(epoch, at) for at in plan.slot_positions(step, slot)]
        if slot not in slots and expected:
            audit.complain(
                f"step {step} was committed in generation {generation},"
                f" but nobody recorded its slot {slot}"
            )
        elif slots.get(slot, []) != expected:
            audit.complain(f"slot {slot} of step {step} used other samples than the seed orders")
    for slot in slots.keys() - set(range(plan.num_slots)):
        audit.complain(f"step {step} has a slot {slot}, but a step has {plan.num_slots} slots")


class _Epochs:
    """Checks every epoch against a full permutation that is computed on its own."""

    def __init__(self, plan: AuditPlan, audit: Audit) -> None:
        self._plan = plan
        self._audit = audit
        self._epoch = -1
        self._last_step = -1
        self._used = bytearray()
        self._number = 0
        self._elsewhere: set[int] = set()

    def add(self, step: int, slots: Mapping[int, list[int]]) -> None:
        """Take in what counts of a step; steps come in order."""
        epoch = step // self._plan.steps_per_epoch
        if epoch != self._epoch:
            self.end()
            self._epoch, self._used = epoch, bytearray(self._plan.num_samples)
            self._number, self._elsewhere = 0, set()
        self._last_step = step
        for ids in slots.values():
            self._number += len(ids)
            for sample in ids:
                if 0 <= sample < len(self._used):
                    self._used[sample] = 1
                else:
                    self._elsewhere.add(sample)

    def end(self) -> int:
        """Check the epoch that was begun last; return how many were begun."""
        plan, audit, epoch = self._plan, self._audit, self._epoch
        if epoch < 0:
            return 0
        full = bytearray(plan.num_samples)
        for position in range(plan.num_samples):
            sample = plan.sample(epoch, position)
            if not 0 <= sample < plan.num_samples:
                break
            full[sample] = 1
        if 0 in full:
            audit.complain(f"the order of epoch {epoch} is no permutation of the samples")
        twice = self._number - self._used.count(1) - len(self._elsewhere)
        if twice:
            audit.complain(f"epoch {epoch} used {twice} sample(s) twice")
        if self._elsewhere:
            audit.complain(f"epoch {epoch} used samples that the data set does not have")
        first, last = epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch - 1
        whole = plan.num_samples - plan.num_samples % plan.global_batch * plan.drop_last
        before = sum(len(plan.positions(step)) for step in range(first, audit.first_step))
        if self._last_step == last and self._number != whole - before:
            audit.complain(f"epoch {epoch} used {self._number} of {whole - before} samples")
        return epoch + 1
