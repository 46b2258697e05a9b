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
(``observe.history``).

Knows nothing of the engine, and shares with it only the permutation's definition in ``core``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pliant.core.errors import ConfigError
from pliant.core.step import order
from pliant.core.step.order import OrderDigest
from pliant.core.values import Mode
from pliant.machine import run_files
from pliant.observe.audit_cover import Cover, Gaps, cover_of
from pliant.observe.audit_plan import AuditPlan, first_step_of, plan_of
from pliant.observe.ledgers import (
    BEFORE_ALL,
    END,
    Condensed,
    Key,
    LedgerFile,
    OutOfOrderError,
    by_step,
    first_unreported_step,
    key_of,
    ledgers_in,
    read_condensed,
)
from pliant.observe.log import Record
from pliant.observe.reading import every, lacks_beginning

_PLACES = ("lineage", "step", "generation")

MAX_PROBLEMS = 20
"""Sentences after which an audit stops listing; one fault tends to cause many."""

MAX_TRIES = 5
"""How often an audit begins anew because the ledger was condensed meanwhile."""

_WORD_BITS = 256
"""Samples that are noted in one number: dense ones take half a byte each, scattered ones 130."""


@dataclass(slots=True, kw_only=True)
class Audit:
    """What an audit found; it passed if ``problems`` and ``uncovered`` are empty."""

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
    uncovered: list[str] = field(default_factory=list)
    """Of which committed steps not all was recorded here, and why: nothing is proved of them."""

    uncovered_steps: int = 0
    """How many these are."""

    @property
    def exactly_once(self) -> bool:
        """Whether it is proved that every committed step used exactly the samples it must."""
        return not (self.problems or self.uncovered)

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

    told: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """generation -> the replicas that recorded its commit."""


def audit_run(out: Path, *, is_growing: bool = False) -> Audit:
    """Audit the ledgers below a run's output directory; the run may still go on.

    ``is_growing``: it does, and is audited as far as all of its members have told what they did.

    Raises:
        ConfigError: it was in restart mode, where nobody keeps a ledger.
    """
    begun = (one for one in every(run_files.event_log(out)) if one.get("kind") == "job_started")
    if next(begun, {}).get("mode") == Mode.RESTART:
        raise ConfigError(
            f"{out} was in restart mode, where the script takes its samples itself, so there is no "
            "ledger to audit; a pliant.ElasticDataLoader counts each once"
        )
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
    audit = audit_ledgers(
        ledgers,
        plan,
        committed_in(ledgers),
        first_step=first_step_of(every(log)),
        before=before,
        until=first_unreported_step(ledgers, log) if is_growing else END,
        cover=cover_of(every(log)),
    )
    if doubt:
        audit.complain(doubt)
    if lacks_beginning(log):
        audit.complain(
            "the beginning of the event log is gone, and with it which plans replicas reported"
        )
    audit.torn = sum(ledger.is_torn for ledger in ledgers)
    return audit


class TooMuchError(Exception):
    """More of the ledgers would have to be read whole than may be."""


def audit_ledgers(
    ledgers: Sequence[LedgerFile],
    plan: AuditPlan | None,
    committed: Mapping[int, range],
    *,
    first_step: int = 0,
    before: Condensed | None = None,
    until: Key = END,
    cover: Cover | None = None,
    is_by_epoch: bool = True,
    most_whole_bytes: float = math.inf,
) -> Audit:
    """Audit what comes after the part that was condensed ``before``, and before one step.

    ``is_by_epoch``: each epoch is checked as a whole, too, if there is a plan.

    Raises:
        TooMuchError: of ledgers that are not in order there are more than ``most_whole_bytes``.
    """
    while True:
        audit = Audit(first_step=first_step, sampler="" if plan is None else plan.sampler)
        try:
            if committed or before is not None:
                _Auditor(audit, plan, committed, cover or Cover()).count(
                    ledgers, before, until, is_by_epoch
                )
            else:
                audit.complain("the ledger has no committed step")
            break
        except OutOfOrderError as error:
            error.ledger.is_in_order = False
        if sum(one.size for one in ledgers if not one.is_in_order) > most_whole_bytes:
            raise TooMuchError
    for said in dict.fromkeys(ledger.unreadable for ledger in ledgers if ledger.skipped):
        audit.complain(said)
    return audit


