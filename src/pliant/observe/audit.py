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

Knows nothing of the engine, and shares with it only the permutation's definition in ``core``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pliant.core.step import order
from pliant.machine import run_files
from pliant.observe.log import Reading, Record, parse, read

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
class _Ledger:
    """All replicas' lines, keyed by where they belong."""

    plan: AuditPlan | None
    slots: dict[tuple[int, int, int], dict[int, list[int]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """(lineage, step, generation) -> slot -> ids."""

    unused: dict[tuple[int, int, int], int] = field(default_factory=lambda: defaultdict(int))
    """(lineage, step, generation) -> samples without a backward."""

    commits: dict[tuple[int, int], dict[int, str]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """(lineage, step) -> generation -> digest of the result."""


def audit_run(out: Path) -> Audit:
    """Audit the ledgers below a run's output directory; the run may still go on."""
    readings = _read_ledgers(out / run_files.LEDGER)
    records = read(run_files.event_log(out)).records
    plan, doubt = plan_of(records)
    ledgers = {replica: reading.records for replica, reading in readings.items()}
    audit = audit_of(ledgers, plan, first_step=first_step_of(records))
    if doubt:
        audit.complain(doubt)
    audit.torn = sum(reading.torn for reading in readings.values())
    for replica, reading in readings.items():
        if reading.skipped:
            audit.complain(f"the ledger of {replica} has {reading.skipped} unreadable line(s)")
    return audit


def _read_ledgers(directory: Path) -> dict[str, Reading]:
    """Read ledgers that may be growing: the commits of one moment, and at least their slots.

    Every slot of a commit was recorded before it, somewhere.  So the slots of a commit that is
    there when the sizes are taken are there when the files are read afterwards; commits that
    came in between may lack slots, and are left out.
    """
    sizes = {path: path.stat().st_size for path in sorted(directory.glob("*.jsonl"))}
    return {path.stem: _reading(path.read_bytes(), size) for path, size in sizes.items()}


def _reading(data: bytes, size: int) -> Reading:
    if len(data) == size:
        return parse(data)
    then, since = parse(data[:size]), parse(data[size:])
    slots = [line for line in since.records if not line.get("commit")]
    skipped = then.skipped + since.skipped
    return Reading(records=then.records + slots, torn=since.torn, skipped=skipped)


def plan_of(records: Iterable[Record]) -> tuple[AuditPlan | None, str]:
    """Return what the replicas of a run agreed on, and a sentence if they did not.

    A replica that was refused never computed anything that counts: its identity is left out.
    """
    records = list(records)
    refused = {r.get("replica") for r in records if r.get("kind") == "refused" and r.get("joiner")}
    plans: dict[AuditPlan, str] = {}
    for record in records:
        if record.get("kind") == "spare" and record.get("replica") not in refused:
            plan = _plan(record.get("identity"))
            if plan is not None:
                plans.setdefault(plan, str(record.get("replica")))
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
    audit = Audit(first_step=first_step)
    ledger = _gather(ledgers, plan, audit)
    if not ledger.commits:
        audit.complain("the ledger has no committed step")
        return audit
    history = _history(ledger)
    audit.committed_steps = len(history)
    audit.superseded = len(ledger.commits) - len(history)
    for step in sorted({*range(audit.first_step, max(history))} - history.keys())[:MAX_PROBLEMS]:
        audit.complain(f"step {step} was never committed although a later one was")
    counted: set[tuple[int, int, int]] = set()
    for step, lineage in sorted(history.items()):
        generations = ledger.commits[lineage, step]
        _check_one_result(step, generations, audit)
        for generation in generations:
            counted.add((lineage, step, generation))
            _check_step(ledger, (lineage, step, generation), audit)
        counts = lineage, step, min(generations)
        audit.committed_samples += sum(map(len, ledger.slots.get(counts, {}).values()))
        audit.unused_samples += ledger.unused.get(counts, 0)
    audit.uncommitted = sum(len(slots) for key, slots in ledger.slots.items() if key not in counted)
    if ledger.plan is None:
        audit.complain("no replica reported its plan, so the order of samples cannot be checked")
    else:
        audit.epochs = -(-(max(history) + 1) // ledger.plan.steps_per_epoch)
        _check_epochs(ledger, ledger.plan, history, audit)
    return audit


def _gather(
    ledgers: Mapping[str, Iterable[Record]], plan: AuditPlan | None, audit: Audit
) -> _Ledger:
    ledger = _Ledger(plan)
    for replica, lines in ledgers.items():
        for line in lines:
            try:
                _count_line(ledger, line, audit)
            except (KeyError, TypeError, ValueError) as error:
                audit.complain(f"the ledger of {replica} has a line without meaning: {error!r}")
    return ledger


def _count_line(ledger: _Ledger, line: Record, audit: Audit) -> None:
    lineage, step = int(line["lineage"]), int(line["step"])
    generation = int(line["generation"])
    if line.get("commit"):
        digest = str(line.get("digest", ""))
        known = ledger.commits[lineage, step].setdefault(generation, digest)
        if known != digest:
            audit.complain(f"step {step} was committed with two results in generation {generation}")
        return
    slot, ids = int(line["slot"]), [int(sample) for sample in line["ids"]]
    slots = ledger.slots[lineage, step, generation]
    if slot not in slots:
        slots[slot] = ids
        ledger.unused[lineage, step, generation] += len(ids) if line.get("unused") else 0
    elif slots[slot] == ids:
        audit.duplicates += 1
    else:
        audit.complain(
            f"slot {slot} of step {step} was computed twice in generation {generation},"
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


def _history(ledger: _Ledger) -> dict[int, int]:
    """Return step -> lineage of what counts: a later lineage supersedes from its first step on."""
    history: dict[int, int] = {}
    for lineage in sorted({lineage for lineage, _ in ledger.commits}):
        steps = [step for other, step in ledger.commits if other == lineage]
        history = {step: old for step, old in history.items() if step < min(steps)}
        history.update(dict.fromkeys(steps, lineage))
    return history


def _check_one_result(step: int, generations: Mapping[int, str], audit: Audit) -> None:
    if len(set(generations.values())) > 1:
        names = ", ".join(map(str, sorted(generations)))
        audit.complain(f"step {step} was committed with different results in generations {names}")


def _check_step(ledger: _Ledger, key: tuple[int, int, int], audit: Audit) -> None:
    """Compare the slots of one committed step with the permutation."""
    _, step, generation = key
    slots = ledger.slots.get(key, {})
    plan = ledger.plan
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


def _check_epochs(
    ledger: _Ledger, plan: AuditPlan, history: Mapping[int, int], audit: Audit
) -> None:
    """Check every epoch against a full permutation that is computed on its own."""
    used: dict[int, list[int]] = defaultdict(list)
    for step, lineage in history.items():
        generations = ledger.commits[lineage, step]
        for ids in ledger.slots.get((lineage, step, min(generations)), {}).values():
            used[step // plan.steps_per_epoch].extend(ids)
    for epoch, ids in sorted(used.items()):
        full = {plan.sample(epoch, position) for position in range(plan.num_samples)}
        if full != set(range(plan.num_samples)):
            audit.complain(f"the order of epoch {epoch} is no permutation of the samples")
        if len(set(ids)) != len(ids):
            audit.complain(f"epoch {epoch} used {len(ids) - len(set(ids))} sample(s) twice")
        if set(ids) - full:
            audit.complain(f"epoch {epoch} used samples that the data set does not have")
        last = (epoch + 1) * plan.steps_per_epoch - 1
        whole = plan.num_samples - plan.num_samples % plan.global_batch * plan.drop_last
        first = epoch * plan.steps_per_epoch
        elsewhere = sum(len(plan.positions(step)) for step in range(first, audit.first_step))
        if last in history and len(ids) != whole - elsewhere:
            audit.complain(f"epoch {epoch} used {len(ids)} of {whole - elsewhere} samples")
