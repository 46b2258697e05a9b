"""Whole epochs of an audit: nothing twice, nothing missing, and the order a permutation.

Owns what is looked at across the steps of an epoch, in time and memory for the samples of which
there are lines: a data set may have a trillion.  Knows nothing of ledgers, nor of what a step must
consist of (``audit``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from pliant.core.step.order import OrderDigest
from pliant.observe.audit_plan import AuditPlan

_WORD_BITS = 256
"""Samples that are noted in one number: dense ones take half a byte each, scattered ones 130."""


class Findings(Protocol):
    """What an epoch tells of itself to."""

    first_step: int

    def complain(self, sentence: str) -> None:
        """Add a problem."""


class Epochs:
    """Takes in the steps of a run in order, and checks each epoch at its end."""

    def __init__(self, plan: AuditPlan, audit: Findings) -> None:
        self._plan = plan
        self._audit = audit
        self._epoch = self._last_step = -1
        self._used = _used_by(plan)
        self._proved = 0
        """Positions of this epoch of which no line is left."""

    def go_on(self, step: int) -> None:
        """Take the steps of this epoch before one as proved."""
        plan = self._plan
        epoch = step // plan.steps_per_epoch
        first = max(epoch * plan.steps_per_epoch, self._audit.first_step)
        if first < step:
            self._epoch, self._last_step = epoch, step - 1
            self._proved = plan.num_committed(first, step)

    def add(self, step: int, slots: Mapping[int, list[int]]) -> None:
        """Take in what counts of a step."""
        epoch = step // self._plan.steps_per_epoch
        if epoch != self._epoch:
            self.end()
            self._epoch, self._used, self._proved = epoch, _used_by(self._plan), 0
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
        if self._last_step == last and number != whole:
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