class _Auditor:
    """Goes through the lines of all ledgers, step by step."""

    def __init__(
        self, audit: Audit, plan: AuditPlan | None, committed: Mapping[int, range], cover: Cover
    ) -> None:
        self._audit = audit
        self._plan = plan
        self._committed = committed
        self._cover = cover
        self._gaps = Gaps()

    def count(
        self,
        ledgers: Sequence[LedgerFile],
        before: Condensed | None,
        until: Key,
        is_by_epoch: bool,
    ) -> None:
        """Count what belongs to the steps after those before, and before another."""
        audit, plan = self._audit, self._plan
        epochs = _Epochs(plan, audit) if is_by_epoch and plan is not None else None
        expected, after = audit.first_step, BEFORE_ALL
        if before is not None:
            expected, after = self._go_on(before), before.end
        if epochs is not None:
            epochs.go_on(expected)
        superseded = _superseded_from(self._committed)
        for (lineage, number), lines in by_step(ledgers):
            if (lineage, number) >= max(until, after):
                break
            if (lineage, number) < after:
                continue
            step = self._step(number, lines)
            if not step.commits or number >= superseded[lineage]:
                audit.superseded += bool(step.commits)
                audit.uncommitted += sum(map(len, step.slots.values()))
                continue
            is_whole = self._has_all(range(expected, number))
            expected = max(expected, number + 1)
            is_whole &= self._count_step(step, number)
            if epochs is not None:
                epochs.add(number, step.slots.get(min(step.commits), {}), is_whole=is_whole)
        if epochs is not None:
            audit.epochs = epochs.end()
        if plan is None:
            audit.complain(
                "no replica reported its plan, so the order of samples cannot be checked"
            )
        audit.uncovered += self._gaps.sentences()
        audit.uncovered_steps += self._gaps.num_steps

    def _has_all(self, missing: range) -> bool:
        """Whether no step is missing before the one that comes next."""
        why = self._cover.gap_in_steps() if missing else ""
        for number in missing if why else missing[: MAX_PROBLEMS + 1]:
            if why:
                self._gaps.add(number, why)
            else:
                self._audit.complain(f"step {number} was never committed although a later one was")
        return not missing

    def _go_on(self, before: Condensed) -> int:
        """Take in what was audited before; return the step after the last that still counts.

        A later lineage may have begun before its end.  What the script ran no backward for is then
        not known of the rest alone: at most as much as of all of it.
        """
        audit, plan = self._audit, self._plan
        later = [
            steps.start for lineage, steps in self._committed.items() if lineage > before.lineage
        ]
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
        audit.uncovered += before.uncovered
        audit.uncovered_steps += before.uncovered_steps
        return kept

    def _step(self, number: int, lines: Iterable[tuple[str, Record]]) -> _Step:
        """Return what all lines say of one step."""
        step = _Step()
        for replica, line in lines:
            try:
                self._count_line(step, line, number, replica)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                self._audit.complain(
                    f"the ledger of {replica} has a line without meaning: {error!r:.200}"
                )
        return step

    def _count_line(self, step: _Step, line: Record, number: int, replica: str) -> None:
        places = lineage, of_step, generation = [int(line[name]) for name in _PLACES]
        if min(places) < 0:
            raise ValueError(f"lineage {lineage}, step {of_step}, generation {generation}")
        if line.get("commit"):
            digest = str(line.get("digest", ""))
            known = step.commits.setdefault(generation, digest)
            step.draws[generation].add(str(line.get("draws", "")))
            step.told[generation].add(replica.partition(".")[0])
            if known != digest:
                self._audit.complain(
                    f"step {number} was committed with two results in generation {generation}"
                )
            return
        slot, ids = int(line["slot"]), [int(sample) for sample in line["ids"]]
        slots = step.slots[generation]
        if slot not in slots:
            slots[slot] = ids
            step.unused[generation] += len(ids) if line.get("unused") else 0
        elif slots[slot] == ids:
            self._audit.duplicates += 1
        else:
            self._audit.complain(
                f"micro-batch {slot} of step {number} was computed twice in generation"
                f" {generation}, with different samples"
            )

    def _count_step(self, step: _Step, number: int) -> bool:
        """Check a step that counts; return whether it is all there, as far as it must be."""
        audit, is_whole = self._audit, True
        audit.committed_steps += 1
        if len(set(step.commits.values())) > 1:
            names = ", ".join(map(str, sorted(step.commits)))
            audit.complain(
                f"step {number} was committed with different results in generations {names}"
            )
        for generation in step.commits:
            slots = step.slots.get(generation, {})
            why = self._gap(slots, number, generation, step.told[generation])
            if why:
                is_whole = False
                self._gaps.add(number, why)
            for problem in self._problems(slots, number, generation, is_whole=not why):
                audit.complain(problem)
            if audit.sampler:
                self._check_draws(slots, step.draws[generation], number, is_whole=not why)
        counts = min(step.commits)
        audit.committed_samples += sum(map(len, step.slots.get(counts, {}).values()))
        audit.unused_samples += step.unused.get(counts, 0)
        audit.uncommitted += sum(
            len(slots) for generation, slots in step.slots.items() if generation not in step.commits
        )
        return is_whole

    def _gap(
        self, slots: Mapping[int, list[int]], step: int, generation: int, told: set[str]
    ) -> str:
        """Say why slots of a committed step are missing; empty: none is, or none may be."""
        plan = self._plan
        is_all = bool(slots) if plan is None else all(at in slots for at in plan.used_slots(step))
        return "" if is_all else self._cover.gap(generation, told)

    def _problems(
        self, slots: Mapping[int, list[int]], step: int, generation: int, *, is_whole: bool
    ) -> Iterator[str]:
        """Compare the slots of a committed step with the permutation; of a sampler, count them."""
        plan = self._plan
        if plan is None:
            if is_whole and not slots:
                yield f"step {step} was committed but no replica recorded a micro-batch of it"
            return
        missing = (slot for slot in plan.used_slots(step) if slot not in slots)
        for slot in islice(missing, MAX_PROBLEMS + 1 if is_whole else 0):
            yield (
                f"step {step} was committed in generation {generation},"
                f" but nobody recorded its micro-batch {slot}"
            )
        epoch = step // plan.steps_per_epoch
        for slot, used in slots.items():
            if slot not in range(plan.num_slots):
                yield f"step {step} has a micro-batch {slot}, but a step has {plan.num_slots}"
                continue
            where, positions = f"micro-batch {slot} of step {step}", plan.slot_positions(step, slot)
            is_as_long = len(used) == len(positions)
            if plan.sampler:
                if not is_as_long:
                    yield f"{where}: {len(used)} draws, not {len(positions)}"
            elif not is_as_long or used != [plan.sample(epoch, at) for at in positions]:
                yield f"{where} had other samples than the seed's"

    def _check_draws(
        self, slots: Mapping[int, list[int]], drawn: set[str], step: int, *, is_whole: bool
    ) -> None:
        """Compare what a committed step used with what each replica's sampler drew for it."""
        used = [sample for _, ids in sorted(slots.items()) for sample in ids]
        if len(drawn) > 1:
            self._audit.complain(
                f"the samplers of the replicas drew different samples for step {step}"
            )
        elif is_whole and drawn != {order.digest(used)}:
            self._audit.complain(f"step {step} used other samples than the sampler drew for it")


