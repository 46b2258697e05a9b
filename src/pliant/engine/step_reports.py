"""Step reports: what a replica says of the steps that it commits.

Owns what is said of each, and what is said once: a nan or inf, what had no backward.  Must not
know how a step comes about.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from pliant.core.values import ReplicaId
from pliant.engine.data.loading import Schedule
from pliant.engine.data.slots import Slots
from pliant.engine.member.membership_port import StepDecision
from pliant.engine.update import Gradient, Update
from pliant.engine.worker.reporter import Reporter
from pliant.wire.messages import Committed


@dataclass(kw_only=True, eq=False)
class StepReports:
    """See the module's text; one per session."""

    reporter: Reporter
    schedule: Schedule
    slots: Slots
    update: Update
    on_nonfinite: str

    def __post_init__(self) -> None:
        self._has_said_idle = self._has_said_passed_over = False
        self._was_nonfinite = False
        self.begin()

    def begin(self) -> None:
        """The next step begins now, whatever was before."""
        self._committed_at_s = time.monotonic()

    def tell(
        self,
        step: int,
        gradient: Gradient,
        decision: StepDecision,
        replica: ReplicaId,
        *,
        is_skipped: bool,
    ) -> None:
        """Report a step that ``replica``, which is this one, has committed."""
        if not gradient.extras.num_computed and not self._has_said_idle:
            self._has_said_idle = True
            self.reporter.noted(
                f"step {step} learned nothing: no micro-batch of it had a "
                "step.backward(...) of a weight above 0",
                lasting=True,
            )
        elif self.slots.passed_over and not (self._has_said_idle or self._has_said_passed_over):
            self._has_said_passed_over = True
            self.reporter.noted(
                f"step.backward was not called for {self.slots.passed_over} of step {step}: these "
                "samples are in no gradient. If the script passed over an error, let that end it: "
                "the replica is replaced, and the step is done with all samples",
                lasting=True,
            )
        self._note_nonfinite(step, gradient, is_leader=decision.is_leader)
        now_s = time.monotonic()
        self.reporter.committed(
            Committed(
                replica=replica,
                generation=decision.generation,
                step=step,
                mono_s=now_s,
                loss=gradient.extras.loss,
                grad_norm=self.update.known_grad_norm,
                samples=self.schedule.num_samples(step),
                step_s=now_s - self._committed_at_s,
                nonfinite=gradient.nonfinite,
                is_skipped=is_skipped,
                parts_us=decision.parts_us,
            )
        )
        self._committed_at_s = now_s

    def _note_nonfinite(self, step: int, gradient: Gradient, *, is_leader: bool) -> None:
        """Say it once for steps in a row: who computed such a loss, else the leader."""
        is_new = bool(gradient.nonfinite) and not self._was_nonfinite
        self._was_nonfinite = bool(gradient.nonfinite)
        where = self.slots.nonfinite
        if not is_new or not (where or (is_leader and math.isfinite(gradient.extras.loss))):
            return
        outcome = "training goes on with it; Session(on_nonfinite=...) can stop or skip"
        if self.on_nonfinite == "skip":
            outcome = "the step counts and changes nothing"
        self.reporter.noted(f"{gradient.nonfinite} at step {step}{where}: {outcome}")
