"""Whole epochs of an audit: nothing twice, nothing missing, and the order a permutation.

Owns what is looked at across the steps of an epoch.  Knows nothing of ledgers, nor of what a step
must consist of (``audit``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pliant.core.step import order
from pliant.observe.audit_plan import AuditPlan


class Findings(Protocol):
    """What an epoch tells of itself to."""

    first_step: int

    def complain(self, sentence: str) -> None:
        """Add a problem."""


class Epochs(Protocol):
    """Takes in the steps of a run in order."""

    def go_on(self, step: int) -> None:
        """Take the steps of its epoch before this one as proved."""

    def add(self, step: int, slots: Mapping[int, list[int]]) -> None:
        """Take in what counts of a step."""

    def end(self) -> int:
        """Check the epoch that was begun last; return how many were begun."""


def epochs_of(plan: AuditPlan, audit: Findings) -> Epochs:
    """Return what checks the epochs of a plan."""
    return DrawnEpochs(plan, audit) if plan.sampler else SeededEpochs(plan, audit)


class SeededEpochs:
    """Checks every epoch against a full permutation that is computed on its own."""

    def __init__(self, plan: AuditPlan, audit: Findings) -> None:
        self._plan = plan
        self._audit = audit
        self._epoch = -1
        self._last_step = -1
        self._used = bytearray()
        self._number = 0
        self._elsewhere: set[int] = set()

    def go_on(self, step: int) -> None:
        """Take the steps of this epoch before one as proved: they had the samples of the seed."""
        plan = self._plan
        epoch = step // plan.steps_per_epoch
        for before in range(max(epoch * plan.steps_per_epoch, self._audit.first_step), step):
            self.add(before, {0: [plan.sample(epoch, at) for at in plan.positions(before)]})

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
        _check_whole(plan, epoch, self._number, self._last_step, audit)
        return epoch + 1


class DrawnEpochs:
    """Checks that every epoch used each draw once; which samples that is, its steps have shown."""

    def __init__(self, plan: AuditPlan, audit: Findings) -> None:
        self._plan = plan
        self._audit = audit
        self._epoch = -1
        self._last_step = -1
        self._before = 0
        self._used: list[int] = []

    def go_on(self, step: int) -> None:
        """Take the steps of this epoch before one as proved; which draws they had is gone."""
        plan = self._plan
        epoch = step // plan.steps_per_epoch
        first = max(epoch * plan.steps_per_epoch, self._audit.first_step)
        if first < step:
            self._epoch, self._last_step = epoch, step - 1
            self._before = sum(len(plan.positions(before)) for before in range(first, step))

    def add(self, step: int, slots: Mapping[int, list[int]]) -> None:
        """Take in what counts of a step; steps come in order."""
        epoch = step // self._plan.steps_per_epoch
        if epoch != self._epoch:
            self.end()
            self._epoch, self._used, self._before = epoch, [], 0
        self._last_step = step
        self._used += [sample for _, ids in sorted(slots.items()) for sample in ids]

    def end(self) -> int:
        """Check the epoch that was begun last; return how many were begun."""
        plan, audit, epoch = self._plan, self._audit, self._epoch
        if epoch < 0:
            return 0
        if not all(0 <= sample < plan.num_samples for sample in self._used):
            audit.complain(f"epoch {epoch} used samples that the data set does not have")
        _check_whole(plan, epoch, self._before + len(self._used), self._last_step, audit)
        is_whole = epoch == 0 and len(self._used) == plan.num_draws
        if is_whole and order.digest(self._used) != plan.first_draws:
            audit.complain("epoch 0 used other samples than the sampler drew when the run began")
        return epoch + 1


def _check_whole(plan: AuditPlan, epoch: int, number: int, last_step: int, audit: Findings) -> None:
    """Check that nothing of an epoch that is over is missing."""
    first, last = epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch - 1
    whole = plan.epoch_size - plan.epoch_size % plan.global_batch * plan.drop_last
    before = sum(len(plan.positions(step)) for step in range(first, audit.first_step))
    if last_step == last and number != whole - before:
        what = "draws" if plan.sampler else "samples"
        audit.complain(f"epoch {epoch} used {number} of {whole - before} {what}")