def committed_in(ledgers: Iterable[LedgerFile]) -> dict[int, range]:
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


class _Epochs:
    """Takes in the steps of a run in order, and checks each epoch at its end: nothing twice,
    nothing missing, and the order a permutation.

    It takes time and memory for the samples of which there are lines: a data set may have a
    trillion.
    """

    def __init__(self, plan: AuditPlan, audit: Audit) -> None:
        self._plan = plan
        self._audit = audit
        self._epoch = self._last_step = -1
        self._used = _used_by(plan)
        self._proved = 0
        """Positions of this epoch of which no line is left."""

        self._is_whole = True

    def go_on(self, step: int) -> None:
        """Take the steps of this epoch before one as proved."""
        plan = self._plan
        epoch = step // plan.steps_per_epoch
        first = max(epoch * plan.steps_per_epoch, self._audit.first_step)
        if first < step:
            self._epoch, self._last_step = epoch, step - 1
            self._proved = plan.num_committed(first, step)

    def add(self, step: int, slots: Mapping[int, list[int]], *, is_whole: bool) -> None:
        """Take in what counts of a step; ``is_whole``: it and those before, as they must be."""
        epoch = step // self._plan.steps_per_epoch
        if epoch != self._epoch:
            self.end()
            self._epoch, self._used, self._proved = epoch, _used_by(self._plan), 0
            self._is_whole = True
        self._is_whole &= is_whole
        self._last_step = step
        for _, ids in sorted(slots.items()):
            self._used.add(ids)

    def end(self) -> int:
        """Check the epoch that was begun last; return how many were begun."""
        if self._epoch < 0:
            return 0
        for problem in (*self._used.problems(self._epoch), *self._missing()):
            self._audit.complain(problem)
        return self._epoch + 1

    def _missing(self) -> Iterator[str]:
        """Say what of an epoch that is over is missing."""
        plan, first = self._plan, self._epoch * self._plan.steps_per_epoch
        last, number = first + plan.steps_per_epoch - 1, self._proved + self._used.number
        whole = plan.num_committed(max(first, self._audit.first_step), last + 1)
        if self._is_whole and self._last_step == last and number != whole:
            what = "draws" if plan.sampler else "samples"
            yield f"epoch {self._epoch} used {number} of {whole} {what}"


class _Samples:
    """Samples of one epoch, each to be used once."""

    def __init__(self, plan: AuditPlan) -> None:
        self.number = 0
        self._plan = plan
        self._words: dict[int, int] = {}
        self.is_elsewhere = False

    def add(self, ids: Iterable[int]) -> None:
        """Take in the samples of a slot."""
        for sample in ids:
            word, bit = divmod(sample, _WORD_BITS)
            self._words[word] = self._words.get(word, 0) | 1 << bit
            self.is_elsewhere |= not 0 <= sample < self._plan.num_samples
            self.number += 1

    def problems(self, epoch: int) -> Iterator[str]:
        """Say what is wrong with them; where they are a whole epoch, with its order."""
        if self.number >= self._plan.num_samples and not self._is_permuted(epoch):
            yield f"the order of epoch {epoch} is no permutation of the samples"
        if self.twice:
            yield f"epoch {epoch} used {self.twice} sample(s) twice"
        if self.is_elsewhere:
            yield f"epoch {epoch} used samples that the data set does not have"

    @property
    def twice(self) -> int:
        """How many of them had been used before."""
        return self.number - sum(word.bit_count() for word in self._words.values())

    def _is_permuted(self, epoch: int) -> bool:
        whole = _Samples(self._plan)
        whole.add(self._plan.sample(epoch, position) for position in range(self._plan.num_samples))
        return not (whole.twice or whole.is_elsewhere)


class _Draws:
    """Draws of one epoch of a sampler; which ones they must be, its steps have shown."""

    def __init__(self, plan: AuditPlan) -> None:
        self.number = 0
        self._plan = plan
        self._digest = OrderDigest()
        self.is_elsewhere = False

    def add(self, ids: list[int]) -> None:
        """Take in the samples of a slot, in their order."""
        self.number += len(ids)
        self._digest.add(ids)
        self.is_elsewhere |= not all(0 <= sample < self._plan.num_samples for sample in ids)

    def problems(self, epoch: int) -> Iterator[str]:
        """Say what is wrong with them; what the first epoch drew is known from the beginning."""
        if self.is_elsewhere:
            yield f"epoch {epoch} used samples that the data set does not have"
        is_first = epoch == 0 and self.number == self._plan.num_draws
        if is_first and self._digest.value() != self._plan.first_draws:
            yield "epoch 0 used other samples than the sampler drew when the run began"


def _used_by(plan: AuditPlan) -> _Samples | _Draws:
    return _Draws(plan) if plan.sampler else _Samples(plan)
